import { BoundedMap } from '../../core/bounded-map.ts'
import type { Clock } from '../../core/clock.ts'

const MAX_USERS = 100
const RECENT_MS = 60 * 60_000
/** Up to this many users with dead devices are normal, even if there are few other users. */
const FEW_USERS = 3
const MAX_DEAD_SHARE = 0.1
const CONFIRMED_AFTER_MS = 24 * 60 * 60_000

/**
 * Decides whether to trust a provider that reports a device dead. A wrong key, or a failing provider, reports every
 * device dead, and trusting it would disable all of them. So while devices of many users are reported dead at once, only a
 * report repeated for a day is trusted. Users are counted, not devices: bad tokens of one user say nothing about other
 * users.
 */
export class DisableBreaker {
  readonly #clock: Clock
  /** The latest answer about any device of each user. */
  readonly #users = new BoundedMap<string, { isDead: boolean; atMs: number }>(MAX_USERS)
  #sentAtMs = Number.NEGATIVE_INFINITY

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Many devices are reported dead and no message is delivered: the fault is in our credentials. */
  get isSystemic(): boolean {
    return !this.hasRecentSuccess && !this.#isNormal()
  }

  /** Whether a message was delivered recently, so that credentials and provider are known to work. */
  get hasRecentSuccess(): boolean {
    return this.#clock.now() - this.#sentAtMs < RECENT_MS
  }

  get fault(): string | null {
    if (this.#isNormal()) return null
    return this.hasRecentSuccess
      ? 'devices of many users are reported dead at once: their deliveries wait, and only those reported for a day are disabled'
      : 'devices of many users are reported dead and no message is delivered: their deliveries wait, no more devices are disabled'
  }

  recordSent(user: string): void {
    this.#sentAtMs = this.#clock.now()
    this.#record(user, false)
  }

  recordDead(user: string): void {
    this.#record(user, true)
  }

  /** Whether to trust a report. `firstReportedAtMs`: when an earlier report was not trusted; null for a first report. */
  trusts(report: { onlyAfterSuccess: boolean; firstReportedAtMs: number | null }): boolean {
    const { onlyAfterSuccess, firstReportedAtMs } = report
    if (onlyAfterSuccess && !this.hasRecentSuccess) return false
    if (this.#isNormal()) return true
    const isConfirmed = firstReportedAtMs !== null && this.#clock.now() - firstReportedAtMs >= CONFIRMED_AFTER_MS
    return isConfirmed && this.hasRecentSuccess
  }

  #record(user: string, isDead: boolean): void {
    this.#users.set(user, { isDead, atMs: this.#clock.now() })
  }

  #isNormal(): boolean {
    // While no message is delivered, an old report stays relevant: count every report since the last success.
    const sinceMs = this.hasRecentSuccess ? this.#clock.now() - RECENT_MS : this.#sentAtMs
    let [all, dead] = [0, 0]
    for (const [, { isDead, atMs }] of this.#users.entries()) {
      if (atMs <= sinceMs) continue
      all += 1
      if (isDead) dead += 1
    }
    return dead <= FEW_USERS || dead <= all * MAX_DEAD_SHARE
  }
}
