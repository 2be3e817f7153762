import type { Database } from '../../../src/db/database.ts'
import { sql } from '../../../src/db/sql.ts'
import type { TortureCluster } from '../cluster/cluster.ts'
import { countBy, ViolationCount } from './violation-count.ts'

type Counted = { job_id: string; times: number }

/** Checks that every job that ended has each of its effects exactly once. */
export async function auditEffects({ observed }: TortureCluster, db: Database): Promise<ViolationCount[]> {
  const lost = new ViolationCount('accepted callbacks lost')
  const duplicates = new ViolationCount('duplicate effects')
  const missing = new ViolationCount('missing effects')

  const stored = await db.query<{ run_id: string; times: number }>(
    sql`select run_id, count(*) as times from callbacks group by run_id`,
  )
  const timesOf = new Map(stored.map(({ run_id, times }) => [run_id, times]))
  for (const [runId, times] of countBy(observed.accepted, (callback) => callback.runId)) {
    const kept = timesOf.get(runId) ?? 0
    for (let n = kept; n < times; n++) lost.add(`run ${runId}: ${times} accepted, ${kept} stored`)
  }

  const ended = await db.query<{ id: string }>(sql`select id from jobs where finished_at is not null`)
  const once = async (what: string, counted: Promise<Counted[]>) => {
    const times = new Map((await counted).map((row) => [row.job_id, row.times]))
    for (const { id } of ended) {
      const n = times.get(id) ?? 0
      if (n === 0) missing.add(`${id} has no ${what}`)
      else if (n > 1) duplicates.add(`${id} has ${n} of ${what}`)
    }
  }
  await once(
    'end event',
    db.query(sql`
      select job_id, count(*) as times from events
      where type in ('job.completed', 'job.failed', 'job.cancelled') group by job_id`),
  )
  await once(
    'move to its end',
    db.query(sql`
      select job_id, sum(times) as times from (
        select job_id, times, detail from job_timeline where kind = 'transition'
        union all select job_id, 1, transition from callbacks where transition is not null) as noted
      where (detail like '%"to":"completed"%' or detail like '%"to":"failed"%'
        or detail like '%"to":"cancelled"%') group by job_id`),
  )
  const miscounted = await db.query<{ subject: string; runs: number; observed: number }>(sql`
    select c.subject, c.runs, coalesce(r.observed, 0) as observed
    from (select subject, sum(runs) as runs from usage_counters group by subject) as c
    left join (select created_by as subject, count(*) as observed from jobs where finished_at is not null
      group by created_by) as r on r.subject = c.subject`)
  for (const { subject, runs, observed: kept } of miscounted) {
    // One engine returns sums as text, the other as numbers.
    if (Number(runs) > kept) duplicates.add(`${subject} was charged ${runs} runs for ${kept} observed`)
    if (Number(runs) < kept) missing.add(`${subject} was charged ${runs} runs for ${kept} observed`)
  }
  return [lost, duplicates, missing]
}
