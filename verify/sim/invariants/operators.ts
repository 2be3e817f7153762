import { Sql, sql } from '../../../src/db/sql.ts'
import { ERASED_USER } from '../clients/operator-scenario.ts'
import { subOf } from '../outside/identity.ts'
import type { Evidence } from './evidence.ts'

/** Everything that names a job, with the column that does. */
const HELD_BY_JOBS = {
  jobs: 'id',
  job_runs: 'job_id',
  job_checks: 'job_id',
  job_timeline: 'job_id',
  callbacks: 'job_id',
  events: 'job_id',
  notifications: 'job_id',
}

/** What operators did: deleted jobs and erased users leave nothing, no item of an operation is done twice, each change has its audit entry. */
export async function checkOperators(evidence: Evidence): Promise<void> {
  await checkDeletions(evidence)
  await checkErasure(evidence)
  await checkOperations(evidence)
  await checkAudit(evidence)
}

async function checkDeletions({ store, deleted, observed, violate }: Evidence): Promise<void> {
  for (const id of deleted) {
    if (!observed.operators.deletions.has(id)) violate('I3', `${id} was deleted though no one asked for it`)
  }
  for (const [table, column] of Object.entries(HELD_BY_JOBS)) {
    const text = `select ${column} as job_id from ${table} where ${column} in (select job_id from sim_deleted_jobs)`
    const left = await store.query<{ job_id: string }>(new Sql([text], []))
    for (const { job_id } of left) violate('deletion', `${job_id} was deleted, and is still in ${table}`)
  }
}

/** Everything that may name a user or belong to an erased job, as queries that find nothing after the erasure. */
const LEFT_OF_ERASED = {
  users: `sub = '${subOf(ERASED_USER)}'`,
  jobs: `created_by = '${subOf(ERASED_USER)}' or input like '%"erased-%'`,
  events: `subject = '${subOf(ERASED_USER)}' or data like '%"erased-%'`,
  idempotency_keys: `principal = '${subOf(ERASED_USER)}'`,
  usage_counters: `subject = '${subOf(ERASED_USER)}'`,
  usage_limits: `subject = '${subOf(ERASED_USER)}'`,
  usage_thresholds: `subject = '${subOf(ERASED_USER)}'`,
  callbacks: `body <> 'null' and job_id in (select id from jobs where erased_at is not null)`,
  // The result of a check that was under way, and a late run that is found, may come later. They name nothing of the user.
  job_timeline: `kind not in ('start', 'check', 'extra_run') and job_id in (select id from jobs where erased_at is not null)`,
  notifications: 'job_id in (select id from jobs where erased_at is not null)',
}

async function checkErasure({
  store,
  runtime,
  erased,
  observed,
  suspensions,
  databaseFaults,
  violate,
}: Evidence): Promise<void> {
  for (const { id, input, output, interrupts, configurable, created_by, scopes, actor } of erased) {
    if ([input, output, interrupts, configurable, created_by, scopes, actor].some((value) => value !== null))
      violate('erasure', `${id} was erased and still holds a document or its owner`)
  }
  // A node that was suspended may commit a request of the user later.
  if (!observed.operators.hasErased || suspensions + databaseFaults > 0) return
  for (const [table, condition] of Object.entries(LEFT_OF_ERASED)) {
    const left = await store.query(new Sql([`select 1 as found from ${table} where ${condition}`], []))
    if (left.length > 0) violate('erasure', `${left.length} rows of an erased user are still in ${table}`)
  }
  const named = await store.query<{ object_id: string }>(
    sql`select object_id from operation_items where error is not null`,
  )
  for (const id of runtime.threadsOf(subOf(ERASED_USER))) {
    if (!named.some(({ object_id }) => object_id === id))
      violate('erasure', `the thread ${id} of an erased user is still at the runtime, and no failure names it`)
  }
}

async function checkOperations({ store, observed, violate }: Evidence): Promise<void> {
  const rows = await store.query<{ id: string; state: string; total: number; position: number }>(
    sql`select id, state, total, position from operations`,
  )
  const byId = new Map(rows.map((row) => [row.id, row]))
  for (const id of observed.operators.operations) {
    if (!byId.has(id)) violate('promises', `operation ${id} was accepted and is not stored`)
  }
  for (const { id, state, total, position } of rows) {
    const isOver = state === 'cancelled' || (state === 'done' && position === total)
    if (!isOver) violate('operations', `${id} is ${state} after ${position} of ${total} items`)
  }
  // A job that an operation skips was repeated by another one.
  const retries = await store.query<{ id: string; items: number; jobs: number }>(sql`
    select i.object_id as id, sum(case when i.skipped is null then 1 else 0 end) as items,
      (select count(*) from jobs where retry_of = i.object_id) as jobs
    from operation_items i join operations o on o.id = i.operation_id
    where o.action = 'retry' and i.place <= o.position and i.error is null group by i.object_id`)
  for (const { id, items, jobs } of retries) {
    if (jobs !== items) violate('operations', `${id} was to be repeated ${items} times, and was ${jobs} times`)
  }
}

/** The triggers note each change in its own transaction: the trail must have one entry for each, and no other. */
async function checkAudit({ store, violate }: Evidence): Promise<void> {
  const rows = await store.query<{ action: string; object_id: string; changes: number; entries: number }>(sql`
    select action, object_id, sum(changes) as changes, sum(entries) as entries from (
      select action, object_id, 1 as changes, 0 as entries from sim_audited_changes
      union all
      select action, object_id, 0, 1 from audit where action in (select action from sim_audited_actions)) as both_sides
    group by action, object_id having sum(changes) <> sum(entries)`)
  for (const { action, object_id, changes, entries } of rows) {
    violate('audit', `${action} of ${object_id} happened ${changes} times and has ${entries} entries`)
  }
}
