import type { Clock } from '../../core/clock.ts'
import type { Platform } from '../push-message.ts'

const SHOWN_MS = 60 * 60_000

/**
 * Which platforms the provider cannot reach for want of a key of theirs: shown for an hour, or until one of their messages
 * gets through. In its own words the provider speaks in the log.
 */
export class PlatformFaults {
  readonly #clock: Clock
  readonly #faultAtMs = new Map<Platform, number>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  get trouble(): string | null {
    const sinceMs = this.#clock.now() - SHOWN_MS
    const platforms = [...this.#faultAtMs].filter(([, atMs]) => atMs > sinceMs).map(([platform]) => platform)
    if (platforms.length === 0) return null
    return `messages to ${platforms.join(', ')} are lost: the provider has no valid key for them, and the log says more`
  }

  note(platform: Platform): void {
    this.#faultAtMs.set(platform, this.#clock.now())
  }

  clear(platform: Platform): void {
    this.#faultAtMs.delete(platform)
  }
}
