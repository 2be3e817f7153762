import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'

const PROBE_EVERY_MS = 30_000

/** Signs that a fault is fixed, weakest first: accepted credentials, any answer about a message, a sent message. */
const RECOVERIES = ['credentials', 'answer', 'sent'] as const
type Recovery = (typeof RECOVERIES)[number]

/**
 * Pauses all delivery of a channel after a fault that affects every message. One probe every 30 s detects when the fault
 * is fixed.
 */
export class DeliveryPause {
  readonly #options: { clock: Clock; log: Log; channel: string }
  #current: { reason: string; endsWith: Recovery } | null = null
  #probeAtMs = 0

  constructor(options: { clock: Clock; log: Log; channel: string }) {
    this.#options = options
  }

  /** Why delivery is paused; null when it is not. */
  get reason(): string | null {
    return this.#current?.reason ?? null
  }

  /** When the next attempt may be made. */
  get probeAtMs(): number {
    return this.#probeAtMs
  }

  /** Whether accepted credentials are enough to end the pause. */
  get endsWithCredentials(): boolean {
    return this.#current?.endsWith === 'credentials'
  }

  /** A second fault during a pause replaces the reason; the pause then needs the stronger recovery of the two. */
  begin(reason: string, endsWith: Recovery): void {
    const current = this.#current
    const { log, channel } = this.#options
    if (current === null) log.error({ channel, reason }, 'outbox.halted')
    this.#current = { reason, endsWith: current && isWeaker(endsWith, current.endsWith) ? current.endsWith : endsWith }
    this.extend()
  }

  /** A probe without an answer proves nothing: the next one waits its full time. */
  extend(): void {
    if (this.#current !== null) this.#probeAtMs = this.#options.clock.now() + PROBE_EVERY_MS
  }

  /** True when this recovery has ended a pause. */
  endWith(recovery: Recovery): boolean {
    if (this.#current === null || isWeaker(recovery, this.#current.endsWith)) return false
    this.#options.log.info({ channel: this.#options.channel }, 'outbox.resumed')
    this.#current = null
    this.#probeAtMs = 0
    return true
  }
}

function isWeaker(one: Recovery, other: Recovery): boolean {
  return RECOVERIES.indexOf(one) < RECOVERIES.indexOf(other)
}
