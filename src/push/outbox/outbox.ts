import { type Backoff, backoffMs } from '../../core/async/backoff.ts'
import { type Loop, startLoop } from '../../core/async/loop.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import { type Meter, silentMeter } from '../../core/metrics/meter.ts'
import { type Random, uuidFrom } from '../../core/random.ts'
import type { Database, Transaction } from '../../db/database.ts'
import { GroupCommit } from '../../db/group-commit.ts'
import type { PushSender } from '../push-provider.ts'
import { type AttemptOutcome, attemptDelivery } from './attempt-delivery.ts'
import { DeliveryJudge, type MarkedDelivery } from './delivery-judge.ts'
import { DeliveryPause } from './delivery-pause.ts'
import { type DeliveryNote, type DueDelivery, leaseDueDeliveries, markDeliveries, nextDueAt } from './delivery-store.ts'
import { ParkedDeliveries } from './parked-deliveries.ts'

const MAX_IN_FLIGHT = 1_000
const MAX_LEASED = 250
const LEASE_MS = 60_000
const IDLE_MS = 5_000
const MARK_RETRY: Backoff = { baseMs: 500, maxMs: 5_000 }
/** Check credentials later, so that startup stays fast. */
const CHECK_CREDENTIALS_AFTER_MS = 1_000

export interface OutboxOptions {
  db: Database
  clock: Clock
  random: Random
  log: Log
  meter?: Meter
  /** One for each provider that has credentials. Deliveries of other providers wait. */
  senders: readonly PushSender[]
  /** Runs in the transaction that marks deliveries. */
  onMarked: (tx: Transaction, notes: readonly DeliveryNote[]) => Promise<void>
}

/**
 * Sends every committed delivery: leases it, sends it, marks it. No delivery is lost. After a crash between sending and
 * marking, the delivery is sent again under the same tag, so that the device shows it once.
 */
export class Outbox {
  readonly #options: OutboxOptions
  readonly #meter: Meter
  readonly #senders: ReadonlyMap<string, PushSender>
  readonly #marks: GroupCommit<MarkedDelivery, true>
  readonly #judge: DeliveryJudge
  readonly #pause: DeliveryPause
  readonly #parked: ParkedDeliveries
  readonly #stopping = new AbortController()
  readonly #loop: Loop
  #inFlight = 0
  #isLeasing = true
  /** The last round had no capacity left: lease more when enough attempts have ended. */
  #isFull = false
  #alarmAtMs = Number.POSITIVE_INFINITY
  #idle: PromiseWithResolvers<void> | null = null

  constructor(options: OutboxOptions) {
    this.#options = options
    this.#meter = options.meter ?? silentMeter
    this.#senders = new Map(options.senders.map((sender) => [sender.provider.name, sender]))
    this.#pause = new DeliveryPause(options)
    this.#judge = new DeliveryJudge({ ...options, pause: this.#pause, onResumed: () => this.#loop.wake() })
    this.#parked = new ParkedDeliveries({ ...options, meter: this.#meter })
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
   * halted: no message can be delivered until the operator fixes the cause. dropping: messages to one platform fail until
   * the operator fixes the cause. holding: messages are delivered, but reports of dead devices are not trusted.
   */
  get state(): 'ok' | 'no_credentials' | 'halted' | 'dropping' | 'holding' {
    if (this.#senders.size === 0) return 'no_credentials'
    if (this.#pause.reason !== null) return 'halted'
    if (this.#judge.platformTrouble !== null) return 'dropping'
    return this.#judge.deviceTrouble === null ? 'ok' : 'holding'
  }

  get inFlight(): number {
    return this.#inFlight
  }

  /** What an operator should know; null when there is no problem. */
  get trouble(): string | null {
    if (this.#senders.size === 0) return 'no push credentials: deliveries wait'
    const troubles = [this.#pause.reason, this.#judge.platformTrouble, this.#judge.deviceTrouble]
    return troubles.filter((trouble) => trouble !== null).join('; ') || null
  }

  wake(): void {
    this.#loop.wake()
  }

  /** Starts with what is due, and with what was parked before there were credentials. Then checks the credentials. */
  async start(): Promise<void> {
    this.wake()
    await this.#options.clock.sleep(CHECK_CREDENTIALS_AFTER_MS, this.#stopping.signal)
    await this.#checkCredentials()
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
    for (const sender of this.#senders.values()) await sender.close()
  }

  async #round(): Promise<void> {
    const nowMs = this.#options.clock.now()
    if (!this.#isLeasing) return
    if (this.#senders.size === 0) {
      if (await this.#parked.park(nowMs)) this.#loop.wake()
      return
    }
    if (await this.#parked.release([...this.#senders.keys()], nowMs)) this.#loop.wake()
    if (nowMs < this.#pause.probeAtMs) return
    const isPaused = this.#pause.reason !== null
    const slots = isPaused ? 1 - this.#inFlight : Math.min(MAX_LEASED, MAX_IN_FLIGHT - this.#inFlight)
    this.#isFull = slots <= 0
    if (this.#isFull) return
    const leased = await this.#lease({ slots, preferNew: isPaused, nowMs })
    if (leased === slots) this.#loop.wake()
    else if (leased === 0) await this.#setAlarm()
    if (leased === 0 && this.#pause.endsWithCredentials) void this.#checkCredentials()
  }

  /** Begins an attempt for each leased delivery, and says how many there are. */
  async #lease(wanted: { slots: number; preferNew: boolean; nowMs: number }): Promise<number> {
    const { db, random } = this.#options
    const { slots: limit, preferNew, nowMs } = wanted
    const lease = { token: uuidFrom(random), nowMs, untilMs: nowMs + LEASE_MS }
    // A probe with a delivery that failed before proves little: the fault may be its own.
    const fresh = preferNew ? await leaseDueDeliveries(db, { limit, onlyNew: true }, lease) : []
    const due = fresh.length > 0 ? fresh : await leaseDueDeliveries(db, { limit }, lease)
    for (const delivery of due) void this.#deliver(delivery, lease)
    return due.length
  }

  /** Shows wrong credentials before the first delivery needs them, and ends the pause once they are accepted. */
  async #checkCredentials(): Promise<void> {
    if (!this.#isLeasing || this.#senders.size === 0) return
    this.#pause.extend()
    const faults = await Promise.all([...this.#senders.values()].map((sender) => sender.checkCredentials()))
    const fault = faults.find((one) => one !== null) ?? null
    if (fault !== null) this.#pause.begin(fault, 'credentials')
    else if (this.#pause.endWith('credentials')) this.#loop.wake()
  }

  /** Wakes the loop for a retry that is due before the next round of an idle outbox. */
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

  async #deliver(delivery: DueDelivery, lease: { token: string; untilMs: number }): Promise<void> {
    this.#inFlight += 1
    try {
      const { clock } = this.#options
      const outcome = await attemptDelivery({ senders: this.#senders, clock, meter: this.#meter }, delivery)
      this.#meter.count('push_verdicts_total', { verdict: labelOf(outcome, delivery) })
      await this.#mark(this.#judge.markOf({ delivery, outcome, leaseToken: lease.token }), lease.untilMs)
    } catch (error) {
      // Not marked: the lease runs out, and the delivery is attempted again under the same tag.
      this.#options.log.warn({ notificationId: delivery.notification_id, err: error }, 'delivery.not_marked')
    } finally {
      this.#inFlight -= 1
      if (this.#inFlight === 0) this.#idle?.resolve()
      if (this.#isFull && this.#inFlight < MAX_IN_FLIGHT / 2) this.#loop.wake()
    }
  }

  /** Repeats the mark while the lease holds, so that a short outage of the database does not send the message twice. */
  async #mark(mark: MarkedDelivery, untilMs: number): Promise<void> {
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

function labelOf(outcome: AttemptOutcome, { dry_run }: DueDelivery): string {
  if (typeof outcome === 'string') return outcome
  return outcome.kind === 'sent' && dry_run === 1 ? 'validated' : outcome.kind
}
