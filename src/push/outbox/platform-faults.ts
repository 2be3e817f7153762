import type { Clock } from '../../core/clock.ts'
import type { Platform } from '../push-provider.ts'

const SHOWN_MS = 60 * 60_000

/**
 * Platforms that the provider cannot reach because it has no valid key for them. A fault is shown for an hour, or until a
 * message to the platform is delivered.
 */
export class PlatformFaults {
  readonly #clock: Clock
  readonly #faults = new Map<Platform, { atMs: number; reason: string }>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** In the words of the provider: for operators only. */
  get fault(): string | null {
    const sinceMs = this.#clock.now() - SHOWN_MS
    const shown = [...this.#faults].filter(([, { atMs }]) => atMs > sinceMs)
    return shown.map(([platform, { reason }]) => `messages to ${platform} are lost: ${reason}`).join('; ') || null
  }

  record(platform: Platform, reason: string): void {
    this.#faults.set(platform, { atMs: this.#clock.now(), reason })
  }

  clear(platform: Platform): void {
    this.#faults.delete(platform)
  }
}
