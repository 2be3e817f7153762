import type { AuditOrigin } from '../audit/record-audit.ts'
import { firstIdAt } from '../core/ids.ts'
import { Columns } from '../db/columns.ts'
import type { Database, Queryable, Transaction } from '../db/database.ts'
import { forUpdate, forUpdateSkipLocked } from '../db/locking.ts'
import { isStopped } from '../db/nodes/node-store.ts'
import { rowsOf } from '../db/rows.ts'
import { join, sql } from '../db/sql.ts'
import type { PageRequest } from '../http/paging.ts'

/** The actions of `POST /v1/operations`. */
export const BULK_ACTIONS = ['cancel', 'retry', 'check', 'replay'] as const
export type BulkActionName = (typeof BULK_ACTIONS)[number]

export const OPERATION_ACTIONS = [...BULK_ACTIONS, 'erase', 'recover'] as const
export type OperationAction = (typeof OPERATION_ACTIONS)[number]

/** They wait for the runtime, or for time to pass. All other actions go before them. */
const LONG_ACTIONS: readonly OperationAction[] = ['check', 'erase']

function isLong(action: OperationAction): boolean {
  return LONG_ACTIONS.includes(action)
}

export const OPERATION_STATES = ['pending', 'running', 'done', 'cancelled'] as const
export type OperationState = (typeof OPERATION_STATES)[number]

export type OperationRow = {
  id: string
  action: OperationAction
  state: OperationState
  total: number
  /** How many items have been processed, including failed ones. */
  position: number
  failed: number
  skipped: number
  created_by: string
  /** JSON of the `AuditOrigin`. */
  origin: string
  created_at: number
  /** Since when its steps wait for another service that fails. */
  failing_since: number | null
  finished_at: number | null
}

const OPERATIONS = new Columns<OperationRow>({
  id: { type: 'text' },
  action: { type: 'text' },
  state: { type: 'text' },
  total: { type: 'bigint' },
  position: { type: 'bigint' },
  failed: { type: 'bigint' },
  skipped: { type: 'bigint' },
  created_by: { type: 'text' },
  origin: { type: 'text' },
  created_at: { type: 'bigint' },
  failing_since: { type: 'bigint' },
  finished_at: { type: 'bigint' },
})

interface NewOperation {
  id: string
  action: OperationAction
  by: AuditOrigin
  objectIds: readonly string[]
  /** What its progress counts up to; absent: the number of its items. */
  total?: number
  /** For a retry: the retries of its jobs that were known when its items were read. A job with another retry is skipped. */
  knownRetries?: ReadonlyMap<string, string> | undefined
  atMs: number
}

/** Creates an operation with its frozen items. One without items is done at once. */
export async function insertOperation(tx: Transaction, wanted: NewOperation): Promise<OperationRow> {
  const { id, action, by, objectIds, knownRetries, atMs } = wanted
  const total = wanted.total ?? objectIds.length
  const row: OperationRow = {
    id,
    action,
    state: total === 0 ? 'done' : 'pending',
    total,
    position: 0,
    failed: 0,
    skipped: 0,
    created_by: by.actor.id,
    origin: JSON.stringify({ ...by, operationId: id }),
    created_at: atMs,
    failing_since: null,
    finished_at: total === 0 ? atMs : null,
  }
  await tx.query(sql`insert into operations (${OPERATIONS.list}) values (${OPERATIONS.values(row)})`)
  const items = objectIds.map((object_id, at) => ({
    object_id,
    place: at + 1,
    retried_as: knownRetries?.get(object_id) ?? null,
  }))
  await tx.query(sql`
    insert into operation_items (operation_id, place, object_id, retried_as)
    select ${id}, r.place, r.object_id, r.retried_as
    from ${rowsOf(tx.engine, items, { place: 'bigint', object_id: 'text', retried_as: 'text' })} as r
    where true`)
  return row
}

export async function findOperation(db: Queryable, id: string): Promise<OperationRow | undefined> {
  const [row] = await db.query<OperationRow>(sql`select ${OPERATIONS.list} from operations where id = ${id}`)
  return row
}

export function findOperationPage(db: Queryable, page: PageRequest<readonly [string]>): Promise<OperationRow[]> {
  const after = page.after === null ? sql`1 = 1` : sql`id < ${page.after[0]}`
  return db.query<OperationRow>(sql`
    select ${OPERATIONS.list} from operations where ${after} order by id desc limit ${page.limit + 1}`)
}

export type OperationItemNote = { operation_id: string; object_id: string; note: string }

/** Why items were not done: the first ones of these operations, at most `limit` of each. Only these items are read. */
export async function findItemNotes(
  db: Queryable,
  ids: readonly string[],
  { kind, limit }: { kind: 'failed' | 'skipped'; limit: number },
): Promise<OperationItemNote[]> {
  if (ids.length === 0) return []
  const note = kind === 'failed' ? sql`error` : sql`skipped`
  const each = ids.map(
    (id) => sql`
      select operation_id, object_id, note, place from (
        select operation_id, object_id, ${note} as note, place from operation_items
        where operation_id = ${id} and ${note} is not null order by place limit ${limit}) as one`,
  )
  return db.query<OperationItemNote>(sql`
    select operation_id, object_id, note from (${join(each, ' union all ')}) as noted order by operation_id, place`)
}

export type OperationFailureRow = { place: number; object_id: string; error: string }

/** The items of an operation that failed, in their order. */
export function findFailurePage(
  db: Queryable,
  id: string,
  { after, limit }: PageRequest<readonly [number]>,
): Promise<OperationFailureRow[]> {
  return db.query<OperationFailureRow>(sql`
    select place, object_id, error from operation_items
    where operation_id = ${id} and error is not null and place > ${after?.[0] ?? 0} order by place limit ${limit + 1}`)
}

interface OperationLease {
  token: string
  node: string
  nowMs: number
  /** The only operation to take; absent: any. */
  only: string | undefined
  /** The operations that this node is working on. */
  running: readonly Pick<OperationRow, 'id' | 'action'>[]
}

/**
 * Takes a due operation that no node works on, short ones first, then the oldest; undefined when there is none. A node works
 * on one long operation at a time, so that short ones need not wait. An operation that it holds but does not work on is left
 * over from a failed round.
 */
export async function leaseOperation(
  db: Database,
  { token, node, nowMs, only, running }: OperationLease,
): Promise<OperationRow | undefined> {
  const isDue = sql`(due_at is null or due_at <= ${nowMs})`
  const long = sql`action in (${join(
    LONG_ACTIONS.map((action) => sql`${action}`),
    ', ',
  )})`
  const wanted = [
    ...(only === undefined ? [] : [sql`id = ${only}`]),
    ...(running.some(({ action }) => isLong(action)) ? [sql`not ${long}`] : []),
    ...running.map(({ id }) => sql`id <> ${id}`),
  ]
  const isWanted = wanted.length === 0 ? sql`1 = 1` : join(wanted, ' and ')
  const isFree = sql`(lease_node is null or lease_node = ${node} or ${isStopped(sql`lease_node`, nowMs)})`
  const [row] = await db.query<OperationRow>(sql`
    update operations set lease_token = ${token}, lease_node = ${node}, state = 'running' where id = (
      select id from operations where finished_at is null and ${isDue} and ${isWanted} and ${isFree}
      order by case when ${long} then 1 else 0 end, id limit 1 ${forUpdateSkipLocked(db.engine)})
    returning ${OPERATIONS.list}`)
  return row
}

/** Locks an operation until the commit, so that only one transaction at a time processes its items. */
export async function lockOperation(
  tx: Transaction,
  id: string,
): Promise<(OperationRow & { lease_token: string | null }) | undefined> {
  const [row] = await tx.query<OperationRow & { lease_token: string | null }>(sql`
    select ${OPERATIONS.list}, lease_token from operations where id = ${id} ${forUpdate(tx.engine)}`)
  return row
}

export type OperationItem = { place: number; object_id: string; retried_as: string | null }

export function findItems(
  db: Queryable,
  { id, after, limit }: { id: string; after: number; limit: number },
): Promise<OperationItem[]> {
  return db.query<OperationItem>(sql`
    select place, object_id, retried_as from operation_items where operation_id = ${id} and place > ${after}
    order by place limit ${limit}`)
}

/** Why an item was not done: it failed, or it was skipped. */
type ItemNote = { place: number; error: string | null; skipped: string | null }

/** Writes the results of the next items, in the transaction of their effects. */
export async function recordItems(
  tx: Transaction,
  wanted: { id: string; position: number; notes: readonly ItemNote[] },
): Promise<void> {
  const { id, position, notes } = wanted
  const failed = notes.filter(({ error }) => error !== null).length
  await tx.query(sql`
    update operations set position = ${position}, failed = failed + ${failed},
      skipped = skipped + ${notes.length - failed}
    where id = ${id}`)
  if (notes.length === 0) return
  const rows = rowsOf(tx.engine, notes, { place: 'bigint', error: 'text', skipped: 'text' })
  await tx.query(sql`
    update operation_items set error = r.error, skipped = r.skipped from ${rows} as r
    where operation_id = ${id} and operation_items.place = r.place`)
}

/** Adds objects that a step of an operation could not handle, as failed items. An object that failed before stays once. */
export async function addFailures(
  tx: Transaction,
  { id, failures }: { id: string; failures: readonly { object_id: string; error: string }[] },
): Promise<void> {
  if (failures.length === 0) return
  const items = failures.map((failure, at) => ({ ...failure, place: at + 1 }))
  const rows = rowsOf(tx.engine, items, { place: 'bigint', object_id: 'text', error: 'text' })
  const added = await tx.query(sql`
    insert into operation_items (operation_id, place, object_id, error)
    select ${id}, r.place + (select max(place) from operation_items where operation_id = ${id}), r.object_id, r.error
    from ${rows} as r
    where r.object_id not in (
      select object_id from operation_items where operation_id = ${id} and error is not null)
    returning place`)
  const count = added.length
  await tx.query(sql`
    update operations set total = total + ${count}, position = position + ${count}, failed = failed + ${count}
    where id = ${id}`)
}

/** Counts what a step of an operation did. The last unit counts at completion. */
export async function addProgress(tx: Transaction, { id, done }: { id: string; done: number }): Promise<void> {
  await tx.query(sql`
    update operations set position = case when position + ${done} < total then position + ${done} else total - 1 end
    where id = ${id}`)
}

/** Notes whether a step failed because of another service, and since when the steps fail. */
export async function noteFailing(
  tx: Transaction,
  { id, isFailing, atMs }: { id: string; isFailing: boolean; atMs: number },
): Promise<void> {
  const since = isFailing ? sql`coalesce(failing_since, ${atMs})` : sql`null`
  await tx.query(sql`update operations set failing_since = ${since} where id = ${id}`)
}

/** Gives an operation back until a time. */
export async function postponeOperation(
  db: Queryable,
  { id, token, dueAtMs }: { id: string; token: string; dueAtMs: number },
): Promise<void> {
  await db.query(sql`
    update operations set due_at = ${dueAtMs}, lease_node = null where id = ${id} and lease_token = ${token}`)
}

/** Done: everything counts as worked off. */
export async function completeOperation(tx: Transaction, { id, atMs }: { id: string; atMs: number }): Promise<void> {
  await tx.query(sql`update operations set position = total where id = ${id}`)
  await finishOperation(tx, { id, state: 'done', atMs })
}

export async function finishOperation(
  tx: Transaction,
  { id, state, atMs }: { id: string; state: 'done' | 'cancelled'; atMs: number },
): Promise<void> {
  await tx.query(sql`
    update operations set state = ${state}, finished_at = ${atMs}, lease_token = null, lease_node = null
    where id = ${id}`)
}

/** Releases an operation, so that any node may continue it at once. */
export async function releaseOperation(db: Queryable, { id, token }: { id: string; token: string }): Promise<void> {
  await db.query(sql`update operations set lease_node = null where id = ${id} and lease_token = ${token}`)
}

/** Deletes one old operation that has ended, with its items; true if there may be more. */
export function trimOperations(db: Database, { beforeMs }: { beforeMs: number }): Promise<boolean> {
  return db.transaction(async (tx) => {
    const [old] = await tx.query<{ id: string }>(sql`
      select id from operations where id < ${firstIdAt('opr', beforeMs)} and finished_at < ${beforeMs} order by id limit 1`)
    if (!old) return false
    await tx.query(sql`delete from operation_items where operation_id = ${old.id}`)
    await tx.query(sql`delete from operations where id = ${old.id}`)
    return true
  })
}
