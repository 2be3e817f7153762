import { firstIdAt } from '../../core/ids.ts'
import { Columns } from '../../db/columns.ts'
import type { Database, Queryable } from '../../db/database.ts'
import { sql } from '../../db/sql.ts'
import type { PageRequest } from '../../http/paging.ts'

/** Why a callback was refused. */
export const REFUSAL_REASONS = {
  wrong_token: 'the token of its URL does not fit: it was made with another secret',
  wrong_secret: 'the secret in its header is another one',
  wrong_signature: 'the signature does not fit the body, or is too old',
  no_credential: 'it has no token, no secret and no signature',
  rate_limited: 'too many refused requests came from its address',
  unknown_type: 'the job type of its path is not configured',
  wrong_type: 'its run belongs to a job of another type',
  unreadable: 'it is not a callback, or not JSON',
  too_large: 'its body is too large',
  too_slow: 'it took too long to arrive',
} as const
export type RefusalReason = keyof typeof REFUSAL_REASONS

/** Callbacks that were refused in one minute, for one reason, at one path, from one address. */
export type RefusedCallbackRow = {
  id: string
  reason: RefusalReason
  path: string
  address: string
  /** The newest job that they named. */
  job_id: string | null
  count: number
  first_at: number
  last_at: number
}

const REFUSED = new Columns<RefusedCallbackRow>({
  id: { type: 'text' },
  reason: { type: 'text' },
  path: { type: 'text' },
  address: { type: 'text' },
  job_id: { type: 'text' },
  count: { type: 'bigint' },
  first_at: { type: 'bigint' },
  last_at: { type: 'bigint' },
})

/**
 * How many rows are kept that name a job of ours, and as many that name none. Strangers do not know the ids of jobs, so
 * they cannot push out the refusals of the runtime.
 */
const KEPT_OF_EACH = 500

/** Adds the counts to the rows of the same kind, and deletes the oldest rows beyond the bound. */
export function addRefused(db: Database, rows: readonly RefusedCallbackRow[]): Promise<void> {
  // Two nodes that write the same rows wait for each other at the first one.
  const sorted = rows.toSorted((a, b) => (a.id < b.id ? -1 : 1))
  return db.transaction(async (tx) => {
    await tx.query(sql`
      insert into refused_callbacks (${REFUSED.list})
      select r.id, r.reason, r.path, r.address, (select jobs.id from jobs where jobs.id = r.job_id), r.count, r.first_at,
        r.last_at
      from ${REFUSED.rows(tx.engine, sorted)} as r where true
      on conflict (id) do update set count = refused_callbacks.count + excluded.count, last_at = excluded.last_at,
        job_id = coalesce(excluded.job_id, refused_callbacks.job_id)`)
    await tx.query(sql`
      delete from refused_callbacks where id in (
        select id from (
          select id, row_number() over (partition by case when job_id is null then 0 else 1 end order by id desc) as place
          from refused_callbacks) as placed
        where place > ${KEPT_OF_EACH})`)
  })
}

/** Newest first. A job that was deleted since is not named any more. */
export function findRefusedPage(
  db: Queryable,
  page: PageRequest<readonly [string]>,
  id?: string,
): Promise<RefusedCallbackRow[]> {
  const after = page.after === null ? sql`1 = 1` : sql`id < ${page.after[0]}`
  const isWanted = id === undefined ? sql`1 = 1` : sql`id = ${id}`
  return db.query<RefusedCallbackRow>(sql`
    select id, reason, path, address, (select jobs.id from jobs where jobs.id = job_id) as job_id, count, first_at, last_at
    from refused_callbacks where ${after} and ${isWanted} order by id desc limit ${page.limit + 1}`)
}

export async function trimRefused(db: Queryable, { beforeMs }: { beforeMs: number }): Promise<boolean> {
  await db.query(sql`delete from refused_callbacks where id < ${firstIdAt('rcb', beforeMs)}`)
  return false
}
