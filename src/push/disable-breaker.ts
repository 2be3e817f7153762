import type { Clock } from '../core/clock.ts'
import type { PushVerdict } from './push-message.ts'

const WINDOW = 100
const MIN_ATTEMPTS = 20
const MAX_DEAD_SHARE = 0.5
/** Until one message got through, credentials of another project look just like devices of another project. */
const MAX_UNPROVEN_MISMATCHES = 3
const HOLD_MS = 10 * 60_000

type Answer = 'sent' | 'unregistered' | 'invalid_token' | 'sender_mismatch'

/**
 * Stops believing that devices are dead when too many are at once: a wrong key or project says so of all of them, and
 * believing it would wipe everyone. After a while a calmer picture lets it believe again.
 */
export class DisableBreaker {
  readonly #clock: Clock
  /** The latest answers of the provider that say whether a device lives. */
  readonly #recent: Answer[] = []
  #heldUntilMs = 0

  constructor(clock: Clock) {
    this.#clock = clock
  }

  get trouble(): string | null {
    return this.allows() ? null : 'too many devices reported dead at once: none is disabled'
  }

  note(verdict: PushVerdict): void {
    if (verdict.kind !== 'sent' && verdict.kind !== 'disable') return
    this.#recent.push(verdict.kind === 'sent' ? 'sent' : verdict.reason)
    if (this.#recent.length > WINDOW) this.#recent.shift()
    if (this.#isSpike() || this.#isUnproven()) this.#heldUntilMs = this.#clock.now() + HOLD_MS
  }

  allows(): boolean {
    return this.#clock.now() >= this.#heldUntilMs
  }

  #isSpike(): boolean {
    const dead = this.#recent.filter((answer) => answer !== 'sent').length
    return this.#recent.length >= MIN_ATTEMPTS && dead / this.#recent.length > MAX_DEAD_SHARE
  }

  #isUnproven(): boolean {
    const mismatches = this.#recent.filter((answer) => answer === 'sender_mismatch').length
    return mismatches > MAX_UNPROVEN_MISMATCHES && !this.#recent.includes('sent')
  }
}
