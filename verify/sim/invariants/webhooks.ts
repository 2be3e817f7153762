import { createHmac } from 'node:crypto'
import { sql } from '../../../src/db/sql.ts'
import { LEASE_HELD_MS } from '../faults/incidents.ts'
import type { Message, Receiver } from '../outside/webhook-receivers.ts'
import type { Evidence } from './evidence.ts'

const noteSwitch = (enabled: 0 | 1) => `
  insert into sim_webhook_switches (endpoint_id, enabled, at, head, position)
  select new.id, ${enabled}, new.updated_at, coalesce((select seq from sqlite_sequence where name = 'events'), 0), position
  from webhook_cursor;`
const noteSecret = `
  insert into sim_webhook_secrets (endpoint_id, secret, at) values (new.id, new.secret, new.updated_at);`
const noteChange = (action: string) => `
  insert into sim_audited_changes (action, object_id) values ('webhook_endpoint.${action}', new.id);`

/** Triggers that note, in its own transaction, when an endpoint is enabled or disabled, and each of its secrets. */
export const WEBHOOK_TRIGGERS = `
create table sim_webhook_switches (
  n integer primary key autoincrement, endpoint_id text not null, enabled integer not null, at integer not null,
  -- The last event of the log, and the last one that deliveries were written for.
  head integer not null, position integer not null);
create table sim_webhook_secrets (
  n integer primary key autoincrement, endpoint_id text not null, secret text not null, at integer not null);
create trigger sim_endpoint_made after insert on webhook_endpoints begin
  ${noteSwitch(1)} ${noteSecret} ${noteChange('created')}
end;
create trigger sim_endpoint_enabled after update of disabled_at on webhook_endpoints
  when old.disabled_at is not null and new.disabled_at is null begin ${noteSwitch(1)} end;
create trigger sim_endpoint_disabled after update of disabled_at on webhook_endpoints
  when old.disabled_at is null and new.disabled_at is not null begin ${noteSwitch(0)} end;
create trigger sim_endpoint_rotated after update of secret on webhook_endpoints when old.secret <> new.secret begin
  ${noteSecret} ${noteChange('rotated')}
end;
create trigger sim_endpoint_changed after update of version on webhook_endpoints
  -- The service itself disables an endpoint. No admin did it.
  when old.secret = new.secret and not (old.disabled_at is null and coalesce(new.disabled_reason, '') in ('gone', 'failing')) begin
  ${noteChange('changed')}
end;`

/** How far the service's time may be from the real one; after a step of the database's clock it may be further. */
const SLACK_MS = 1_500
const STEPPED_SLACK_MS = 16_500
/** From the lease of a delivery to the arrival of its message. */
const ON_THE_WAY_MS = 500
const LONGEST_SUSPENSION_MS = 75_000
/** While the loops of the nodes are slowed down, each has a round within this time. */
const ROUND_WITHIN_MS = 700_000
/** In calm times, an event arrives within this time at an endpoint that works. */
const PROMPT_MS = 1_000
/** After the faults, and after an endpoint was enabled, both nodes have noticed within this time. */
const NOTICED_WITHIN_MS = 60_000
const OLD_SECRET_MS = 86_400_000
/** In this time around a rotation, a message may have been signed before it or after it. */
const ROTATION_SLACK_MS = 120_000

type Endpoint = { id: string; url: string; missed: number }
type Delivery = {
  event_seq: number
  endpoint_id: string
  state: string
  next_attempt_at: number | null
  last_error: string | null
}
type Event = { seq: number; type: string; job_id: string | null; data: string; created_at: number }
type Switch = { endpoint_id: string; enabled: number; at: number; head: number; position: number }

/** A time in which the endpoint was enabled. */
interface Span {
  sinceMs: number
  untilMs: number
  /** The last event before it. */
  after: number
  /** The last event that was read for the endpoint. Later ones are recovered by an operator. */
  upTo: number
}

/** One endpoint with all that is known about it. */
interface Subject {
  evidence: Evidence
  endpoint: Endpoint
  receiver: Receiver
  spans: readonly Span[]
  messages: readonly Message[]
  deliveries: ReadonlyMap<number, Delivery>
  events: ReadonlyMap<number, Event>
  slackMs: number
}

/**
 * Every event that fits an enabled endpoint arrives, under the id and with the body of the event, signed, and in calm times
 * at once. A disabled endpoint gets nothing. Two processes never send one delivery at once.
 */
export async function checkWebhooks(evidence: Evidence): Promise<void> {
  const { store, plan, receivers, violate } = evidence
  if (receivers.all.length === 0) return
  const endpoints = await store.query<Endpoint>(sql`select id, url, missed from webhook_endpoints`)
  const events = await store.query<Event>(sql`select seq, type, job_id, data, created_at from events`)
  const deliveries = await store.query<Delivery>(sql`
    select event_seq, endpoint_id, state, next_attempt_at, last_error from webhook_deliveries`)
  const switches = await store.query<Switch>(sql`select * from sim_webhook_switches order by n`)
  const isStepped = plan.incidents.some(({ incident }) => incident.kind === 'clock_step')
  for (const receiver of receivers.all) {
    const [endpoint, ...others] = endpoints.filter(({ url }) => url === receiver.url)
    const messages = receivers.messages.filter((message) => message.receiver === receiver.name)
    if (others.length > 0) violate('promises', `the endpoint ${receiver.name} was created twice`)
    if (!endpoint && messages.length > 0) violate('webhooks', `${receiver.name} got a message without an endpoint`)
    if (!endpoint) continue
    const own = deliveries.filter(({ endpoint_id }) => endpoint_id === endpoint.id)
    const subject: Subject = {
      evidence,
      endpoint,
      receiver,
      messages,
      spans: spansOf(switches.filter(({ endpoint_id }) => endpoint_id === endpoint.id)),
      deliveries: new Map(own.map((delivery) => [delivery.event_seq, delivery])),
      events: new Map(events.map((event) => [event.seq, event])),
      slackMs: isStepped ? STEPPED_SLACK_MS : SLACK_MS,
    }
    // An event that is deleted while its delivery is written leaves a delivery without an event.
    const expired = own.filter(({ state }) => state === 'expired').length
    if (endpoint.missed > expired) violate('webhooks', `${receiver.name} missed ${endpoint.missed} events`)
    await checkMessages(subject)
    await checkSignatures(subject)
    checkDisabled(subject)
    checkStates(subject)
    await checkComplete(subject)
    if (!isStepped) checkPrompt(subject)
  }
  const mayLoseLeases =
    evidence.suspensions > 0 ||
    plan.incidents.some(({ incident }) => incident.kind === 'database_down' && incident.ms > LEASE_HELD_MS)
  for (const key of mayLoseLeases ? [] : receivers.overlaps) violate('webhooks', `${key} was being sent twice at once`)
}

function spansOf(switches: readonly Switch[]): Span[] {
  return switches.flatMap(({ enabled, at, head }, index) => {
    const end = switches[index + 1]
    if (enabled === 0) return []
    return { sinceMs: at, untilMs: end?.at ?? Number.POSITIVE_INFINITY, after: head, upTo: end?.position ?? Infinity }
  })
}

function fits({ events, types }: Receiver, { type, job_id, data }: Event): boolean {
  if (!events.includes(type)) return false
  return types === null || job_id === null || types.includes((JSON.parse(data) as { type: string }).type)
}

function idOf({ headers }: Message): number {
  return Number(headers['webhook-id'])
}

/** Each message is an event that fits, under its id and with its text. */
async function checkMessages({ evidence, receiver, messages, events }: Subject): Promise<void> {
  const { store, violate } = evidence
  const rows = await store.query<{ seq: number }>(sql`select seq from sim_deleted_events`)
  const deleted = new Set(rows.map(({ seq }) => seq))
  const bodies = new Map<number, string>()
  for (const message of messages) {
    const { headers, body } = message
    const what = `a message to ${receiver.name} under the id ${headers['webhook-id']}`
    const seq = idOf(message)
    const event = events.get(seq)
    if (!event && !deleted.has(seq)) violate('webhooks', `${what} is no event: ${body}`)
    if (event && body !== textOf(event)) violate('webhooks', `${what} is not its event: ${body}`)
    if (event && !fits(receiver, event)) violate('webhooks', `${what} was not asked for: ${body}`)
    if (bodies.has(seq) && bodies.get(seq) !== body) violate('webhooks', `${what} changed between attempts`)
    bodies.set(seq, body)
  }
}

function textOf({ seq, type, data, created_at }: Event): string {
  return `{"id":"${seq}","type":"${type}","created_at":"${new Date(created_at).toISOString()}","data":${data}}`
}

/** Each message is signed with the secret of its time, and after a rotation for a day with the one before, too. */
async function checkSignatures({ evidence, endpoint, receiver, messages, slackMs }: Subject): Promise<void> {
  const { store, violate } = evidence
  const rows = await store.query<{ secret: string; at: number }>(sql`
    select secret, at from sim_webhook_secrets where endpoint_id = ${endpoint.id} order by n`)
  const secrets = rows.map(({ secret, at }, index) => {
    const next = rows[index + 1]
    const untilMs = next === undefined ? Number.POSITIVE_INFINITY : next.at + OLD_SECRET_MS
    return { key: Buffer.from(secret.slice('whsec_'.length), 'base64'), sinceMs: at, untilMs }
  })
  for (const { headers, body, atMs } of messages) {
    const { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signature = '' } = headers
    const given = new Set(signature.split(' '))
    for (const { key, sinceMs, untilMs } of secrets) {
      const isLive = atMs - ROTATION_SLACK_MS > sinceMs && atMs + ROTATION_SLACK_MS < untilMs
      const isSigned = given.delete(
        `v1,${createHmac('sha256', key).update(`${id}.${timestamp}.${body}`).digest('base64')}`,
      )
      if (isLive && !isSigned) violate('webhooks', `${id} to ${receiver.name} is not signed with a live secret`)
    }
    if (given.size > 0 || signature === '') violate('webhooks', `${id} to ${receiver.name} has a wrong signature`)
    if (Math.abs(Number(timestamp) * 1_000 - atMs) > slackMs + LONGEST_SUSPENSION_MS && slackMs === SLACK_MS)
      violate('webhooks', `${id} to ${receiver.name} has the time ${timestamp}`)
  }
}

/** No message arrives at a disabled endpoint, except one that was on the way when it was disabled. */
function checkDisabled({ evidence, receiver, messages, spans, slackMs }: Subject): void {
  const lateMs = slackMs + ON_THE_WAY_MS + (evidence.suspensions > 0 ? LONGEST_SUSPENSION_MS : 0)
  for (const { headers, atMs } of messages) {
    const isEnabled = spans.some(({ sinceMs, untilMs }) => atMs >= sinceMs - slackMs && atMs <= untilMs + lateMs)
    if (!isEnabled)
      evidence.violate('webhooks', `${headers['webhook-id']} was sent to ${receiver.name}, which is disabled`)
  }
}

/** Until this time, everything that was due is done. */
function settledUntil({ nowMs, slowUntilMs }: Evidence): number {
  return slowUntilMs > 0 ? slowUntilMs : nowMs - ROUND_WITHIN_MS
}

/** A delivery is sent only if the receiver has the message, and waits or has failed only for a reason. */
function checkStates({ evidence, receiver, messages, deliveries, events, spans }: Subject): void {
  const { violate } = evidence
  const byId = Map.groupBy(messages, idOf)
  const isEnabled = spans.at(-1)?.untilMs === Number.POSITIVE_INFINITY
  for (const { event_seq, state, next_attempt_at, last_error } of deliveries.values()) {
    const modes = (byId.get(event_seq) ?? []).map(({ mode }) => mode)
    const what = `the delivery of ${event_seq} to ${receiver.name} is ${state}`
    const event = events.get(event_seq)
    if (event && !fits(receiver, event)) violate('webhooks', `${what}, and was not asked for`)
    if (state === 'sent' && !modes.includes('works')) violate('webhooks', `${what} and never arrived`)
    // All receivers work in the end, so only an answer that disables the endpoint ends the attempts.
    if (state === 'failed' && !modes.includes('gone')) violate('webhooks', `${what}: ${last_error}`)
    if (state === 'expired' && event) violate('webhooks', `${what}, and its event is stored`)
    const isDue = next_attempt_at !== null && next_attempt_at < settledUntil(evidence)
    if (state === 'pending' && isEnabled && isDue) violate('webhooks', `${what} since ${next_attempt_at}`)
    if (state === 'pending' && next_attempt_at === null) violate('webhooks', `${what} without a next attempt`)
  }
}

/** Every event has a delivery to each endpoint that it fits, if the endpoint was enabled then or recovered later. */
async function checkComplete({ evidence, endpoint, receiver, deliveries, events, spans }: Subject): Promise<void> {
  const { store, violate } = evidence
  const items = await store.query<{ object_id: string }>(sql`
    select object_id from operation_items i join operations o on o.id = i.operation_id
    where o.action = 'recover' and o.state = 'done' and not exists (
      select 1 from operation_items f where f.operation_id = o.id and f.error is not null)`)
  const recovered = items
    .map(({ object_id }) => object_id.split(' '))
    .filter(([id]) => id === endpoint.id)
    .map(([, from, to]) => ({ after: Number(from), upTo: Number(to) }))
  const ranges = [...spans, ...recovered]
  for (const event of events.values()) {
    const isOwed = ranges.some(({ after, upTo }) => event.seq > after && event.seq <= upTo)
    if (!isOwed || !fits(receiver, event) || event.created_at > settledUntil(evidence)) continue
    if (!deliveries.has(event.seq)) violate('webhooks', `${event.seq} (${event.type}) never got to ${receiver.name}`)
  }
}

/** While nothing is wrong, a working endpoint gets each event at once, also if another one does not answer. */
function checkPrompt({ evidence, receiver, messages, events, spans }: Subject): void {
  const { faultsStoppedAtMs, calmEndedAtMs, suspendedUntilMs, violate } = evidence
  if (receiver.hangsWhenCalm) return
  const calmSinceMs = Math.max(faultsStoppedAtMs, suspendedUntilMs) + NOTICED_WITHIN_MS
  const firstAt = new Map(messages.toReversed().map((message) => [idOf(message), message.atMs]))
  for (const event of events.values()) {
    const { seq, created_at } = event
    if (created_at < calmSinceMs || created_at > calmEndedAtMs - SLACK_MS || !fits(receiver, event)) continue
    if (!spans.some(({ sinceMs, untilMs }) => created_at > sinceMs + NOTICED_WITHIN_MS && created_at < untilMs))
      continue
    const lateMs = (firstAt.get(seq) ?? Number.POSITIVE_INFINITY) - created_at
    if (lateMs > PROMPT_MS + SLACK_MS) violate('webhooks', `${seq} got to ${receiver.name} after ${lateMs} ms`)
  }
}
