import { comparePositions, type LivePosition, RUN_START } from './live-position.ts'

const MAX_BYTES_PER_LOG = 4 * 1024 * 1024
const MAX_BYTES = 64 * 1024 * 1024
/** The memory of an event in addition to its text. */
const EVENT_OVERHEAD_BYTES = 200

/** The memory that all logs of a process share. */
export class LiveMemory {
  readonly #logs = new Set<LiveLog>()
  readonly #limits: { perLog: number; total: number }
  #bytes = 0

  constructor(limits = { perLog: MAX_BYTES_PER_LOG, total: MAX_BYTES }) {
    this.#limits = limits
  }

  get bytes(): number {
    return this.#bytes
  }

  add(log: LiveLog): void {
    this.#logs.add(log)
  }

  remove(log: LiveLog): void {
    if (this.#logs.delete(log)) this.#bytes -= log.bytes
  }

  /** Trims a quarter at once, so that a long run does not trim for each event. The largest log is trimmed first. */
  grow(log: LiveLog, bytes: number): void {
    const { perLog, total } = this.#limits
    this.#bytes += bytes
    if (log.bytes > perLog) this.#bytes -= log.trimTo(perLog * 0.75)
    while (this.#bytes > total) {
      const largest = [...this.#logs].reduce((a, b) => (b.bytes > a.bytes ? b : a))
      this.#bytes -= largest.trimTo(largest.bytes * 0.75)
    }
  }
}

interface LoggedEvent {
  position: LivePosition
  /** The bytes as every viewer gets them. */
  frame: Buffer
}

/** The events of one run, oldest first, as far as memory allows. Viewers read it by index, each at its own pace. */
export class LiveLog {
  readonly #memory: LiveMemory
  #events: LoggedEvent[] = []
  #bytes = 0
  /** The index of the first stored event. */
  #start = 0
  #trimmedTo: LivePosition = RUN_START

  constructor(memory: LiveMemory) {
    this.#memory = memory
    memory.add(this)
  }

  get bytes(): number {
    return this.#bytes
  }

  get start(): number {
    return this.#start
  }

  /** The index after the newest event. */
  get end(): number {
    return this.#start + this.#events.length
  }

  /** The newest trimmed event; the start of the run if none was trimmed. */
  get trimmedTo(): LivePosition {
    return this.#trimmedTo
  }

  /** The newest event so far, stored or trimmed. */
  get newest(): LivePosition {
    return this.#events.at(-1)?.position ?? this.#trimmedTo
  }

  at(index: number): LoggedEvent | undefined {
    return this.#events[index - this.#start]
  }

  append(event: LoggedEvent): void {
    const bytes = event.frame.byteLength + EVENT_OVERHEAD_BYTES
    this.#events.push(event)
    this.#bytes += bytes
    this.#memory.grow(this, bytes)
  }

  /** The index of the first stored event after a position. */
  indexAfter(position: LivePosition): number {
    let [low, high] = [0, this.#events.length]
    while (low < high) {
      const middle = (low + high) >> 1
      const event = this.#events[middle]
      if (event && comparePositions(event.position, position) <= 0) low = middle + 1
      else high = middle
    }
    return this.#start + low
  }

  /** Frees at least one event, and returns the number of freed bytes. */
  trimTo(bytes: number): number {
    const before = this.#bytes
    let count = 0
    for (const { position, frame } of this.#events) {
      if (this.#bytes <= bytes) break
      this.#bytes -= frame.byteLength + EVENT_OVERHEAD_BYTES
      this.#trimmedTo = position
      count += 1
    }
    this.#events.splice(0, count)
    this.#start += count
    return before - this.#bytes
  }
}
