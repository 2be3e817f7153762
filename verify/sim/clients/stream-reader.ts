import type { SimNode } from '../system/node.ts'
import type { Prng } from '../time/prng.ts'
import type { Timer, VirtualTime } from '../time/virtual-time.ts'
import type { Client } from './client.ts'

export interface StreamReaderOptions {
  client: Client
  /** Without the cursor. */
  path: string
  /** The stream begins after this event. */
  after?: number
  time: VirtualTime
  prng: Prng
  pickNode: () => SimNode
  note: (actor: string, what: string) => void
  /** Called with the text of each event. */
  onEvent?: (text: string) => void
}

/** Reads a stream from a place in the log. After every break it reconnects, to any node, after the last event it saw. */
export class StreamReader {
  readonly client: Client
  readonly path: string
  readonly after: number
  readonly ids: number[] = []
  resets = 0
  readonly #options: StreamReaderOptions
  #last: number | undefined
  #waiting: Timer | null = null
  #failures = 0
  #stopped = false
  #partial = ''
  #hangUp: (() => void) | null = null

  constructor(options: StreamReaderOptions) {
    this.#options = options
    this.client = options.client
    this.path = options.path
    this.after = options.after ?? 0
  }

  start(): void {
    void this.#connect()
  }

  /** Closes the connection, as a lost network does. */
  breakOff(): void {
    this.#hangUp?.()
  }

  /** Reconnects now instead of at the end of its backoff. */
  nudge(): void {
    if (!this.#waiting) return
    this.#waiting.cancel()
    void this.#connect()
  }

  stop(): void {
    this.#stopped = true
    this.breakOff()
  }

  async #connect(): Promise<void> {
    this.#waiting = null
    if (this.#stopped) return
    const { client, pickNode, note } = this.#options
    const last = this.#last
    this.#partial = ''
    const node = pickNode()
    const opened = await node.stream(
      {
        path: last === undefined ? `${this.path}${this.path.includes('?') ? '&' : '?'}after=${this.after}` : this.path,
        headers: { ...client.headers, ...(last === undefined ? {} : { 'last-event-id': String(last) }) },
      },
      { onChunk: (text) => this.#read(text), onClose: () => this.#again() },
    )
    note(
      client.name,
      `stream ${this.path} after ${last ?? this.after} at ${node.name}: ${opened?.status ?? 'no answer'}`,
    )
    if (opened?.status !== 200) this.#failures += 1
    else this.#failures = 0
    if (opened === null) return this.#again()
    this.#hangUp = opened.close
    if (this.#stopped) opened.close()
  }

  #again(): void {
    this.#hangUp = null
    if (this.#stopped) return
    const { time, prng } = this.#options
    const patienceMs = Math.min(3_600_000, 3_000 * 2 ** this.#failures)
    this.#waiting = time.after(prng.int(50, patienceMs), () => void this.#connect())
  }

  #read(text: string): void {
    const blocks = (this.#partial + text).split('\n\n')
    this.#partial = blocks.pop() ?? ''
    for (const block of blocks) {
      const id = /^id: (\d+)$/m.exec(block)?.[1]
      if (id === undefined) continue
      this.#last = Number(id)
      if (/^event: reset$/m.test(block)) this.resets += 1
      // An id without data is a position to resume from, not an event.
      else if (/^data: /m.test(block)) {
        this.ids.push(Number(id))
        this.#options.onEvent?.(block)
      }
    }
  }
}
