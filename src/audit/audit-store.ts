import { firstIdAt, timeOfId } from '../core/ids.ts'
import { type BoundedPage, selectBoundedPage } from '../db/bounded-page.ts'
import { Columns } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { join, type Sql, sql } from '../db/sql.ts'
import type { PageRequest } from '../http/paging.ts'
import type { AuditAction, AuditActorKind, AuditObjectKind } from './audit-actions.ts'

export type AuditRow = {
  id: string
  at: number
  actor_kind: AuditActorKind
  actor_id: string
  action: AuditAction
  object_kind: AuditObjectKind
  object_id: string
  before: string | null
  after: string | null
  address: string | null
  request_id: string | null
  /** The bulk operation whose item this change was. */
  operation_id: string | null
}

const AUDIT = new Columns<AuditRow>({
  id: { type: 'text' },
  at: { type: 'bigint' },
  actor_kind: { type: 'text' },
  actor_id: { type: 'text' },
  action: { type: 'text' },
  object_kind: { type: 'text' },
  object_id: { type: 'text' },
  before: { type: 'text' },
  after: { type: 'text' },
  address: { type: 'text' },
  request_id: { type: 'text' },
  operation_id: { type: 'text' },
})

/** A rare combination of filters reads no more rows than this for one page, and the page may be short. */
const MAX_READ = 5_000

/** As this service makes it. A client may give any other id for its request. */
const REQUEST_ID = /^req_[0-9a-z]{26}$/
/** The id may come from another machine, whose clock is ahead. */
const CLOCK_SLACK_MS = 86_400_000

/** Absent fields match every entry. */
export interface AuditFilter {
  id?: string
  object?: string
  actor?: string
  action?: AuditAction
  operationId?: string
  requestId?: string
  /** Leaves out the changes of bulk operations. The start of each operation stays. */
  withoutItems?: boolean
  afterMs?: number
  beforeMs?: number
}

export async function insertAudit(tx: Transaction, row: AuditRow): Promise<void> {
  await tx.query(sql`insert into audit (${AUDIT.list}) values (${AUDIT.values(row)})`)
}

/** A page of entries, newest first. The most selective filter reads its index; the others are checked row by row. */
export function findAuditPage(
  db: Queryable,
  filter: AuditFilter,
  page: PageRequest<readonly [string]>,
): Promise<BoundedPage<AuditRow>> {
  const { id, object, actor, action, operationId, requestId, withoutItems, afterMs, beforeMs } = filter
  const given = [
    ...(operationId === undefined ? [] : [{ column: sql`operation_id`, value: operationId }]),
    ...(object === undefined ? [] : [{ column: sql`object_id`, value: object }]),
    ...(actor === undefined ? [] : [{ column: sql`actor_id`, value: actor }]),
    ...(action === undefined ? [] : [{ column: sql`action`, value: action }]),
  ]
  const equals = ({ column, value }: { column: Sql; value: string }) => sql`${column} = ${value}`
  const [first, ...others] = given
  // No index has the request: the entries are read from the newest to the time of the request, which its id has.
  const rest = [...others, ...(requestId === undefined ? [] : [{ column: sql`request_id`, value: requestId }])]
  const isOwnRequestId = requestId !== undefined && REQUEST_ID.test(requestId)
  const driving = [
    ...(id === undefined ? [] : [sql`id = ${id}`]),
    ...(isOwnRequestId ? [sql`id >= ${firstIdAt('aud', timeOfId(requestId) - CLOCK_SLACK_MS)}`] : []),
    ...(first === undefined ? [] : [equals(first)]),
    ...(withoutItems ? [sql`operation_id is null`] : []),
    ...(afterMs === undefined ? [] : [sql`id >= ${firstIdAt('aud', afterMs + 1)}`]),
    ...(beforeMs === undefined ? [] : [sql`id < ${firstIdAt('aud', beforeMs)}`]),
    ...(page.after === null ? [] : [sql`id < ${page.after[0]}`]),
  ]
  const columns = rest.map(({ column }) => column)
  return selectBoundedPage<AuditRow>(db, {
    table: sql`audit`,
    columns: AUDIT.list,
    large: [sql`before`, sql`after`],
    where: driving.length === 0 ? sql`1 = 1` : join(driving, ' and '),
    limit: page.limit,
    ...(rest.length > 0 && {
      rest: { where: join(rest.map(equals), ' and '), columns: join(columns, ', '), maxRead: MAX_READ },
    }),
  })
}

/** Deletes a bounded number of old entries; true if there may be more. */
export async function trimAudit(
  db: Queryable,
  { beforeMs, limit }: { beforeMs: number; limit: number },
): Promise<boolean> {
  const deleted = await db.query(sql`
    delete from audit where id in (
      select id from audit where id < ${firstIdAt('aud', beforeMs)} order by id limit ${limit}) returning id`)
  return deleted.length === limit
}

/** Removes the values from a bounded number of the entries about a user; true if there may be more. The entries stay. */
export async function eraseAuditedProfile(tx: Transaction, sub: string, limit: number): Promise<boolean> {
  const erased = await tx.query(sql`
    update audit set before = null, after = null where id in (
      select id from audit where object_id = ${sub} and object_kind = 'user' and action = 'user.changed'
        and (before is not null or after is not null) limit ${limit}) returning id`)
  return erased.length === limit
}
