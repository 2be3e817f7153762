import { type Backoff, backoffMs } from '../core/async/backoff.ts'
import { type Loop, startLoop } from '../core/async/loop.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import { type Meter, silentMeter } from '../core/metrics/meter.ts'
import { type Random, uuidFrom } from '../core/random.ts'
import { inSpan, noTracer, type Span, type SpanOptions, type Tracer } from '../core/tracing.ts'
import type { Database, Transaction } from '../db/database.ts'
import type { Node } from '../db/nodes/node.ts'
import { WriteBatcher } from '../db/write-batcher.ts'
import type { DeliveryLease } from './delivery-table.ts'

/** An attempt always ends within this time. */
export const LEASE_MS = 60_000
const IDLE_MS = 5_000
const MARK_RETRY: Backoff = { baseMs: 500, maxMs: 5_000 }
const MAX_BATCH = 500
const MAX_BATCH_BYTES = 1024 * 1024

/** One kind of delivery: where its rows are, how one is sent, and what its outcome changes. */
export interface Channel<Delivery extends object, Mark extends { state: string }> {
  readonly name: 'push' | 'webhook'
  /** How many deliveries a process sends at the same time. */
  readonly maxInFlight: number
  /** Work at the beginning of a round. True: there is more, so the next round follows at once. */
  prepare?(nowMs: number): Promise<boolean>
  /** How many deliveries may be leased now. Absent: all that `maxInFlight` allows. Null: none before the next wake-up. */
  slots?(inFlight: number, nowMs: number): number | null
  /** Leases at most `limit` due deliveries, with everything that is needed to send them. */
  lease(limit: number, lease: DeliveryLease): Promise<Delivery[]>
  /** Names the delivery in the log. */
  about(delivery: Delivery): Readonly<Record<string, string>>
  span(delivery: Delivery): { name: string; options: SpanOptions }
  /** Sends the delivery and says what to write. It rejects only if nothing can be written: the lease then expires. */
  attempt(delivery: Delivery, context: { leaseToken: string; span: Span }): Promise<Mark>
  /** Writes the marks whose lease is still valid, and returns them. */
  mark(tx: Transaction, wanted: { marks: readonly Mark[]; atMs: number }): Promise<Mark[]>
  /** Called once the marks are committed. */
  onCommitted?(marks: readonly Mark[]): void
  /** Bytes that a mark takes in memory until it is written. */
  sizeOf(mark: Mark): number
  nextDueAt(nowMs: number): Promise<number | null>
  /** Called when an attempt has ended. True: the channel can lease more because of it. */
  ended?(delivery: Delivery): boolean
  /** Called after a round that leased nothing. */
  onIdle?(): void
}

export interface WorkerOptions {
  db: Database
  /** Holds the leases of this process. */
  node: Pick<Node, 'id' | 'isAlive'>
  clock: Clock
  random: Random
  log: Log
  meter?: Meter
  tracer?: Tracer
}

/**
 * Sends every committed delivery of one channel: leases it, sends it, marks it. No delivery is lost. After a crash between
 * sending and marking, the delivery is sent again. Channels have a worker each, so that a fault of one stops no other.
 */
export class DeliveryWorker<Delivery extends object, Mark extends { state: string }> {
  readonly #options: WorkerOptions
  readonly #channel: Channel<Delivery, Mark>
  readonly #meter: Meter
  readonly #marks: WriteBatcher<Mark, true>
  readonly #stopping = new AbortController()
  readonly #loop: Loop
  #inFlight = 0
  #isLeasing = true
  /** The last round had no capacity left: lease more when enough attempts have ended. */
  #isFull = false
  #alarmAtMs = Number.POSITIVE_INFINITY
  #idle: PromiseWithResolvers<void> | null = null

  constructor(options: WorkerOptions, channel: Channel<Delivery, Mark>) {
    this.#options = options
    this.#channel = channel
    this.#meter = options.meter ?? silentMeter
    this.#marks = new WriteBatcher({
      commit: (marks) => this.#commit(marks),
      sizeOf: (mark) => channel.sizeOf(mark),
      maxBatch: MAX_BATCH,
      maxBatchBytes: MAX_BATCH_BYTES,
      maxWaiting: channel.maxInFlight * 2,
      maxWaitingBytes: 16 * MAX_BATCH_BYTES,
      commitsAtOnce: 1,
      onBatch: (size) => this.#meter.observe('group_commit_batch_size', size, { queue: `${channel.name}_deliveries` }),
    })
    this.#loop = startLoop({
      clock: options.clock,
      everyMs: IDLE_MS,
      run: () => this.#round(),
      onError: (error) => options.log.warn({ channel: channel.name, err: error }, 'outbox.failed'),
    })
  }

  get inFlight(): number {
    return this.#inFlight
  }

  get isLeasing(): boolean {
    return this.#isLeasing
  }

  /** Aborted when the worker closes. */
  get stopping(): AbortSignal {
    return this.#stopping.signal
  }

  wake(): void {
    this.#loop.wake()
  }

  /** Leases no more deliveries; attempts in flight continue. */
  stopLeasing(): void {
    this.#isLeasing = false
  }

  /** Leases no more deliveries, waits for attempts in flight and marks them. */
  async close(): Promise<void> {
    this.stopLeasing()
    this.#stopping.abort()
    await this.#loop.stop()
    if (this.#inFlight > 0) {
      this.#idle = Promise.withResolvers()
      await this.#idle.promise
    }
    await this.#marks.drain()
  }

  async #round(): Promise<void> {
    const { clock, node } = this.#options
    const channel = this.#channel
    const nowMs = clock.now()
    // Without a live heartbeat, other nodes could take the new leases at once.
    if (!this.#isLeasing || !node.isAlive) return
    if (await channel.prepare?.(nowMs)) this.#loop.wake()
    const slots = channel.slots ? channel.slots(this.#inFlight, nowMs) : channel.maxInFlight - this.#inFlight
    if (slots === null) return
    this.#isFull = slots <= 0
    if (this.#isFull) return
    const leased = await this.#lease(slots, nowMs)
    if (leased === slots) this.#loop.wake()
    else if (leased === 0) await this.#setAlarm()
    if (leased === 0) channel.onIdle?.()
  }

  /** Begins an attempt for each leased delivery, and returns their number. */
  async #lease(limit: number, nowMs: number): Promise<number> {
    const { node, random } = this.#options
    const lease = { token: uuidFrom(random), node: node.id, nowMs, untilMs: nowMs + LEASE_MS }
    const due = await this.#channel.lease(limit, lease)
    for (const delivery of due) void this.#deliverInSpan(delivery, lease)
    return due.length
  }

  /** Wakes the loop for a retry that is due before the next round of an idle worker. */
  async #setAlarm(): Promise<void> {
    const { clock } = this.#options
    const nowMs = clock.now()
    const dueAtMs = await this.#channel.nextDueAt(nowMs)
    if (dueAtMs === null || dueAtMs >= Math.min(nowMs + IDLE_MS, this.#alarmAtMs)) return
    this.#alarmAtMs = dueAtMs
    void clock.sleep(dueAtMs - nowMs, this.#stopping.signal).then(() => {
      this.#alarmAtMs = Number.POSITIVE_INFINITY
      this.#loop.wake()
    })
  }

  #deliverInSpan(delivery: Delivery, lease: DeliveryLease): Promise<void> {
    const { tracer = noTracer } = this.#options
    const { name, options } = this.#channel.span(delivery)
    const span = tracer.start(name, options)
    return inSpan(tracer, span, () => this.#deliver(delivery, lease, span))
  }

  async #deliver(delivery: Delivery, lease: DeliveryLease, span: Span): Promise<void> {
    const channel = this.#channel
    this.#inFlight += 1
    try {
      const mark = await channel.attempt(delivery, { leaseToken: lease.token, span })
      await this.#mark(mark, lease.untilMs)
    } catch (error) {
      // Not marked: the lease expires, and the delivery is attempted again.
      this.#options.log.warn({ ...channel.about(delivery), err: error }, 'delivery.not_marked')
    } finally {
      this.#inFlight -= 1
      if (this.#inFlight === 0) this.#idle?.resolve()
      const wantsMore = channel.ended?.(delivery) ?? false
      if (wantsMore || (this.#isFull && this.#inFlight < channel.maxInFlight / 2)) this.#loop.wake()
    }
  }

  /**
   * Retries the mark while the lease is valid, so that after a short outage of the database the message is not sent twice.
   */
  async #mark(mark: Mark, untilMs: number): Promise<void> {
    const { clock, random } = this.#options
    for (let failures = 0; ; failures++) {
      try {
        await this.#marks.submit(mark)
        return
      } catch (error) {
        const pauseMs = backoffMs(MARK_RETRY, failures, random)
        if (this.#stopping.signal.aborted || clock.now() + pauseMs >= untilMs) throw error
        await clock.sleep(pauseMs, this.#stopping.signal)
      }
    }
  }

  async #commit(marks: Mark[]): Promise<true[]> {
    const { db, clock } = this.#options
    const channel = this.#channel
    // Read for each attempt to write: a retry may come a minute after the answer.
    const marked = await db.transaction((tx) => channel.mark(tx, { marks, atMs: clock.now() }))
    channel.onCommitted?.(marked)
    for (const { state } of marked) this.#meter.count('deliveries_total', { channel: channel.name, state })
    return marks.map(() => true)
  }
}
