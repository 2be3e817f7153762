import type { Clock } from '../../../src/core/clock.ts'

export interface Timer {
  cancel(): void
}

interface Entry {
  atMs: number
  order: number
  run: (() => void) | null
}

const MAX_TURNS_IN_A_MOMENT = 20_000

/** Thrown when code keeps the event loop busy for ever, so that virtual time cannot advance. */
export class Livelock extends Error {}

/**
 * Time that passes only when the event loop is empty: then it jumps to the next timer. Between two timers the real event
 * loop runs until nothing is left, so that the order is the same in every run.
 */
export class VirtualTime {
  #nowMs: number
  #order = 0
  readonly #heap: Entry[] = []

  constructor(startMs: number) {
    this.#nowMs = startMs
  }

  get now(): number {
    return this.#nowMs
  }

  after(delayMs: number, run: () => void): Timer {
    const atMs = this.#nowMs + Math.max(0, Math.round(delayMs))
    const entry: Entry = { atMs, order: this.#order++, run }
    this.#push(entry)
    return {
      cancel: () => {
        entry.run = null
      },
    }
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.after(ms, resolve)
    })
  }

  /** This time as a `Clock`. */
  get clock(): Clock {
    return {
      now: () => this.#nowMs,
      calendar: () => this.#nowMs,
      elapsed: () => this.#nowMs,
      sleep: (ms, signal) =>
        new Promise((resolve) => {
          if (signal?.aborted) return resolve()
          const wake = () => {
            timer.cancel()
            signal?.removeEventListener('abort', wake)
            resolve()
          }
          const timer = this.after(ms, wake)
          signal?.addEventListener('abort', wake, { once: true })
        }),
    }
  }

  /** Runs everything that is due until then, and empties the event loop after each moment. */
  async runUntil(endMs: number): Promise<void> {
    let turns = 0
    await drain()
    for (let next = this.#heap[0]; next && next.atMs <= endMs; next = this.#heap[0]) {
      turns = next.atMs === this.#nowMs ? turns + 1 : 0
      if (turns > MAX_TURNS_IN_A_MOMENT) throw new Livelock('time stands still')
      this.#nowMs = next.atMs
      let ran = false
      while (this.#heap[0]?.atMs === this.#nowMs) {
        const { run } = this.#pop()
        run?.()
        ran ||= run !== null
      }
      if (ran) await drain()
    }
    this.#nowMs = Math.max(this.#nowMs, endMs)
  }

  #push(entry: Entry): void {
    const heap = this.#heap
    let at = heap.push(entry) - 1
    while (at > 0) {
      const parent = (at - 1) >> 1
      if (!isBefore(entry, heap[parent] as Entry)) break
      heap[at] = heap[parent] as Entry
      at = parent
    }
    heap[at] = entry
  }

  #pop(): Entry {
    const heap = this.#heap
    const first = heap[0] as Entry
    const last = heap.pop() as Entry
    if (heap.length === 0) return first
    let at = 0
    for (;;) {
      let child = 2 * at + 1
      if (child >= heap.length) break
      if (child + 1 < heap.length && isBefore(heap[child + 1] as Entry, heap[child] as Entry)) child += 1
      if (!isBefore(heap[child] as Entry, last)) break
      heap[at] = heap[child] as Entry
      at = child
    }
    heap[at] = last
    return first
  }
}

function isBefore(a: Entry, b: Entry): boolean {
  return a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order)
}

/**
 * Resolves when the event loop is empty. A simulation does no I/O, so once no immediate is queued (and with it no tick and
 * no promise job), nothing more runs by itself.
 */
export async function drain(): Promise<void> {
  for (let turns = 0; ; turns++) {
    await new Promise<void>((resolve) => setImmediate(resolve))
    if (!process.getActiveResourcesInfo().includes('Immediate')) return
    if (turns > MAX_TURNS_IN_A_MOMENT) throw new Livelock('the event loop never comes to rest')
  }
}
