import type { Meter } from '../core/metrics/meter.ts'
import type { Span } from '../core/tracing.ts'
import type { Transaction } from '../db/database.ts'
import type { DeliveryLease } from '../deliveries/delivery-table.ts'
import type { Channel, WorkerOptions } from '../deliveries/delivery-worker.ts'
import { type EgressAnswer, type EgressPoster, MAX_PER_HOST, sentenceOfFailure } from '../egress/egress-port.ts'
import { appendEvents, type EventRow, eventText, findEvents } from '../events/event-store.ts'
import {
  type DueWebhook,
  findActiveEndpoints,
  leaseShares,
  markWebhooks,
  nextWebhookDueAt,
  releaseShares,
  type WebhookMark,
} from './delivery-store.ts'
import { addMissed, countByEndpoint, type DisabledReason, type EndpointEffect, noteAttempts } from './endpoint-store.ts'
import { signedHeaders } from './signature.ts'
import { addAttempt, judgeWebhook } from './webhook-verdict.ts'

/** How many slots of a host one endpoint leaves to the other ones. */
const MAX_KEPT = MAX_PER_HOST / 2
/** Each may have a host of its own, with `MAX_PER_HOST` slots. */
export const MAX_ENDPOINTS = 50

type Delivery = DueWebhook & { host: string; event: EventRow | undefined }
type Mark = WebhookMark & { url: string; effect: EndpointEffect; disabled?: DisabledReason }

/** `limit`: how many deliveries of an endpoint may be leased now. `refillAt`: more are leased when it has this many requests. */
interface Share {
  id: string
  host: string
  limit: number
  refillAt: number
}

interface WebhookChannelOptions extends WorkerOptions {
  meter: Meter
  poster: () => Promise<EgressPoster>
  /** Aborted once the requests in flight are given up. */
  givenUp: AbortSignal
}

/**
 * The channel of webhooks. Each host has slots of its own, enough for all endpoints at once: an endpoint that does not
 * answer delays no other. The endpoints of one host take turns, and keep a slot for one another. After a crash between sending
 * and marking, the event is sent again with the same `webhook-id`.
 */
export class WebhookChannel implements Channel<Delivery, Mark> {
  readonly name = 'webhook'
  readonly maxInFlight = MAX_ENDPOINTS * MAX_PER_HOST
  readonly #options: WebhookChannelOptions
  readonly #inFlight = new Set<Delivery>()
  /** The last round that leased a delivery of each endpoint. */
  #lastTurns: ReadonlyMap<string, number> = new Map()
  #round = 0
  /** Hosts for which there may be more due deliveries than slots, and the `refillAt` of their endpoints. */
  #crowded: ReadonlyMap<string, number> = new Map()

  constructor(options: WebhookChannelOptions) {
    this.#options = options
  }

  async lease(limit: number, lease: DeliveryLease): Promise<Delivery[]> {
    const { db } = this.#options
    const endpoints = await findActiveEndpoints(db, lease.nowMs)
    const shares = this.#sharesOf(endpoints, limit)
    const wanted = shares.filter((share) => share.limit > 0)
    const { leased, events } = await this.#leaseShares(wanted, lease)
    const bySeq = new Map(events.map((event) => [event.seq, event]))
    const deliveries = leased.map((due) => ({ ...due, host: hostOf(due.url), event: bySeq.get(due.event_seq) }))
    for (const delivery of deliveries) this.#inFlight.add(delivery)
    const counts = Map.groupBy(deliveries, ({ endpoint_id }) => endpoint_id)
    const isUsedUp = (share: Share) => (counts.get(share.id)?.length ?? 0) >= share.limit
    this.#crowded = new Map(shares.filter(isUsedUp).map(({ host, refillAt }) => [host, refillAt]))
    this.#round += 1
    this.#lastTurns = new Map(endpoints.map(({ id }) => [id, counts.has(id) ? this.#round : this.#lastTurn(id)]))
    return deliveries
  }

  /** After an error, the deliveries are released: they are sent again soon, with all their attempts. */
  async #leaseShares(shares: readonly Share[], lease: DeliveryLease) {
    const { db } = this.#options
    if (shares.length === 0) return { leased: [], events: [] }
    try {
      const leased = await leaseShares(db, shares, lease)
      const seqs = leased.map(({ event_seq }) => event_seq)
      return { leased, events: await findEvents(db, seqs) }
    } catch (error) {
      // If this fails too, the lease expires.
      await releaseShares(db, shares, lease).catch(() => {})
      throw error
    }
  }

  /**
   * The free slots of a host, shared among its endpoints that have a due delivery. The endpoint whose last turn was the
   * longest ago comes first. An endpoint takes at most half of the slots of a host that has another one. One slot is kept for
   * each other endpoint that has no request in progress, up to half of them. So endpoints that hang delay no other.
   */
  #sharesOf(active: readonly { id: string; url: string; due: number }[], limit: number): Share[] {
    let left = limit
    return [...Map.groupBy(active, ({ url }) => hostOf(url))].flatMap(([host, endpoints]) => {
      const inFlight = [...this.#inFlight].filter((delivery) => delivery.host === host)
      const busy = new Set(inFlight.map(({ endpoint_id }) => endpoint_id))
      const most = endpoints.length > 1 ? MAX_PER_HOST - MAX_KEPT : MAX_PER_HOST
      let free = MAX_PER_HOST - inFlight.length
      const due = endpoints.filter((one) => one.due === 1)
      due.sort((one, other) => this.#lastTurn(one.id) - this.#lastTurn(other.id))
      return due.map(({ id }, at) => {
        const idle = endpoints.filter((other) => other.id !== id && !busy.has(other.id)).length
        const own = Math.max(busy.has(id) ? 0 : 1, free - Math.min(idle, MAX_KEPT))
        const half = most - inFlight.filter(({ endpoint_id }) => endpoint_id === id).length
        const share = Math.max(0, Math.min(left, own, half, Math.ceil(free / (due.length - at))))
        if (share > 0) busy.add(id)
        left -= share
        free -= share
        return { id, host, limit: share, refillAt: most / 2 }
      })
    })
  }

  #lastTurn(id: string): number {
    return this.#lastTurns.get(id) ?? 0
  }

  #count(isMeant: (delivery: Delivery) => boolean): number {
    return [...this.#inFlight].filter(isMeant).length
  }

  /** The slots of an endpoint are filled by halves, and not one by one, whatever other endpoints of its host do. */
  ended(delivery: Delivery): boolean {
    const { host, endpoint_id } = delivery
    this.#inFlight.delete(delivery)
    const refillAt = this.#crowded.get(host)
    if (refillAt === undefined) return false
    return this.#count((other) => other.endpoint_id === endpoint_id) <= refillAt
  }

  about({ endpoint_id, event_seq }: Delivery) {
    return { endpointId: endpoint_id, eventId: String(event_seq) }
  }

  span({ endpoint_id, event_seq, event_type }: Delivery) {
    const attributes = { 'webhook.endpoint_id': endpoint_id, 'webhook.event_id': event_seq, 'event.type': event_type }
    return { name: 'webhook.send', options: { kind: 'client', attributes } } as const
  }

  async attempt(delivery: Delivery, { leaseToken, span }: { leaseToken: string; span: Span }): Promise<Mark> {
    const { clock, random, log, meter } = this.#options
    const { event_seq, endpoint_id, url, attempts, event } = delivery
    const key = { event_seq, endpoint_id, url, lease_token: leaseToken, attempts }
    if (event === undefined) {
      const last_error = 'the event was deleted before it could be delivered'
      const gone = { state: 'expired', next_attempt_at: null, last_error, attempt_log: delivery.attempt_log } as const
      return { ...key, ...gone, effect: null }
    }
    const startedAtMs = clock.now()
    const { answer, error, cause } = await this.#send(delivery, event)
    const durationMs = clock.now() - startedAtMs
    const moment = { nowMs: clock.now(), calendarMs: clock.calendar(), random }
    const isTest = delivery.event_type === 'webhook.test'
    const verdict = judgeWebhook({ answer, error }, { attempts, isTest }, moment)
    const { state, last_error } = verdict
    meter.observe('webhook_send_duration_seconds', durationMs / 1_000)
    meter.count('webhook_attempts_total', { outcome: outcomeOf(answer) })
    span.set({ 'webhook.state': state, 'http.response.status_code': answer?.status ?? null })
    const about = { ...this.about(delivery), attempts, reason: last_error, err: cause }
    if (state === 'failed') log.warn(about, 'webhook.failed')
    if (state === 'pending') log.info(about, 'webhook.postponed')
    const attempt_log = addAttempt(delivery.attempt_log, {
      at: startedAtMs,
      status: answer?.status ?? null,
      duration_ms: durationMs,
      error: last_error,
      answer: answer?.text ?? '',
    })
    return { ...key, ...verdict, attempt_log }
  }

  async #send(
    { url, secret, old_secret, old_secret_until }: Delivery,
    event: EventRow,
  ): Promise<{ answer: EgressAnswer | null; error: string | null; cause?: unknown }> {
    const { clock, poster, givenUp } = this.#options
    const body = eventText(event)
    const isOldLive = old_secret !== null && (old_secret_until ?? 0) > clock.now()
    const signed = signedHeaders({
      id: String(event.seq),
      timestampSeconds: Math.floor(clock.calendar() / 1_000),
      body,
      secrets: isOldLive ? [secret, old_secret] : [secret],
    })
    const headers = { 'content-type': 'application/json', 'user-agent': 'project-api', ...signed }
    try {
      return { answer: await (await poster()).post({ url, headers, body }), error: null }
    } catch (error) {
      // The service stops: the attempt is not judged, and another node repeats it.
      if (givenUp.aborted) throw error
      return { answer: null, error: sentenceOfFailure(error), cause: error }
    }
  }

  async mark(tx: Transaction, wanted: { marks: readonly Mark[]; atMs: number }): Promise<Mark[]> {
    const { atMs } = wanted
    const marked = await markWebhooks(tx, wanted)
    await addMissed(tx, countByEndpoint(marked.filter(isExpired)))
    const disabled = await noteAttempts(tx, marked, atMs)
    await appendEvents(
      tx,
      disabled.map(({ id, disabled_reason }) => disabledEvent({ id, reason: disabled_reason, atMs })),
    )
    const reasons = new Map(disabled.map(({ id, disabled_reason }) => [id, disabled_reason]))
    return marked.map((mark) => {
      const reason = reasons.get(mark.endpoint_id)
      return reason === undefined ? mark : { ...mark, disabled: reason }
    })
  }

  onCommitted(marks: readonly Mark[]): void {
    for (const { endpoint_id, event_seq, attempts, last_error: reason } of marks.filter(isExpired)) {
      const about = { endpointId: endpoint_id, eventId: String(event_seq) }
      this.#options.log.warn({ ...about, attempts, reason }, 'webhook.failed')
    }
    const reasons = new Map(marks.map(({ endpoint_id, disabled }) => [endpoint_id, disabled]))
    for (const [endpointId, reason] of reasons) {
      if (reason !== undefined) this.#options.log.error({ endpointId, reason }, 'webhook.disabled')
    }
  }

  sizeOf({ attempt_log }: Mark): number {
    return attempt_log.length
  }

  nextDueAt(nowMs: number): Promise<number | null> {
    return nextWebhookDueAt(this.#options.db, nowMs)
  }
}

/** Only admins and other endpoints get it. */
export function disabledEvent({ id, reason, atMs }: { id: string; reason: string; atMs: number }) {
  const data = JSON.stringify({ endpoint_id: id, reason })
  const cause = `${id}:disabled:${atMs}`
  return { subject: null, job_id: null, type: 'webhook.disabled', cause, data, created_at: atMs } as const
}

/** The event was deleted before it could be delivered: the endpoint has missed it. */
function isExpired({ state }: Mark): boolean {
  return state === 'expired'
}

function hostOf(url: string): string {
  return URL.parse(url)?.hostname ?? ''
}

function outcomeOf(answer: EgressAnswer | null): string {
  return answer === null ? 'no_answer' : `${Math.floor(answer.status / 100)}xx`
}
