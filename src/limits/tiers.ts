/** The three tiers. Every charged request belongs to exactly one of them; all have the same window. */
const TIERS = ['unauthenticated', 'authenticated', 'service'] as const

export type TierName = (typeof TIERS)[number]

/** Requests per window. */
export type TierLimits = Readonly<Record<TierName, number>>

export const WINDOW_MS = 60_000

export const DEFAULT_LIMITS: TierLimits = { unauthenticated: 100, authenticated: 1_000, service: 10_000 }

/** The state of one key after a request was counted. */
export interface Hit {
  /** Requests in this window, this one included. */
  count: number
  /** The rest of the window. */
  resetMs: number
}
