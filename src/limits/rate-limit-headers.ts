import type { Charge } from './limiter.ts'
import { WINDOW_MS } from './tiers.ts'

export const RATE_LIMIT_HEADER_STYLES = ['draft-6', 'draft-8'] as const

export type RateLimitHeaderStyle = (typeof RATE_LIMIT_HEADER_STYLES)[number]

const WINDOW_SECONDS = WINDOW_MS / 1_000

/**
 * The rate-limit headers of draft-ietf-httpapi-ratelimit-headers, never `X-RateLimit-*`. Seconds are rounded up, so that a
 * client that waits this long is admitted.
 */
export function rateLimitHeaders(charge: Charge, style: RateLimitHeaderStyle): Record<string, string> {
  const { tier, limit, remaining, exceeded } = charge
  const resetSeconds = Math.max(1, Math.ceil(charge.resetMs / 1_000))
  const headers: Record<string, string> =
    style === 'draft-6'
      ? {
          'ratelimit-policy': `${limit};w=${WINDOW_SECONDS}`,
          'ratelimit-limit': String(limit),
          'ratelimit-remaining': String(remaining),
          'ratelimit-reset': String(resetSeconds),
        }
      : {
          'ratelimit-policy': `"${tier}";q=${limit};w=${WINDOW_SECONDS}`,
          ratelimit: `"${tier}";r=${remaining};t=${resetSeconds}`,
        }
  if (exceeded) headers['retry-after'] = String(resetSeconds)
  return headers
}
