import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Clock } from '../../core/clock.ts'

export const STALLED_READER = { afterMs: 30_000, everyMs: 10_000 }

/**
 * Closes the connection of a client that takes nothing of a large answer for 30 s. Node's own timer begins anew with every
 * byte that the client sends. One timer serves all answers; it does not run while there are none.
 */
export class StalledReaders {
  readonly #clock: Clock
  readonly #readers = new Map<ServerResponse, { takenBytes: number; sinceMs: number }>()
  readonly #closing = new AbortController()
  #isWatching = false

  constructor({ clock }: { clock: Clock }) {
    this.#clock = clock
  }

  /**
   * From now on, the client must take something of this answer. An answer behind an unfinished one on its connection has no
   * socket: its time begins when it has one.
   */
  watch(response: ServerResponse): void {
    this.#readers.set(response, { takenBytes: takenBytesOf(response.socket), sinceMs: this.#clock.elapsed() })
    if (!this.#isWatching) void this.#watch()
  }

  close(): void {
    this.#closing.abort()
  }

  async #watch(): Promise<void> {
    const { signal } = this.#closing
    this.#isWatching = true
    while (!signal.aborted && this.#readers.size > 0) {
      await this.#clock.sleep(STALLED_READER.everyMs, signal)
      for (const response of this.#readers.keys()) this.#check(response)
    }
    this.#isWatching = false
  }

  #check(response: ServerResponse): void {
    const { socket, closed, req } = response
    const reader = this.#readers.get(response)
    if (closed || req.socket.destroyed || reader === undefined) {
      this.#readers.delete(response)
      return
    }
    const takenBytes = takenBytesOf(socket)
    const nowMs = this.#clock.elapsed()
    if (socket === null || takenBytes !== reader.takenBytes) this.#readers.set(response, { takenBytes, sinceMs: nowMs })
    else if (nowMs - reader.sinceMs >= STALLED_READER.afterMs) socket.destroy()
  }
}

/** Grows with what the system has taken of everything that was written, also within one write. */
export function takenBytesOf(socket: Socket | null): number {
  if (socket === null) return 0
  const { _handle: handle } = socket as Socket & { _handle?: { writeQueueSize?: number } | null }
  return socket.bytesWritten - socket.writableLength - (handle?.writeQueueSize ?? 0)
}
