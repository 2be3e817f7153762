import { type Backoff, backoffMs } from '../../core/async/backoff.ts'
import { type Loop, startLoop } from '../../core/async/loop.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import { type Meter, silentMeter } from '../../core/metrics/meter.ts'
import { type Random, uuidFrom } from '../../core/random.ts'
import { inSpan, noTracer, type Span, type Tracer } from '../../core/tracing.ts'
import type { Database, Transaction } from '../../db/database.ts'
import type { Node } from '../../db/nodes/node.ts'
import { WriteBatcher } from '../../db/write-batcher.ts'
import type { PushSender } from '../push-provider.ts'
import { type AttemptOutcome, attemptDelivery } from './attempt-delivery.ts'
import { DeliveryJudge, type MarkedDelivery } from './delivery-judge.ts'
import { DeliveryPause } from './delivery-pause.ts'
import {
  type DeliveryNote,
  type DueDelivery,
  leaseDueDeliveries,
  markDeliveries,
  nextDueAt,
  releaseParkedDeliveries,
} from './delivery-store.ts'

const MAX_IN_FLIGHT = 1_000
const MAX_LEASED = 250
const LEASE_MS = 60_000
const IDLE_MS = 5_000
const MAX_RELEASED = 1_000
/** Other nodes without credentials may park deliveries at any time. */
const RELEASE_EVERY_MS = 60_000
const MARK_RETRY: Backoff = { baseMs: 500, maxMs: 5_000 }
/** Check credentials later, so that startup stays fast. */
const CHECK_CREDENTIALS_AFTER_MS = 1_000

interface OutboxOptions {
  db: Database
  /** Holds the leases of this process. */
  node: Pick<Node, 'id' | 'isAlive'>
  clock: Clock
  random: Random
  log: Log
  meter?: Meter
  tracer?: Tracer
  /** One for each provider that has credentials. Deliveries of other providers are parked. */
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
  #senders: ReadonlyMap<string, PushSender>
  /** Replaced senders, which attempts in flight may still use. */
  readonly #retired = new Set<PushSender>()
  readonly #marks: WriteBatcher<MarkedDelivery, true>
  readonly #judge: DeliveryJudge
  readonly #pause: DeliveryPause
  readonly #stopping = new AbortController()
  readonly #loop: Loop
  #inFlight = 0
  #isLeasing = true
  /** The last round had no capacity left: lease more when enough attempts have ended. */
  #isFull = false
  #alarmAtMs = Number.POSITIVE_INFINITY
  #releaseAtMs = 0
  #idle: PromiseWithResolvers<void> | null = null

  constructor(options: OutboxOptions) {
    this.#options = options
    this.#meter = options.meter ?? silentMeter
    this.#senders = byProvider(options.senders)
    this.#pause = new DeliveryPause(options)
    this.#judge = new DeliveryJudge({ ...options, pause: this.#pause, onResumed: () => this.#loop.wake() })
    this.#marks = new WriteBatcher({
      commit: (marks) => this.#commit(marks),
      sizeOf: () => 1,
      maxBatch: 500,
      maxBatchBytes: 500,
      maxWaiting: MAX_IN_FLIGHT * 2,
      maxWaitingBytes: MAX_IN_FLIGHT * 2,
      commitsAtOnce: 1,
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
    if (this.#judge.platformFault !== null) return 'dropping'
    return this.#judge.deviceFault === null ? 'ok' : 'holding'
  }

  get inFlight(): number {
    return this.#inFlight
  }

  /** The problem that the operator should know; null if there is none. */
  get fault(): string | null {
    if (this.#senders.size === 0) return 'no push credentials: deliveries wait'
    const faults = [this.#pause.reason, this.#judge.platformFault, this.#judge.deviceFault]
    return faults.filter((fault) => fault !== null).join('; ') || null
  }

  wake(): void {
    this.#loop.wake()
  }

  /** Releases parked deliveries, starts to send due deliveries, then checks the credentials. */
  async start(): Promise<void> {
    this.wake()
    await this.#options.clock.sleep(CHECK_CREDENTIALS_AFTER_MS, this.#stopping.signal)
    await this.#checkCredentials()
  }

  /** Sends with new credentials from now on. Attempts in flight finish with the old ones, within their lease. */
  useSenders(senders: readonly PushSender[]): void {
    const replaced = [...this.#senders.values()]
    for (const sender of replaced) this.#retired.add(sender)
    this.#senders = byProvider(senders)
    void this.#checkCredentials().catch(() => {})
    this.wake()
    const { clock } = this.#options
    void clock.sleep(LEASE_MS, this.#stopping.signal).then(() => {
      if (!this.#stopping.signal.aborted) return this.#closeRetired(replaced)
    })
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
    await this.#closeRetired([...this.#retired])
    for (const sender of this.#senders.values()) await sender.close()
  }

  async #closeRetired(senders: readonly PushSender[]): Promise<void> {
    for (const sender of senders) {
      if (this.#retired.delete(sender)) await sender.close()
    }
  }

  async #round(): Promise<void> {
    const nowMs = this.#options.clock.now()
    // Without a live heartbeat, other nodes could take the new leases at once.
    if (!this.#isLeasing || !this.#options.node.isAlive) return
    await this.#releaseParked(nowMs)
    const isPaused = this.#pause.reason !== null && this.#senders.size > 0
    if (isPaused && nowMs < this.#pause.probeAtMs) return
    const slots = isPaused ? 1 - this.#inFlight : Math.min(MAX_LEASED, MAX_IN_FLIGHT - this.#inFlight)
    this.#isFull = slots <= 0
    if (this.#isFull) return
    const leased = await this.#lease({ slots, preferNew: isPaused, nowMs })
    if (leased === slots) this.#loop.wake()
    else if (leased === 0) await this.#setAlarm()
    if (leased === 0 && this.#pause.endsWithCredentials) void this.#checkCredentials()
  }

  /** Makes the parked deliveries of the providers that now have credentials due again. */
  async #releaseParked(nowMs: number): Promise<void> {
    const providers = [...this.#senders.keys()]
    if (providers.length === 0 || nowMs < this.#releaseAtMs) return
    const released = await releaseParkedDeliveries(this.#options.db, { providers, nowMs, limit: MAX_RELEASED })
    if (released === MAX_RELEASED) this.#loop.wake()
    else this.#releaseAtMs = nowMs + RELEASE_EVERY_MS
  }

  /** Begins an attempt for each leased delivery, and returns their number. */
  async #lease(wanted: { slots: number; preferNew: boolean; nowMs: number }): Promise<number> {
    const { db, node, random } = this.#options
    const { slots: limit, preferNew, nowMs } = wanted
    const lease = { token: uuidFrom(random), node: node.id, nowMs, untilMs: nowMs + LEASE_MS }
    // Probe with a new delivery: one that failed before may have a fault of its own.
    const fresh = preferNew ? await leaseDueDeliveries(db, { limit, onlyNew: true }, lease) : []
    const due = fresh.length > 0 ? fresh : await leaseDueDeliveries(db, { limit }, lease)
    for (const delivery of due) void this.#deliverInSpan(delivery, lease)
    return due.length
  }

  /** Detects wrong credentials before the first delivery needs them, and ends the pause when they are accepted. */
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

  #deliverInSpan(delivery: DueDelivery, lease: { token: string; untilMs: number }): Promise<void> {
    const { tracer = noTracer } = this.#options
    const span = tracer.start('push.send', {
      kind: 'client',
      parent: delivery.trace_context,
      links: [delivery.trace_context],
      attributes: { 'push.notification_id': delivery.notification_id, 'push.device_id': delivery.device_id },
    })
    return inSpan(tracer, span, () => this.#deliver(delivery, lease, span))
  }

  async #deliver(delivery: DueDelivery, lease: { token: string; untilMs: number }, span: Span): Promise<void> {
    this.#inFlight += 1
    try {
      const { clock } = this.#options
      const outcome = await attemptDelivery({ senders: this.#senders, clock, meter: this.#meter }, delivery)
      const verdict = labelOf(outcome, delivery)
      span.set({ 'push.verdict': verdict })
      this.#meter.count('push_verdicts_total', { verdict })
      await this.#mark(this.#judge.markOf({ delivery, outcome, leaseToken: lease.token }), lease.untilMs)
    } catch (error) {
      // Not marked: the lease expires, and the delivery is attempted again with the same tag.
      this.#options.log.warn({ notificationId: delivery.notification_id, err: error }, 'delivery.not_marked')
    } finally {
      this.#inFlight -= 1
      if (this.#inFlight === 0) this.#idle?.resolve()
      if (this.#isFull && this.#inFlight < MAX_IN_FLIGHT / 2) this.#loop.wake()
    }
  }

  /**
   * Retries the mark while the lease is valid, so that after a short outage of the database the message is not sent twice.
   */
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
    const { db, clock, onMarked } = this.#options
    const marked = await db.transaction(async (tx) => {
      // Read for each attempt to write: a retry may come a minute after the answer.
      const atMs = clock.now()
      const counted = await markDeliveries(tx, { marks, atMs })
      await onMarked(
        tx,
        counted.map((mark) => ({ ...mark, at: atMs })),
      )
      return counted
    })
    for (const { state } of marked) this.#meter.count('deliveries_total', { state })
    return marks.map(() => true)
  }
}

function byProvider(senders: readonly PushSender[]): ReadonlyMap<string, PushSender> {
  return new Map(senders.map((sender) => [sender.provider.name, sender]))
}

function labelOf(outcome: AttemptOutcome, { dry_run }: DueDelivery): string {
  if (typeof outcome === 'string') return outcome
  return outcome.kind === 'sent' && dry_run === 1 ? 'validated' : outcome.kind
}
