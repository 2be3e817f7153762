import { type BoundedPage, selectBoundedPage } from '../../db/bounded-page.ts'
import type { Queryable, Transaction } from '../../db/database.ts'
import { rowsOf } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import type { PageRequest } from '../../http/paging.ts'

export type CallbackOutcome = 'applied' | 'duplicate' | 'stale' | 'adopted' | 'deferred'

export type CallbackRow = {
  id: string
  path: string
  type: string
  job_id: string
  thread_id: string
  run_id: string
  status: string
  outcome: CallbackOutcome
  received_at: number
  /** As it came, but for the token of ours that it echoes. */
  body: string
}

const COLUMNS = sql`id, path, type, job_id, thread_id, run_id, status, outcome, received_at, body`

export async function insertCallbacks(tx: Transaction, callbacks: readonly CallbackRow[]): Promise<void> {
  if (callbacks.length === 0) return
  const rows = rowsOf(tx.engine, callbacks, {
    id: 'text',
    path: 'text',
    type: 'text',
    job_id: 'text',
    thread_id: 'text',
    run_id: 'text',
    status: 'text',
    outcome: 'text',
    received_at: 'bigint',
    body: 'text',
  })
  await tx.query(sql`insert into callbacks (${COLUMNS}) select ${COLUMNS} from ${rows} as r where true`)
}

export async function findCallback(db: Queryable, id: string): Promise<CallbackRow | undefined> {
  const [row] = await db.query<CallbackRow>(sql`select ${COLUMNS} from callbacks where id = ${id}`)
  return row
}

/** What callbacks of a run said that proved nothing by itself, newest first. */
export async function findUnconfirmed(
  db: Queryable,
  { jobId, runId }: { jobId: string; runId: string },
): Promise<string[]> {
  const rows = await db.query<{ body: string }>(sql`
    select body from callbacks where job_id = ${jobId} and run_id = ${runId} and outcome in ('deferred', 'adopted')
    order by id desc limit ${MAX_RECALLED}`)
  return rows.map(({ body }) => body)
}

const MAX_RECALLED = 3

export function findCallbackPage(
  db: Queryable,
  filter: { jobId: string | undefined },
  page: PageRequest<readonly [string]>,
): Promise<BoundedPage<CallbackRow>> {
  const ofJob = filter.jobId === undefined ? sql`1 = 1` : sql`job_id = ${filter.jobId}`
  const after = page.after === null ? sql`1 = 1` : sql`id < ${page.after[0]}`
  return selectBoundedPage<CallbackRow>(db, {
    table: sql`callbacks`,
    columns: COLUMNS,
    large: [sql`body`],
    where: sql`${ofJob} and ${after}`,
    limit: page.limit,
  })
}
