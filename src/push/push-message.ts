export const PLATFORMS = ['web', 'ios', 'android'] as const
export type Platform = (typeof PLATFORMS)[number]

/** One message to one device, in this service's words; the sender turns it into the provider's. */
export interface PushMessage {
  token: string
  title: string
  body: string
  data: Readonly<Record<string, string>>
  /** The same on every attempt: a second arrival replaces the first on the device instead of showing twice. */
  tag: string
  link: string | null
  priority: 'high' | 'normal'
  ttlSeconds: number
  /** Have the provider check it without delivering it. */
  dryRun: boolean
}

/** What became of one attempt, and so what is to be done; retries are the outbox's business, never the sender's. */
export type PushVerdict =
  | { kind: 'sent'; messageId: string }
  /** The device will never get anything again. */
  | { kind: 'disable'; reason: 'unregistered' | 'invalid_token' | 'sender_mismatch' }
  /** This message cannot be delivered, the device is fine. `alert`: the operator has something to mend. */
  | { kind: 'drop'; reason: string; alert: boolean }
  | { kind: 'retry'; reason: string; afterMs: number | null }
  /** Nothing can be delivered until the operator mends it: wrong project, wrong or refused credentials. */
  | { kind: 'halt'; reason: string }

export interface PushSender {
  /** Never rejects: whatever goes wrong is a verdict. */
  send(message: PushMessage, signal: AbortSignal): Promise<PushVerdict>
  /** Why nothing can be delivered, as far as that shows without sending; null when nothing speaks against it. Never rejects. */
  prove?(): Promise<string | null>
  close(): Promise<void>
}

export type DisableReason = Extract<PushVerdict, { kind: 'disable' }>['reason']
