import { Columns } from '../db/columns.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { isAmong } from '../db/rows.ts'
import { sql } from '../db/sql.ts'

/** Every outcome of a callback. `unconfirmed`: the runtime still has to confirm the callback. */
export const CALLBACK_OUTCOMES = {
  applied: { unconfirmed: false, meaning: 'it settled the job' },
  duplicate: { unconfirmed: false, meaning: 'its content was already known' },
  stale: { unconfirmed: false, meaning: 'the job has moved on, or the callback is not about it' },
  adopted: { unconfirmed: true, meaning: 'a job was created for a run that no job knew' },
  deferred: { unconfirmed: true, meaning: 'stored, and the runtime is asked' },
} as const satisfies Record<string, { unconfirmed: boolean; meaning: string }>

export type CallbackOutcome = keyof typeof CALLBACK_OUTCOMES

const UNCONFIRMED = Object.entries(CALLBACK_OUTCOMES).flatMap(([outcome, { unconfirmed }]) =>
  unconfirmed ? [outcome] : [],
)

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
  /** The detail of the transition that it caused, as JSON. The timeline shows it as an entry. */
  transition: string | null
  /** As received, except that this service's own token is redacted. */
  body: string
}

export const CALLBACKS = new Columns<CallbackRow>({
  id: { type: 'text' },
  path: { type: 'text' },
  type: { type: 'text' },
  job_id: { type: 'text' },
  thread_id: { type: 'text' },
  run_id: { type: 'text' },
  status: { type: 'text' },
  outcome: { type: 'text' },
  received_at: { type: 'bigint' },
  transition: { type: 'text' },
  body: { type: 'text', large: true },
})

export async function insertCallbacks(tx: Transaction, callbacks: readonly CallbackRow[]): Promise<void> {
  if (callbacks.length === 0) return
  await tx.query(sql`
    insert into callbacks (${CALLBACKS.list})
    select ${CALLBACKS.list} from ${CALLBACKS.rows(tx.engine, callbacks)} as r where true`)
}

export async function findCallback(db: Queryable, id: string): Promise<CallbackRow | undefined> {
  const [row] = await db.query<CallbackRow>(sql`select ${CALLBACKS.list} from callbacks where id = ${id}`)
  return row
}

/** A run's callbacks that the runtime has not confirmed, newest first, with the time of the first of them. */
export async function findUnconfirmed(
  db: Queryable,
  { jobId, runId }: { jobId: string; runId: string },
): Promise<{ body: string; first_received_at: number }[]> {
  return db.query(sql`
    select body, min(received_at) over () as first_received_at from callbacks where job_id = ${jobId} and run_id = ${runId} and ${isAmong(db.engine, sql`outcome`, UNCONFIRMED)}
    order by id desc limit ${MAX_RECALLED}`)
}

const MAX_RECALLED = 3
