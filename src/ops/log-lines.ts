import { type Clock, systemClock } from '../core/clock.ts'

/** Where lines end up; pino's own destination fits. */
export interface LineSink {
  write(text: string): unknown
  flush(done: (error?: Error) => void): void
}

const PIECE_CHARS = 16_000
const MAX_WAIT_MS = 200
const WARN = 40
/** Asks pino to set `lastLevel` before each line. */
const NEEDS_METADATA: unique symbol = Symbol.for('pino.metadata')

/**
 * Hands lines on in large pieces: the sink below measures everything it holds again with every line it gets, and each
 * write wakes a thread, so that line by line the log would cost a request more than its rate limit does. No line waits
 * longer than a fifth of a second, and a warning waits for nothing.
 */
export class LogLines {
  readonly [NEEDS_METADATA] = true
  lastLevel = 0
  readonly #sink: LineSink
  readonly #clock: Clock
  #lines: string[] = []
  #chars = 0

  constructor(sink: LineSink, clock: Clock = systemClock) {
    this.#sink = sink
    this.#clock = clock
  }

  write(line: string): void {
    this.#chars += line.length
    if (this.#lines.push(line) === 1) void this.#clock.sleep(MAX_WAIT_MS).then(() => this.#handOn())
    if (this.#chars >= PIECE_CHARS || this.lastLevel >= WARN) this.#handOn()
  }

  flush(done: (error?: Error) => void): void {
    this.#handOn()
    this.#sink.flush(done)
  }

  #handOn(): void {
    if (this.#lines.length === 0) return
    const piece = this.#lines.join('')
    this.#lines = []
    this.#chars = 0
    this.#sink.write(piece)
  }
}
