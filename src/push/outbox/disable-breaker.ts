import type { Clock } from '../../core/clock.ts'
import type { DisableReason } from '../push-message.ts'

const MAX_USERS = 100
const RECENT_MS = 60 * 60_000
/** So few users with dead devices are nothing unusual, however few others there are. */
const FEW_USERS = 3
const MAX_DEAD_SHARE = 0.1
const PATIENCE_MS = 24 * 60 * 60_000

/**
 * Says whether a device that the provider calls dead may be disabled. A wrong key or a provider in trouble says so of
 * everybody, and believing it would wipe everyone; so a mismatch is not believed unless a message got through lately, and
 * when many users' devices are called dead at once, only those are believed of which it has been said for a day. Users
 * are counted, not devices: what one of them registered says nothing about the others.
 */
export class DisableBreaker {
  readonly #clock: Clock
  /** The latest answer about a device of each user, the latest users last. */
  readonly #users = new Map<string, { isDead: boolean; atMs: number }>()
  #sentAtMs = Number.NEGATIVE_INFINITY

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Nothing gets through, and not to just a few: the fault is on our side. */
  get isSystemic(): boolean {
    return !this.isProven && !this.#isCalm()
  }

  /** Whether credentials and provider have lately shown that they work. */
  get isProven(): boolean {
    return this.#clock.now() - this.#sentAtMs < RECENT_MS
  }

  get trouble(): string | null {
    if (this.#isCalm()) return null
    return this.isProven
      ? 'devices of many users are reported dead at once: their deliveries wait, and only those reported for a day are disabled'
      : 'devices of many users are reported dead and no message gets through: their deliveries wait, no more are disabled'
  }

  noteSent(user: string): void {
    this.#sentAtMs = this.#clock.now()
    this.#note(user, false)
  }

  noteDead(user: string): void {
    this.#note(user, true)
  }

  /** Given why, and since when the device is called dead, if it has been before. */
  believes(reason: DisableReason, calledDeadAtMs: number | null): boolean {
    // A key of another project says this of every device.
    if (reason === 'sender_mismatch' && !this.isProven) return false
    if (this.#isCalm()) return true
    const isPatient = calledDeadAtMs !== null && this.#clock.now() - calledDeadAtMs >= PATIENCE_MS
    return isPatient && this.isProven
  }

  #note(user: string, isDead: boolean): void {
    this.#users.delete(user)
    this.#users.set(user, { isDead, atMs: this.#clock.now() })
    if (this.#users.size <= MAX_USERS) return
    for (const [oldest] of this.#users) {
      this.#users.delete(oldest)
      return
    }
  }

  #isCalm(): boolean {
    // With nothing getting through, time alone makes nothing better: all counts that was said since something did.
    const sinceMs = this.isProven ? this.#clock.now() - RECENT_MS : this.#sentAtMs
    let [all, dead] = [0, 0]
    for (const { isDead, atMs } of this.#users.values()) {
      if (atMs <= sinceMs) continue
      all += 1
      if (isDead) dead += 1
    }
    return dead <= FEW_USERS || dead <= all * MAX_DEAD_SHARE
  }
}
