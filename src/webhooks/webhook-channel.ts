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
  type WebhookMark,
} from './delivery-store.ts'
import { type DisabledReason, type EndpointEffect, noteAttempts } from './endpoint-store.ts'
import { signedHeaders } from './signature.ts'
import { addAttempt, judgeWebhook } from './webhook-verdict.ts'

/** Each may have a host of its own, with `MAX_PER_HOST` slots. */
export const MAX_ENDPOINTS = 50

type Delivery = DueWebhook & { host: string; event: EventRow | undefined }
type Mark = WebhookMark & { url: string; effect: EndpointEffect; disabled?: DisabledReason }

/** How many deliveries of an endpoint may be leased now. */
interface Share {
  id: string
  host: string
  limit: number
}

interface WebhookChannelOptions extends WorkerOptions {
  meter: Meter
  poster: () => Promise<EgressPoster>
  /** Aborted once the requests in flight are given up. */
  givenUp: AbortSignal
}

/**
 * The channel of webhooks. Each host has slots of its own, enough for all endpoints at once: an endpoint that does not
 * answer delays no other. The endpoints of one host take turns, and leave one another a slot. After a crash between sending
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
  /** Hosts for which there may be more due deliveries than slots. */
  #crowded: ReadonlySet<string> = new Set()

  constructor(options: WebhookChannelOptions) {
    this.#options = options
  }

  async lease(limit: number, lease: DeliveryLease): Promise<Delivery[]> {
    const { db } = this.#options
    const endpoints = await findActiveEndpoints(db, lease.nowMs)
    const shares = this.#sharesOf(endpoints, limit)
    const wanted = shares.filter((share) => share.limit > 0)
    const leased = wanted.length === 0 ? [] : await leaseShares(db, wanted, lease)
    const events = await findEvents(
      db,
      leased.map(({ event_seq }) => event_seq),
    )
    const bySeq = new Map(events.map((event) => [event.seq, event]))
    const deliveries = leased.map((due) => ({ ...due, host: hostOf(due.url), event: bySeq.get(due.event_seq) }))
    for (const delivery of deliveries) this.#inFlight.add(delivery)
    const counts = Map.groupBy(deliveries, ({ endpoint_id }) => endpoint_id)
    const isUsedUp = (share: Share) => (counts.get(share.id)?.length ?? 0) >= share.limit
    this.#crowded = new Set(shares.filter(isUsedUp).map(({ host }) => host))
    this.#round += 1
    this.#lastTurns = new Map(endpoints.map(({ id }) => [id, counts.has(id) ? this.#round : this.#lastTurn(id)]))
    return deliveries
  }

  /**
   * The free slots of a host, shared among its endpoints that have a due delivery. The endpoint whose last turn was the
   * longest ago comes first.
   */
  #sharesOf(active: readonly { id: string; url: string; due: number }[], limit: number): Share[] {
    let left = limit
    return [...Map.groupBy(active, ({ url }) => hostOf(url))].flatMap(([host, endpoints]) => {
      let free = MAX_PER_HOST - this.#count((delivery) => delivery.host === host)
      const most = endpoints.length > 1 ? MAX_PER_HOST - 1 : MAX_PER_HOST
      const due = endpoints.filter((one) => one.due === 1)
      due.sort((one, other) => this.#lastTurn(one.id) - this.#lastTurn(other.id))
      return due.map(({ id }, at) => {
        const own = most - this.#count(({ endpoint_id }) => endpoint_id === id)
        const share = Math.max(0, Math.min(left, own, Math.ceil(free / (due.length - at))))
        left -= share
        free -= share
        return { id, host, limit: share }
      })
    })
  }

  #lastTurn(id: string): number {
    return this.#lastTurns.get(id) ?? 0
  }

  #count(isMeant: (delivery: Delivery) => boolean): number {
    return [...this.#inFlight].filter(isMeant).length
  }

  /** Half of a host's slots are filled at once. An endpoint with no request in flight does not wait for that. */
  ended(delivery: Delivery): boolean {
    const { host, endpoint_id } = delivery
    this.#inFlight.delete(delivery)
    if (!this.#crowded.has(host)) return false
    const isLast = this.#count((other) => other.endpoint_id === endpoint_id) === 0
    return isLast || this.#count((other) => other.host === host) <= MAX_PER_HOST / 2
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

function hostOf(url: string): string {
  return URL.parse(url)?.hostname ?? ''
}

function outcomeOf(answer: EgressAnswer | null): string {
  return answer === null ? 'no_answer' : `${Math.floor(answer.status / 100)}xx`
}
