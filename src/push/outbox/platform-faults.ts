import type { Clock } from '../../core/clock.ts'
import type { Platform } from '../push-provider.ts'

const SHOWN_MS = 60 * 60_000

/**
 * Platforms that the provider cannot reach because it has no valid key for them. A fault is shown for an hour, or until a
 * message to the platform is delivered. The provider's own message is in the log.
 */
export class PlatformFaults {
  readonly #clock: Clock
  readonly #faultAtMs = new Map<Platform, number>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  get fault(): string | null {
    const sinceMs = this.#clock.now() - SHOWN_MS
    const platforms = [...this.#faultAtMs].filter(([, atMs]) => atMs > sinceMs).map(([platform]) => platform)
    if (platforms.length === 0) return null
    return `messages to ${platforms.join(', ')} are lost: the provider has no valid key for them; see the log`
  }

  record(platform: Platform): void {
    this.#faultAtMs.set(platform, this.#clock.now())
  }

  clear(platform: Platform): void {
    this.#faultAtMs.delete(platform)
  }
}
