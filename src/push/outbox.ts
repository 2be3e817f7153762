import { type Backoff, backoffMs } from '../core/backoff.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import { type Loop, startLoop } from '../core/loop.ts'
import { type Meter, silentMeter } from '../core/meter.ts'
import { type Random, uuidFrom } from '../core/random.ts'
import type { Database, Transaction } from '../db/database.ts'
import { GroupCommit } from '../db/group-commit.ts'
import {
  type DeliveryMark,
  type DeliveryState,
  type DueDelivery,
  leaseDueDeliveries,
  markDeliveries,
  nextDueAt,
  shelveDueDeliveries,
  unshelveDeliveries,
} from './delivery-store.ts'
import { DisableBreaker } from './disable-breaker.ts'
import type { PushMessage, PushSender, PushVerdict } from './push-message.ts'

const MAX_IN_FLIGHT = 1_000
const CLAIM = 250
const LEASE_MS = 60_000
const IDLE_MS = 5_000
/** The jitter adds to the half of it: never sooner than 10 s, 20 s, 40 s, … */
const RETRY: Backoff = { baseMs: 20_000, maxMs: 10 * 60_000 }
const GIVE_UP_AFTER_MS = 60 * 60_000
/** Even what is meant for now or never has to get out of the door. */
const MIN_LIFE_MS = 10_000
const MARK_AGAIN: Backoff = { baseMs: 500, maxMs: 5_000 }
/** Nodes that have no credentials yet may shelve deliveries at any time. */
const UNSHELVE_EVERY_MS = 60_000
const SHELF = 1_000
/** While nothing can be delivered at all, one attempt now and then finds out when that is mended. */
const HALT_MS = 30_000

export interface OutboxOptions {
  db: Database
  clock: Clock
  random: Random
  log: Log
  meter?: Meter
  /** Null without credentials: deliveries wait. */
  sender: PushSender | null
  /** Part of the transaction that marks what became of deliveries. */
  onMarked: (tx: Transaction, marks: readonly MarkedDelivery[]) => Promise<void>
}

export interface MarkedDelivery extends DeliveryMark {
  job_id: string | null
  attempts: number
}

/**
 * Sends what was committed to be sent: leases, sends, marks. A crash between sending and marking sends once more, under
 * the same tag, so that the device shows it once; nothing is ever lost. Idle, it costs one look every few seconds.
 */
export class Outbox {
  readonly #options: OutboxOptions
  readonly #meter: Meter
  readonly #marks: GroupCommit<MarkedDelivery, true>
  readonly #disabling: DisableBreaker
  readonly #stopping = new AbortController()
  /** Never given: what is under way is finished. One for all, as one for each costs the sender a listener. */
  readonly #breakOff = new AbortController().signal
  readonly #loop: Loop
  #inFlight = 0
  #haltedUntilMs = 0
  #haltReason: string | null = null
  #unshelveAtMs = 0
  /** There was no place for what may be due: whoever ends makes room for it. */
  #isStarved = false
  #alarmAtMs = Number.POSITIVE_INFINITY
  #idle: PromiseWithResolvers<void> | null = null

  constructor(options: OutboxOptions) {
    this.#options = options
    this.#meter = options.meter ?? silentMeter
    this.#disabling = new DisableBreaker(options.clock)
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

  /** halted: nothing can be delivered until somebody mends it. holding: delivering, but no device is disabled. */
  get state(): 'ok' | 'no_credentials' | 'halted' | 'holding' {
    if (this.#options.sender === null) return 'no_credentials'
    if (this.#haltReason !== null) return 'halted'
    return this.#disabling.trouble === null ? 'ok' : 'holding'
  }

  get inFlight(): number {
    return this.#inFlight
  }

  /** Why nothing is being delivered, when nothing is; null when all is well. */
  get trouble(): string | null {
    if (this.#options.sender === null) return 'no push credentials: deliveries wait'
    return this.#haltReason ?? this.#disabling.trouble
  }

  wake(): void {
    this.#loop.wake()
  }

  /** Looks at once, also for what has waited for credentials that are there now. */
  async start(): Promise<void> {
    this.wake()
  }

  /** Takes nothing more, finishes what is under way, marks it. */
  async close(): Promise<void> {
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
    if (this.#stopping.signal.aborted) return
    if (sender === null) {
      if (await shelveDueDeliveries(db, { nowMs, limit: SHELF })) this.#loop.wake()
      return
    }
    if (nowMs >= this.#unshelveAtMs) await this.#unshelve(nowMs)
    if (nowMs < this.#haltedUntilMs) return
    const places = this.#haltReason === null ? Math.min(CLAIM, MAX_IN_FLIGHT - this.#inFlight) : 1 - this.#inFlight
    this.#isStarved = places <= 0
    if (this.#isStarved) return
    const lease = { token: uuidFrom(random), nowMs, untilMs: nowMs + LEASE_MS }
    const due = await leaseDueDeliveries(db, places, lease)
    for (const delivery of due) void this.#deliver(sender, delivery, lease)
    if (due.length === places) this.#loop.wake()
    else if (due.length === 0) await this.#setAlarm()
  }

  async #unshelve(nowMs: number): Promise<void> {
    const isMore = await unshelveDeliveries(this.#options.db, { nowMs, limit: SHELF })
    if (isMore) this.#loop.wake()
    else this.#unshelveAtMs = nowMs + UNSHELVE_EVERY_MS
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
      this.#meter.count('push_verdicts_total', { verdict: typeof verdict === 'string' ? verdict : verdict.kind })
      await this.#mark(this.#markOf({ delivery, verdict, leaseToken: lease.token }), lease.untilMs)
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

  async #attempt(sender: PushSender, delivery: DueDelivery): Promise<PushVerdict | 'expired' | 'gone'> {
    if (delivery.token === null || delivery.disabled_at !== null) return 'gone'
    const { clock } = this.#options
    const sinceMs = clock.now()
    if (sinceMs >= endOfLife(delivery)) return 'expired'
    const message = toMessage(delivery, { token: delivery.token, nowMs: sinceMs })
    const verdict = await sender.send(message, this.#breakOff)
    this.#meter.observe('push_send_duration_seconds', (clock.now() - sinceMs) / 1_000)
    return verdict
  }

  #markOf(attempt: {
    delivery: DueDelivery
    verdict: PushVerdict | 'expired' | 'gone'
    leaseToken: string
  }): MarkedDelivery {
    const { delivery, verdict, leaseToken } = attempt
    const mark = (state: DeliveryState, rest: Partial<MarkedDelivery> = {}): MarkedDelivery => ({
      notification_id: delivery.notification_id,
      device_id: delivery.device_id,
      lease_token: leaseToken,
      job_id: delivery.job_id,
      attempts: delivery.attempts,
      state,
      next_attempt_at: null,
      provider_message_id: null,
      last_error: null,
      at: this.#options.clock.now(),
      disable_reason: null,
      seen_at: delivery.seen_at,
      ...rest,
    })
    if (verdict === 'expired') return mark('expired', { last_error: 'not delivered in time' })
    if (verdict === 'gone') return mark('disabled', { last_error: 'the device is gone' })
    if (verdict.kind === 'retry') this.#stayHalted()
    else if (verdict.kind !== 'halt') this.#resume()
    this.#disabling.note(verdict)
    switch (verdict.kind) {
      case 'sent':
        return mark('sent', { provider_message_id: verdict.messageId })
      case 'disable':
        return this.#disabling.allows()
          ? mark('disabled', { last_error: verdict.reason, disable_reason: verdict.reason })
          : mark('failed', { last_error: `${verdict.reason}, not believed: too many devices at once` })
      case 'drop':
        if (verdict.alert) this.#options.log.error({ reason: verdict.reason }, 'delivery.dropped')
        return mark('failed', { last_error: verdict.reason })
      case 'retry': {
        const retryAtMs = this.#retryAt(delivery, verdict.afterMs)
        const isTooLate = retryAtMs >= giveUpAt(delivery)
        return mark(isTooLate ? 'expired' : 'pending', {
          last_error: verdict.reason,
          next_attempt_at: isTooLate ? null : retryAtMs,
        })
      }
      case 'halt':
        this.#halt(verdict.reason)
        return mark('pending', { last_error: verdict.reason, next_attempt_at: this.#haltedUntilMs })
    }
  }

  #retryAt({ attempts }: DueDelivery, afterMs: number | null): number {
    const { clock, random } = this.#options
    const pauseMs = Math.max(afterMs ?? 0, backoffMs(RETRY, attempts - 1, random))
    return clock.now() + Math.min(pauseMs, RETRY.maxMs)
  }

  #halt(reason: string): void {
    if (this.#haltReason === null) this.#options.log.error({ reason }, 'outbox.halted')
    this.#haltReason = reason
    this.#stayHalted()
  }

  /** A probe that got no answer has found nothing out. */
  #stayHalted(): void {
    if (this.#haltReason !== null) this.#haltedUntilMs = this.#options.clock.now() + HALT_MS
  }

  #resume(): void {
    if (this.#haltReason === null) return
    this.#options.log.info({}, 'outbox.resumed')
    this.#haltReason = null
    this.#haltedUntilMs = 0
    this.#loop.wake()
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

/** Trying again and again ends here; what could not be tried at all, for want of credentials say, may live longer. */
function giveUpAt({ created_at, ttl_seconds }: DueDelivery): number {
  return created_at + Math.min(GIVE_UP_AFTER_MS, ttl_seconds * 1000)
}

function endOfLife({ created_at, ttl_seconds }: DueDelivery): number {
  return created_at + Math.max(MIN_LIFE_MS, ttl_seconds * 1000)
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
