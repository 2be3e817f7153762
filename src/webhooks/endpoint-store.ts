import { Columns, type ColumnTable } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { forUpdate } from '../db/locking.ts'
import { isAmong, rowsOf } from '../db/rows.ts'
import { sql } from '../db/sql.ts'
import { countSome } from '../deliveries/delivery-table.ts'
import type { EventType } from '../events/event-store.ts'

export const DISABLED_REASONS = ['admin', 'gone', 'failing'] as const
export type DisabledReason = (typeof DISABLED_REASONS)[number]

export type EndpointRow = {
  id: string
  url: string
  description: string | null
  /** A JSON list of `EventType`. */
  event_types: string
  /** A JSON list of job types; null: all. */
  types: string | null
  project_id: string | null
  secret: string
  old_secret: string | null
  old_secret_until: number | null
  after_seq: number
  missed: number
  failing_since: number | null
  disabled_at: number | null
  disabled_reason: DisabledReason | null
  created_by: string | null
  version: number
  created_at: number
  updated_at: number
}

const COLUMNS: ColumnTable<EndpointRow> = {
  id: { type: 'text' },
  url: { type: 'text' },
  description: { type: 'text' },
  event_types: { type: 'text' },
  types: { type: 'text' },
  project_id: { type: 'text' },
  secret: { type: 'text' },
  old_secret: { type: 'text' },
  old_secret_until: { type: 'bigint' },
  after_seq: { type: 'bigint' },
  missed: { type: 'bigint', fixed: true },
  failing_since: { type: 'bigint' },
  disabled_at: { type: 'bigint' },
  disabled_reason: { type: 'text' },
  created_by: { type: 'text', fixed: true },
  version: { type: 'bigint' },
  created_at: { type: 'bigint', fixed: true },
  updated_at: { type: 'bigint' },
}
const ENDPOINTS = new Columns<EndpointRow>(COLUMNS)

export async function insertEndpoint(tx: Transaction, row: EndpointRow): Promise<void> {
  await tx.query(sql`insert into webhook_endpoints (${ENDPOINTS.list}) values (${ENDPOINTS.values(row)})`)
  tx.announce('webhooks')
}

/** Writes the columns that may change, of an endpoint that this transaction has locked. */
export async function updateEndpoint(tx: Transaction, changed: EndpointRow): Promise<void> {
  const row = { ...changed, version: changed.version + 1 }
  await tx.query(sql`
    update webhook_endpoints set ${ENDPOINTS.assignments} from ${ENDPOINTS.changes(tx.engine, [row])} as r
    where webhook_endpoints.id = r.id`)
  tx.announce('webhooks')
}

/** Its deliveries are not sent any more, and are deleted with age. */
export async function deleteEndpoint(tx: Transaction, id: string): Promise<void> {
  await tx.query(sql`delete from webhook_endpoints where id = ${id}`)
}

/** An endpoint, and how many of its deliveries wait; 1,001 stands for any number above 1,000. */
export type ListedEndpoint = EndpointRow & { waiting: number }

const WAITING = countSome(
  sql`from webhook_deliveries d where d.endpoint_id = webhook_endpoints.id and d.next_attempt_at is not null`,
  // The console reads the list every few seconds: 50 endpoints with 10,000 each would take over 100 ms on SQLite.
  1_000,
)

export async function findEndpoint(db: Queryable, id: string): Promise<ListedEndpoint | undefined> {
  const [row] = await db.query<ListedEndpoint>(
    sql`select ${ENDPOINTS.list}, ${WAITING} as waiting from webhook_endpoints where id = ${id}`,
  )
  return row
}

/** All of them: there are at most 50. */
export function listEndpoints(db: Queryable): Promise<ListedEndpoint[]> {
  return db.query<ListedEndpoint>(
    sql`select ${ENDPOINTS.list}, ${WAITING} as waiting from webhook_endpoints order by id desc`,
  )
}

export function listEndpointsOf(db: Queryable, createdBy: string): Promise<ListedEndpoint[]> {
  return db.query<ListedEndpoint>(
    sql`select ${ENDPOINTS.list}, ${WAITING} as waiting from webhook_endpoints where created_by = ${createdBy} order by id`,
  )
}

export async function countEndpoints(db: Queryable): Promise<number> {
  const [row] = await db.query<{ endpoints: number }>(sql`select count(*) as endpoints from webhook_endpoints`)
  return row?.endpoints ?? 0
}

/** `disabled`: because of its attempts. `off`: by an admin. */
type EndpointState = 'ok' | 'failing' | 'disabled' | 'off'

export async function countEndpointStates(db: Queryable): Promise<Record<EndpointState, number>> {
  const rows = await db.query<{ state: EndpointState; endpoints: number }>(sql`
    select state, count(*) as endpoints from (
      select case when disabled_reason = 'admin' then 'off' when disabled_at is not null then 'disabled'
        when failing_since is not null then 'failing' else 'ok' end as state
      from webhook_endpoints) as states group by state`)
  const counts = { ok: 0, failing: 0, disabled: 0, off: 0 }
  for (const { state, endpoints } of rows) counts[state] = endpoints
  return counts
}

export async function lockEndpoint(tx: Transaction, id: string): Promise<EndpointRow | undefined> {
  const [row] = await tx.query<EndpointRow>(
    sql`select ${ENDPOINTS.list} from webhook_endpoints where id = ${id} ${forUpdate(tx.engine)}`,
  )
  return row
}

export async function eraseEndpointCreator(tx: Transaction, sub: string): Promise<void> {
  await tx.query(sql`update webhook_endpoints set created_by = null where created_by = ${sub}`)
}

/** What decides whether an endpoint gets an event. */
export interface Receiver {
  id: string
  after_seq: number
  events: ReadonlySet<EventType>
  types: ReadonlySet<string> | null
  project_id: string | null
}

/** The endpoints that are not disabled. */
export async function findReceivers(db: Queryable): Promise<Receiver[]> {
  const rows = await db.query<Pick<EndpointRow, 'id' | 'after_seq' | 'event_types' | 'types' | 'project_id'>>(sql`
    select id, after_seq, event_types, types, project_id from webhook_endpoints where disabled_at is null order by id`)
  return rows.map(({ event_types, types, ...row }) => ({
    ...row,
    events: new Set(JSON.parse(event_types) as EventType[]),
    types: types === null ? null : new Set(JSON.parse(types) as string[]),
  }))
}

/** Deletes the secrets before the last rotation, which no longer sign. */
export async function deleteOldSecrets(db: Queryable, nowMs: number): Promise<void> {
  await db.query(sql`
    update webhook_endpoints set old_secret = null, old_secret_until = null where old_secret_until <= ${nowMs}`)
}

/** Events that an endpoint does not get, because they were deleted from the log too early. */
interface MissedEvents {
  id: string
  count: number
}

/** One missed event for each of these deliveries. */
export function countByEndpoint(deliveries: readonly { endpoint_id: string }[]): MissedEvents[] {
  const byEndpoint = Map.groupBy(deliveries, ({ endpoint_id }) => endpoint_id)
  return [...byEndpoint].map(([id, { length: count }]) => ({ id, count }))
}

/** Adds to the missed events of endpoints, and returns those of the endpoints that exist. */
export async function addMissed(tx: Transaction, missed: readonly MissedEvents[]): Promise<MissedEvents[]> {
  if (missed.length === 0) return []
  const counted = await tx.query<{ id: string }>(sql`
    update webhook_endpoints set missed = missed + r.count
    from ${rowsOf(tx.engine, missed, { id: 'text', count: 'bigint' })} as r where webhook_endpoints.id = r.id
    returning webhook_endpoints.id`)
  return missed.filter(({ id }) => counted.some((endpoint) => endpoint.id === id))
}

/** What an attempt means for its endpoint; null: nothing. */
export type EndpointEffect = 'succeeded' | 'failed' | 'gone' | null

interface NotedAttempt {
  endpoint_id: string
  /** The URL of the endpoint when the attempt began. */
  url: string
  effect: EndpointEffect
}

/** An endpoint is disabled when every attempt has failed for this long. */
const DISABLE_AFTER_MS = 5 * 86_400_000

/**
 * Notes the successes and failures of endpoints. An attempt at a URL that the endpoint no longer has changes nothing.
 * Returns the endpoints that are disabled because of the attempts.
 */
export async function noteAttempts(
  tx: Transaction,
  attempts: readonly NotedAttempt[],
  atMs: number,
): Promise<{ id: string; disabled_reason: DisabledReason }[]> {
  const among = (ids: readonly string[]) => isAmong(tx.engine, sql`id`, ids)
  // An endpoint that works is neither locked nor written.
  const locked = await tx.query<{ id: string; url: string }>(sql`
    select id, url from webhook_endpoints where ${among(idsOf(attempts, 'failed', 'gone'))}
      or (${among(idsOf(attempts, 'succeeded'))} and failing_since is not null)
    order by id ${forUpdate(tx.engine)}`)
  const urls = new Map(locked.map(({ id, url }) => [id, url]))
  const current = attempts.filter(({ endpoint_id, url }) => urls.get(endpoint_id) === url)
  if (current.length === 0) return []
  const [succeeded, gone] = [idsOf(current, 'succeeded'), idsOf(current, 'gone')]
  const failed = idsOf(current, 'failed').filter((id) => !succeeded.includes(id))
  await tx.query(sql`
    update webhook_endpoints set failing_since = null where ${among(succeeded)} and failing_since is not null`)
  await tx.query(sql`
    update webhook_endpoints set failing_since = ${atMs} where ${among(failed)} and failing_since is null`)
  const disabled = await tx.query<{ id: string; disabled_reason: DisabledReason }>(sql`
    update webhook_endpoints set disabled_at = ${atMs}, updated_at = ${atMs}, version = version + 1,
      disabled_reason = case when ${among(gone)} then 'gone' else 'failing' end
    where disabled_at is null and (${among(gone)} or (${among(failed)} and failing_since <= ${atMs - DISABLE_AFTER_MS}))
    returning id, disabled_reason`)
  return disabled
}

function idsOf(attempts: readonly NotedAttempt[], ...effects: readonly EndpointEffect[]): string[] {
  return [...new Set(attempts.filter(({ effect }) => effects.includes(effect)).map(({ endpoint_id }) => endpoint_id))]
}
