import { bytesOf, takeBatch } from '../../db/bounded-page.ts'
import type { Queryable, Transaction } from '../../db/database.ts'
import { forUpdate } from '../../db/locking.ts'
import { isAmong } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import { CALLBACKS } from '../callback-store.ts'
import { ERASED_ACTOR, JOBS } from '../job-row.ts'

const ERASED_MESSAGE = 'Erased with its user'

/** In place of the body of an erased callback: JSON null. */
export const ERASED_BODY = 'null'

export async function countJobsOf(db: Queryable, owner: string): Promise<number> {
  const [row] = await db.query<{ jobs: number }>(sql`select count(*) as jobs from jobs where created_by = ${owner}`)
  return row?.jobs ?? 0
}

export async function hasJobs(db: Queryable, owner: string): Promise<boolean> {
  return (await db.query(sql`select 1 as found from jobs where created_by = ${owner} limit 1`)).length > 0
}

/** One batch of a user's ended jobs. */
export async function findEndedJobsOf(
  db: Queryable,
  { owner, limit }: { owner: string; limit: number },
): Promise<string[]> {
  const found = await db.query<{ id: string; bytes: number }>(sql`
    select id, ${bytesOf(JOBS.large)} as bytes from jobs
    where created_by = ${owner} and finished_at is not null order by id limit ${limit + 1}`)
  return takeBatch(found, limit).rows.map(({ id }) => id)
}

/** Erases one batch of the bodies of these jobs' callbacks. */
export async function eraseBodiesOf(
  tx: Transaction,
  jobIds: readonly string[],
  limit: number,
): Promise<{ hasMore: boolean }> {
  // By its length: to compare the body itself, the engine would have to read it. No other body is as short, because it names
  // a run.
  const found = await tx.query<{ id: string; bytes: number }>(sql`
    select id, ${bytesOf(CALLBACKS.large)} as bytes from callbacks
    where ${isAmong(tx.engine, sql`job_id`, jobIds)} and octet_length(body) <> ${ERASED_BODY.length} limit ${limit + 1}`)
  const { rows, hasMore } = takeBatch(found, limit)
  const ids = rows.map(({ id }) => id)
  if (ids.length > 0) {
    await tx.query(sql`update callbacks set body = ${ERASED_BODY} where ${isAmong(tx.engine, sql`id`, ids)}`)
  }
  return { hasMore }
}

/** Removes the name of an actor from some jobs of other owners. True if there may be more. */
export async function eraseActor(tx: Transaction, actor: string, limit: number): Promise<boolean> {
  const rows = await tx.query(sql`
    update jobs set actor = ${ERASED_ACTOR}
    where id in (select id from jobs where actor = ${actor} order by id limit ${limit} ${forUpdate(tx.engine)})
    returning id`)
  return rows.length === limit
}

/** Removes the owner and the documents. Type, status, error code and times stay. */
export async function eraseJobRows(tx: Transaction, jobIds: readonly string[], atMs: number): Promise<void> {
  await tx.query(sql`
    update jobs set created_by = null, actor = null, scopes = null, configurable = null, input = null, output = null, resume_input = null, resume_questions = null,
      interrupts = null, error_message = case when error_code is null then null else ${ERASED_MESSAGE} end,
      erased_at = ${atMs}, updated_at = ${atMs}
    where ${isAmong(tx.engine, sql`id`, jobIds)}`)
  await tx.query(sql`
    update job_runs set questions = null, answers = null
    where ${isAmong(tx.engine, sql`job_id`, jobIds)} and questions is not null`)
}
