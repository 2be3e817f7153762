import { type Backoff, backoffMs } from '../../core/async/backoff.ts'
import { type Loop, startLoop } from '../../core/async/loop.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import { type Meter, silentMeter } from '../../core/metrics/meter.ts'
import { type Random, uuidFrom } from '../../core/random.ts'
import type { Database, Transaction } from '../../db/database.ts'
import { GroupCommit } from '../../db/group-commit.ts'
import type { PushMessage, PushSender } from '../push-message.ts'
import { type AttemptOutcome, DeliveryJudge, type MarkedDelivery } from './delivery-judge.ts'
import { type DeliveryNote, type DueDelivery, leaseDueDeliveries, markDeliveries, nextDueAt } from './delivery-store.ts'
import { endOfLife } from './delivery-times.ts'
import { Halt } from './halt.ts'
import { Shelf } from './parked-deliveries.ts'

const MAX_IN_FLIGHT = 1_000
const CLAIM = 250
const LEASE_MS = 60_000
const IDLE_MS = 5_000
const MARK_AGAIN: Backoff = { baseMs: 500, maxMs: 5_000 }
/** The start has better things to do than to wait for somebody's answer. */
const PROVE_AFTER_MS = 1_000

export interface OutboxOptions {
  db: Database
  clock: Clock
  random: Random
  log: Log
  meter?: Meter
  /** Null without credentials: deliveries wait. */
  sender: PushSender | null
  /** Part of the transaction that marks what became of deliveries. */
  onMarked: (tx: Transaction, notes: readonly DeliveryNote[]) => Promise<void>
}

/**
 * Sends what was committed to be sent: leases, sends, marks. A crash between sending and marking sends once more, under
 * the same tag, so that the device shows it once; nothing is ever lost. Idle, it costs one look every few seconds.
 */
export class Outbox {
  readonly #options: OutboxOptions
  readonly #meter: Meter
  readonly #marks: GroupCommit<MarkedDelivery, true>
  readonly #judge: DeliveryJudge
  readonly #halt: Halt
  readonly #shelf: Shelf
  readonly #stopping = new AbortController()
  /** Never given: what is under way is finished. One for all, as one for each costs the sender a listener. */
  readonly #breakOff = new AbortController().signal
  readonly #loop: Loop
  #inFlight = 0
  #isLeaving = false
  /** There was no place for what may be due: whoever ends makes room for it. */
  #isStarved = false
  #alarmAtMs = Number.POSITIVE_INFINITY
  #idle: PromiseWithResolvers<void> | null = null

  constructor(options: OutboxOptions) {
    this.#options = options
    this.#meter = options.meter ?? silentMeter
    this.#halt = new Halt(options)
    this.#judge = new DeliveryJudge({ ...options, halt: this.#halt, onResumed: () => this.#loop.wake() })
    this.#shelf = new Shelf({ ...options, meter: this.#meter })
    this.#marks = new GroupCommit({
      commit: (marks) => this.#commit(marks),
      sizeOf: () => 1,
      maxBatch: 500,
      maxBatchBytes: 500,
      maxWaiting: MAX_IN_FLIGHT * 2,
      maxWaitingBytes: MAX_IN_FLIGHT * 2,
      lanes: 1,
      onBatch: (size) => this.#meter.observe('group_commit_batch_size', size, { queue: 'deliveries' }),
    })
    this.#loop = startLoop({
      clock: options.clock,
      everyMs: IDLE_MS,
      run: () => this.#round(),
      onError: (error) => options.log.warn({ err: error }, 'outbox.failed'),
    })
  }

  /**
   * halted: nothing can be delivered until somebody mends it. dropping: one platform cannot be reached until somebody
   * mends it. holding: delivering, but the provider is not believed that devices are dead.
   */
  get state(): 'ok' | 'no_credentials' | 'halted' | 'dropping' | 'holding' {
    if (this.#options.sender === null) return 'no_credentials'
    if (this.#halt.reason !== null) return 'halted'
    if (this.#judge.platformTrouble !== null) return 'dropping'
    return this.#judge.deviceTrouble === null ? 'ok' : 'holding'
  }

  get inFlight(): number {
    return this.#inFlight
  }

  /** What an operator should know; null when all is well. */
  get trouble(): string | null {
    if (this.#options.sender === null) return 'no push credentials: deliveries wait'
    const troubles = [this.#halt.reason, this.#judge.platformTrouble, this.#judge.deviceTrouble]
    return troubles.filter((trouble) => trouble !== null).join('; ') || null
  }

  wake(): void {
    this.#loop.wake()
  }

  /** Looks at once, also for what has waited for credentials that are there now, and tries these before they are needed. */
  async start(): Promise<void> {
    this.wake()
    await this.#options.clock.sleep(PROVE_AFTER_MS, this.#stopping.signal)
    await this.#prove()
  }

  /** Takes nothing more; what is under way goes on. */
  leave(): void {
    this.#isLeaving = true
  }

  /** Takes nothing more, finishes what is under way, marks it. */
  async close(): Promise<void> {
    this.leave()
    this.#stopping.abort()
    await this.#loop.stop()
    if (this.#inFlight > 0) {
      this.#idle = Promise.withResolvers()
      await this.#idle.promise
    }
    await this.#marks.drain()
    await this.#options.sender?.close()
  }

  async #round(): Promise<void> {
    const { db, clock, random, sender } = this.#options
    const nowMs = clock.now()
    if (this.#isLeaving) return
    if (await (sender === null ? this.#shelf.fill(nowMs) : this.#shelf.empty(nowMs))) this.#loop.wake()
    if (sender === null) return
    if (nowMs < this.#halt.untilMs) return
    const isHalted = this.#halt.reason !== null
    const places = isHalted ? 1 - this.#inFlight : Math.min(CLAIM, MAX_IN_FLIGHT - this.#inFlight)
    this.#isStarved = places <= 0
    if (this.#isStarved) return
    const lease = { token: uuidFrom(random), nowMs, untilMs: nowMs + LEASE_MS }
    // The ones that failed before must not be all that is tried while nothing gets through: it may be their own fault.
    const fresh = isHalted ? await leaseDueDeliveries(db, { limit: places, onlyNew: true }, lease) : []
    const due = fresh.length > 0 ? fresh : await leaseDueDeliveries(db, { limit: places }, lease)
    for (const delivery of due) void this.#deliver(sender, delivery, lease)
    if (due.length === places) this.#loop.wake()
    else if (due.length === 0) await this.#setAlarm()
    if (due.length === 0 && this.#halt.wantsAccessToken) void this.#prove()
  }

  /** Wrong credentials show before the first delivery needs them, and so does that they were mended. */
  async #prove(): Promise<void> {
    if (this.#isLeaving || !this.#options.sender?.prove) return
    this.#halt.prolong()
    const fault = await this.#options.sender.prove()
    if (fault !== null) this.#halt.begin(fault, 'access_token')
    else if (this.#halt.endBy('access_token')) this.#loop.wake()
  }

  /** For a retry that is due sooner than the next look of an idle outbox. */
  async #setAlarm(): Promise<void> {
    const { db, clock } = this.#options
    const nowMs = clock.now()
    const dueAtMs = await nextDueAt(db, nowMs)
    if (dueAtMs === null || dueAtMs >= Math.min(nowMs + IDLE_MS, this.#alarmAtMs)) return
    this.#alarmAtMs = dueAtMs
    void clock.sleep(dueAtMs - nowMs, this.#stopping.signal).then(() => {
      this.#alarmAtMs = Number.POSITIVE_INFINITY
      this.#loop.wake()
    })
  }

  async #deliver(sender: PushSender, delivery: DueDelivery, lease: { token: string; untilMs: number }): Promise<void> {
    this.#inFlight += 1
    try {
      const verdict = await this.#attempt(sender, delivery)
      this.#meter.count('push_verdicts_total', { verdict: wordFor(verdict, delivery) })
      await this.#mark(this.#judge.markOf({ delivery, verdict, leaseToken: lease.token }), lease.untilMs)
    } catch (error) {
      // Not marked: the lease runs out, and the delivery is attempted again under the same tag.
      this.#options.log.warn({ notificationId: delivery.notification_id, err: error }, 'delivery.not_marked')
    } finally {
      this.#inFlight -= 1
      if (this.#inFlight === 0) this.#idle?.resolve()
      if (this.#isStarved && this.#inFlight < MAX_IN_FLIGHT / 2) this.#loop.wake()
    }
  }

  /** A database that is away for a moment is no reason to send again: the mark is repeated for as long as the lease holds. */
  async #mark(mark: MarkedDelivery, untilMs: number): Promise<void> {
    const { clock, random } = this.#options
    for (let failures = 0; ; failures++) {
      try {
        await this.#marks.submit(mark)
        return
      } catch (error) {
        const pauseMs = backoffMs(MARK_AGAIN, failures, random)
        if (this.#stopping.signal.aborted || clock.now() + pauseMs >= untilMs) throw error
        await clock.sleep(pauseMs, this.#stopping.signal)
      }
    }
  }

  async #attempt(sender: PushSender, delivery: DueDelivery): Promise<AttemptOutcome> {
    if (delivery.token === null || delivery.disabled_at !== null) return 'gone'
    const { clock } = this.#options
    const sinceMs = clock.now()
    if (sinceMs >= endOfLife(delivery)) return 'expired'
    const message = toMessage(delivery, { token: delivery.token, nowMs: sinceMs })
    const verdict = await sender.send(message, this.#breakOff)
    this.#meter.observe('push_send_duration_seconds', (clock.now() - sinceMs) / 1_000)
    return verdict
  }

  async #commit(marks: MarkedDelivery[]): Promise<true[]> {
    const { db, onMarked } = this.#options
    const marked = await db.transaction(async (tx) => {
      const counted = await markDeliveries(tx, marks)
      await onMarked(tx, counted)
      return counted
    })
    for (const { state } of marked) this.#meter.count('deliveries_total', { state })
    return marks.map(() => true)
  }
}

function wordFor(verdict: AttemptOutcome, { dry_run }: DueDelivery): string {
  if (typeof verdict === 'string') return verdict
  return verdict.kind === 'sent' && dry_run === 1 ? 'validated' : verdict.kind
}

function toMessage(delivery: DueDelivery, { token, nowMs }: { token: string; nowMs: number }): PushMessage {
  const elapsedSeconds = Math.floor((nowMs - delivery.created_at) / 1000)
  return {
    token,
    title: delivery.title,
    body: delivery.body,
    data: JSON.parse(delivery.data) as Record<string, string>,
    tag: delivery.job_id ?? delivery.notification_id,
    link: delivery.link,
    priority: delivery.priority,
    ttlSeconds: Math.max(0, delivery.ttl_seconds - elapsedSeconds),
    dryRun: delivery.dry_run === 1,
  }
}
