import type { Queryable, Transaction } from '../../db/database.ts'
import { isAmong } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'

const ERASED_MESSAGE = 'Erased with its user'

/** In place of the body of an erased callback: JSON null. */
export const ERASED_BODY = 'null'

export async function countJobsOf(db: Queryable, owner: string): Promise<number> {
  const [row] = await db.query<{ jobs: number }>(sql`select count(*) as jobs from jobs where created_by = ${owner}`)
  return row?.jobs ?? 0
}

export async function findEndedJobsOf(
  db: Queryable,
  { owner, limit }: { owner: string; limit: number },
): Promise<string[]> {
  const rows = await db.query<{ id: string }>(sql`
    select id from jobs where created_by = ${owner} and finished_at is not null order by id limit ${limit}`)
  return rows.map(({ id }) => id)
}

/** Erases a bounded number of bodies of these jobs' callbacks; true if there may be more. */
export async function eraseBodiesOf(tx: Transaction, jobIds: readonly string[], limit: number): Promise<boolean> {
  const erased = await tx.query(sql`
    update callbacks set body = ${ERASED_BODY} where id in (
      select id from callbacks where ${isAmong(tx.engine, sql`job_id`, jobIds)} and body <> ${ERASED_BODY}
      limit ${limit}) returning id`)
  return erased.length === limit
}

/** Removes the owner and the documents. Type, status, error code and times stay. */
export async function eraseJobRows(tx: Transaction, jobIds: readonly string[], atMs: number): Promise<void> {
  await tx.query(sql`
    update jobs set created_by = null, input = null, output = null, resume_input = null, resume_questions = null,
      interrupts = null, error_message = case when error_code is null then null else ${ERASED_MESSAGE} end,
      erased_at = ${atMs}, updated_at = ${atMs}
    where ${isAmong(tx.engine, sql`id`, jobIds)}`)
}
