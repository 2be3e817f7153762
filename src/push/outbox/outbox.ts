import { type Meter, silentMeter } from '../../core/metrics/meter.ts'
import type { Span } from '../../core/tracing.ts'
import type { Transaction } from '../../db/database.ts'
import { DeliveryPause } from '../../deliveries/delivery-pause.ts'
import { type DeliveryLease, nextDueAt } from '../../deliveries/delivery-table.ts'
import { type Channel, DeliveryWorker, LEASE_MS, type WorkerOptions } from '../../deliveries/delivery-worker.ts'
import type { PushSender } from '../push-provider.ts'
import { type AttemptOutcome, attemptDelivery } from './attempt-delivery.ts'
import { DeliveryJudge, type MarkedDelivery } from './delivery-judge.ts'
import {
  DELIVERIES,
  type DeliveryNote,
  type DueDelivery,
  leaseDueDeliveries,
  markDeliveries,
  releaseParkedDeliveries,
} from './delivery-store.ts'

const MAX_LEASED = 250
const MAX_RELEASED = 1_000
/** Other nodes without credentials may park deliveries at any time. */
const RELEASE_EVERY_MS = 60_000
/** Check credentials later, so that startup stays fast. */
const CHECK_CREDENTIALS_AFTER_MS = 1_000

/**
 * halted: no message can be delivered until the operator fixes the cause. dropping: messages to one platform fail until
 * the operator fixes the cause. holding: messages are delivered, but reports of dead devices are not trusted.
 */
export const PUSH_STATES = ['ok', 'no_credentials', 'halted', 'dropping', 'holding'] as const
export type PushState = (typeof PUSH_STATES)[number]

interface OutboxOptions extends WorkerOptions {
  /** One for each provider that has credentials. Deliveries of other providers are parked. */
  senders: readonly PushSender[]
  /** Runs in the transaction that marks deliveries. */
  onMarked: (tx: Transaction, notes: readonly DeliveryNote[]) => Promise<void>
}

/**
 * The channel of pushes. After a crash between sending and marking, a push is sent again under the same tag, so that the
 * device shows it once.
 */
export class Outbox implements Channel<DueDelivery, MarkedDelivery> {
  readonly name = 'push'
  readonly maxInFlight = 1_000
  readonly #options: OutboxOptions
  readonly #meter: Meter
  readonly #worker: DeliveryWorker<DueDelivery, MarkedDelivery>
  #senders: ReadonlyMap<string, PushSender>
  /** Replaced senders, which attempts in flight may still use. */
  readonly #retired = new Set<PushSender>()
  readonly #judge: DeliveryJudge
  readonly #pause: DeliveryPause
  #releaseAtMs = 0

  constructor(options: OutboxOptions) {
    this.#options = options
    this.#meter = options.meter ?? silentMeter
    this.#senders = byProvider(options.senders)
    this.#pause = new DeliveryPause({ ...options, channel: this.name })
    this.#judge = new DeliveryJudge({ ...options, pause: this.#pause, onResumed: () => this.wake() })
    this.#worker = new DeliveryWorker(options, this)
  }

  get state(): PushState {
    if (this.#senders.size === 0) return 'no_credentials'
    if (this.#pause.reason !== null) return 'halted'
    if (this.#judge.platformFault !== null) return 'dropping'
    return this.#judge.deviceFault === null ? 'ok' : 'holding'
  }

  get inFlight(): number {
    return this.#worker.inFlight
  }

  /** The problem, also in the words of the provider: for operators only. Null if there is none. */
  get fault(): string | null {
    if (this.#senders.size === 0) return 'no push credentials: deliveries wait'
    const faults = [this.#pause.reason, this.#judge.platformFault, this.#judge.deviceFault]
    return faults.filter((fault) => fault !== null).join('; ') || null
  }

  wake(): void {
    this.#worker.wake()
  }

  /** Releases parked deliveries, starts to send due deliveries, then checks the credentials. */
  async start(): Promise<void> {
    this.wake()
    await this.#options.clock.sleep(CHECK_CREDENTIALS_AFTER_MS, this.#worker.stopping)
    await this.#checkCredentials()
  }

  /** Sends with new credentials from now on. Attempts in flight finish with the old ones, within their lease. */
  useSenders(senders: readonly PushSender[]): void {
    const replaced = [...this.#senders.values()]
    for (const sender of replaced) this.#retired.add(sender)
    this.#senders = byProvider(senders)
    void this.#checkCredentials().catch(() => {})
    this.wake()
    const { stopping } = this.#worker
    void this.#options.clock.sleep(LEASE_MS, stopping).then(() => {
      if (!stopping.aborted) return this.#closeRetired(replaced)
    })
  }

  /** Leases no more deliveries; attempts in flight continue. */
  stopLeasing(): void {
    this.#worker.stopLeasing()
  }

  /** Leases no more deliveries, waits for attempts in flight and marks them. */
  async close(): Promise<void> {
    await this.#worker.close()
    await this.#closeRetired([...this.#retired])
    for (const sender of this.#senders.values()) await sender.close()
  }

  async #closeRetired(senders: readonly PushSender[]): Promise<void> {
    for (const sender of senders) {
      if (this.#retired.delete(sender)) await sender.close()
    }
  }

  /** Makes the parked deliveries of the providers that now have credentials due again. */
  async prepare(nowMs: number): Promise<boolean> {
    const providers = [...this.#senders.keys()]
    if (providers.length === 0 || nowMs < this.#releaseAtMs) return false
    const released = await releaseParkedDeliveries(this.#options.db, { providers, nowMs, limit: MAX_RELEASED })
    if (released === MAX_RELEASED) return true
    this.#releaseAtMs = nowMs + RELEASE_EVERY_MS
    return false
  }

  get #isPaused(): boolean {
    return this.#pause.reason !== null && this.#senders.size > 0
  }

  slots(inFlight: number, nowMs: number): number | null {
    if (!this.#isPaused) return Math.min(MAX_LEASED, this.maxInFlight - inFlight)
    return nowMs < this.#pause.probeAtMs ? null : 1 - inFlight
  }

  async lease(limit: number, lease: DeliveryLease): Promise<DueDelivery[]> {
    const { db } = this.#options
    // Probe with a new delivery: one that failed before may have a fault of its own.
    const fresh = this.#isPaused ? await leaseDueDeliveries(db, { limit, onlyNew: true }, lease) : []
    return fresh.length > 0 ? fresh : leaseDueDeliveries(db, { limit }, lease)
  }

  about({ notification_id }: DueDelivery) {
    return { notificationId: notification_id }
  }

  span({ trace_context, notification_id, device_id }: DueDelivery) {
    return {
      name: 'push.send',
      options: {
        kind: 'client',
        parent: trace_context,
        links: [trace_context],
        attributes: { 'push.notification_id': notification_id, 'push.device_id': device_id },
      },
    } as const
  }

  async attempt(delivery: DueDelivery, { leaseToken, span }: { leaseToken: string; span: Span }) {
    const { clock } = this.#options
    const outcome = await attemptDelivery({ senders: this.#senders, clock, meter: this.#meter }, delivery)
    const verdict = labelOf(outcome, delivery)
    span.set({ 'push.verdict': verdict })
    this.#meter.count('push_verdicts_total', { verdict })
    return this.#judge.markOf({ delivery, outcome, leaseToken })
  }

  async mark(tx: Transaction, wanted: { marks: readonly MarkedDelivery[]; atMs: number }): Promise<MarkedDelivery[]> {
    const counted = await markDeliveries(tx, wanted)
    await this.#options.onMarked(
      tx,
      counted.map((mark) => ({ ...mark, at: wanted.atMs })),
    )
    return counted
  }

  sizeOf(): number {
    return 1
  }

  nextDueAt(nowMs: number): Promise<number | null> {
    return nextDueAt(this.#options.db, DELIVERIES, nowMs)
  }

  onIdle(): void {
    if (this.#pause.endsWithCredentials) void this.#checkCredentials()
  }

  /** Detects wrong credentials before the first delivery needs them, and ends the pause when they are accepted. */
  async #checkCredentials(): Promise<void> {
    if (!this.#worker.isLeasing || this.#senders.size === 0) return
    this.#pause.extend()
    const faults = await Promise.all([...this.#senders.values()].map((sender) => sender.checkCredentials()))
    const fault = faults.find((one) => one !== null) ?? null
    if (fault !== null) this.#pause.begin(fault, 'credentials')
    else if (this.#pause.endWith('credentials')) this.wake()
  }
}

function byProvider(senders: readonly PushSender[]): ReadonlyMap<string, PushSender> {
  return new Map(senders.map((sender) => [sender.provider.name, sender]))
}

function labelOf(outcome: AttemptOutcome, { dry_run }: DueDelivery): string {
  if (typeof outcome === 'string') return outcome
  return outcome.kind === 'sent' && dry_run === 1 ? 'validated' : outcome.kind
}
