/** The port to push providers: everything that the outbox, the routes and the checks need from a provider. */
export const PLATFORMS = ['web', 'ios', 'android'] as const
export type Platform = (typeof PLATFORMS)[number]

/** The content that a device shows, the same for every device of a notification. */
export interface PushContent {
  title: string
  body: string
  data: Readonly<Record<string, string>>
  /** The same on every attempt: a repeated message replaces the first on the device. */
  tag: string
  link: string | null
}

/** One message to one device, independent of the provider; the provider's sender translates it. */
export interface PushMessage extends PushContent {
  token: string
  priority: 'high' | 'normal'
  ttlSeconds: number
  /** The provider checks the message without delivering it. */
  dryRun: boolean
}

/**
 * The result of one attempt, which decides what the outbox does next. A sender never retries by itself. The reason of a
 * `disable` is a fixed word that users read; all other reasons are only for the log.
 */
export type PushVerdict =
  | { kind: 'sent'; messageId: string }
  /**
   * The device can never be reached again. `credentialsFault` is set when wrong credentials would give the same answer for
   * every device: the outbox then trusts the verdict only after a delivered message, and shows this text if there is none.
   */
  | { kind: 'disable'; reason: string; credentialsFault: string | null }
  /** This message cannot be delivered; the device is fine. `alert`: the operator can fix the cause. */
  | { kind: 'drop'; reason: string; alert: boolean }
  | { kind: 'retry'; reason: string; afterMs: number | null }
  /** No message can be delivered until the operator fixes the cause: wrong project, wrong or refused credentials. */
  | { kind: 'halt'; reason: string }

export interface PushLimits {
  /** The most that `payloadBytesOf` may count. */
  payloadBytes: number
  tokenBytes: number
  ttlSeconds: number
  /** How long an idle device stays reachable. A platform that is not listed has no limit. */
  idleDeviceMs: Readonly<Partial<Record<Platform, number>>>
}

/** Where in the content the fault is, as a JSON pointer, and the rest of the sentence: '/data/from' 'is reserved'. */
export interface ContentFault {
  path: string
  problem: string
}

/**
 * A provider's rules, known without credentials: the routes refuse content that the provider would refuse for every device.
 */
export interface PushProvider {
  /** Stored with each device that this provider reaches. */
  readonly name: string
  readonly limits: PushLimits
  /** The size that counts against `limits.payloadBytes`. */
  payloadBytesOf(content: PushContent): number
  validate(content: PushContent): ContentFault | null
}

/** A provider with credentials. Every provider's sender passes the suite in test/support/push-provider-suite.ts. */
export interface PushSender {
  readonly provider: PushProvider
  /** Never rejects: every failure is a verdict. */
  send(message: PushMessage, signal: AbortSignal): Promise<PushVerdict>
  /** Why the provider refuses the credentials; null when it accepts them or gives no answer. Never rejects. */
  checkCredentials(): Promise<string | null>
  /** Ends messages in flight with a verdict, and every later message too. */
  close(): Promise<void>
}
