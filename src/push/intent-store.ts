import type { Transaction } from '../db/database.ts'
import { rowsOf } from '../db/rows.ts'
import { sql } from '../db/sql.ts'
import { isReachable } from './device-store.ts'
import type { PushOptOut } from './push-opt-out.ts'

export type PushIntent = {
  /** The notification's id. */
  id: string
  /** Unique. The cause of a job's notification begins with the job's id. */
  cause: string
  job_id: string | null
  subject: string
  title: string
  body: string
  data: string
  link: string | null
  created_at: number
  /** The span of the cause; delivery spans link to it. */
  trace_context: string | null
}

const COLUMNS = {
  id: 'text',
  cause: 'text',
  job_id: 'text',
  subject: 'text',
  title: 'text',
  body: 'text',
  data: 'text',
  link: 'text',
  created_at: 'bigint',
  trace_context: 'text',
} as const
const TTL_SECONDS = 86_400

/**
 * Records one notification per cause and one delivery per reachable device of its owner, unless the owner turned push off.
 * Runs in the transaction of the cause, so that both commit together.
 */
export async function recordPushIntents(
  tx: Transaction,
  intents: readonly PushIntent[],
  pushOptOut: PushOptOut,
): Promise<void> {
  if (intents.length === 0) return
  const rows = rowsOf(tx.engine, intents, COLUMNS)
  const reachable = isReachable(sql`r.created_at`)
  const wanted = sql`exists (select 1 from devices d where d.subject = r.subject and ${reachable})
    and not ${pushOptOut(sql`r.subject`)}`
  await tx.query(sql`
    insert into notifications (id, cause, job_id, title, body, data, link, priority, ttl_seconds, dry_run, created_by, created_at,
      trace_context)
    select r.id, r.cause, r.job_id, r.title, r.body, r.data, r.link, 'high', ${TTL_SECONDS}, 0, null, r.created_at,
      r.trace_context
    from ${rows} as r where ${wanted}
    on conflict (cause) do nothing`)
  await tx.query(sql`
    insert into deliveries (notification_id, device_id, state, attempts, next_attempt_at, created_at, updated_at)
    select n.id, d.id, 'pending', 0, r.created_at, r.created_at, r.created_at
    from ${rows} as r
    join notifications n on n.id = r.id
    join devices d on d.subject = r.subject and ${reachable}
    where true`)
  await insertRecipients(
    tx,
    intents.filter(({ job_id }) => job_id === null),
  )
  tx.announce('deliveries')
}

/** A notification of a job is found by the job, so the end of a job writes no row for it. */
async function insertRecipients(tx: Transaction, intents: readonly PushIntent[]): Promise<void> {
  if (intents.length === 0) return
  await tx.query(sql`
    insert into notification_recipients (notification_id, subject)
    select r.id, r.subject from ${rowsOf(tx.engine, intents, COLUMNS)} as r join notifications n on n.id = r.id`)
}
