import { type Clock, systemClock } from '../core/clock.ts'

/** The target of the lines; pino's own destination implements it. */
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
 * Collects log lines and writes them in large pieces. Writing each line separately would cost a request more than its
 * rate limit check: every write wakes a thread, and pino's destination measures its whole buffer again. No line waits
 * longer than 200 ms. A warning or an error is written at once, with all lines before it.
 */
export class LogBuffer {
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
    if (this.#lines.push(line) === 1) void this.#clock.sleep(MAX_WAIT_MS).then(() => this.#writeOut())
    if (this.#chars >= PIECE_CHARS || this.lastLevel >= WARN) this.#writeOut()
  }

  flush(done: (error?: Error) => void): void {
    this.#writeOut()
    this.#sink.flush(done)
  }

  #writeOut(): void {
    if (this.#lines.length === 0) return
    const piece = this.#lines.join('')
    this.#lines = []
    this.#chars = 0
    this.#sink.write(piece)
  }
}
