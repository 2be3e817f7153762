import { sql } from '../../../src/db/sql.ts'
import type { JobRow } from '../../../src/jobs/job-row.ts'
import { countsTokens, TOKENS } from '../outside/run-plans.ts'
import { JOB_TYPES } from '../system/sim-config.ts'
import type { Transition } from './change-triggers.ts'
import { type Evidence, isFinal } from './evidence.ts'

/** I2: every effect of a job's end is stored exactly once. */
export async function checkEffects(evidence: Evidence): Promise<void> {
  await checkUsage(evidence)
  await checkEvents(evidence)
  await checkTimelines(evidence)
  await checkIntents(evidence)
}

type UsageRow = {
  job_id: string
  subject: string | null
  period: string
  type: string
  input_tokens: number
  output_tokens: number
  total_tokens: number
}

async function checkUsage({ store, jobs, violate }: Evidence): Promise<void> {
  const rows = await store.query<UsageRow>(sql`select * from usage_records`)
  const byJob = Map.groupBy(rows, (row) => row.job_id)
  for (const job of jobs) {
    const found = byJob.get(job.id) ?? []
    if (found.length !== (isFinal(job.status) ? 1 : 0)) {
      violate('I2', `${job.id} is ${job.status} and has ${found.length} usage rows`)
    }
    for (const row of found) checkUsageRow(row, job, violate)
  }
  const counters = await store.query<UsageRow & { subject: string; runs: number }>(
    sql`select * from usage_counters where type <> ''`,
  )
  const counted = counters.map(({ subject, period, type, runs, total_tokens }) =>
    JSON.stringify([subject, period, type, runs, total_tokens]),
  )
  const owned = rows.filter((row) => row.subject !== null)
  const sums = [...Map.groupBy(owned, ({ subject, period, type }) => JSON.stringify([subject, period, type]))].map(
    ([key, group]) => {
      const total = group.reduce((sum, row) => sum + row.total_tokens, 0)
      return JSON.stringify([...(JSON.parse(key) as string[]), group.length, total])
    },
  )
  if (counted.sort().join() !== sums.sort().join()) violate('I2', `counters say ${counted}, records ${sums}`)
}

function checkUsageRow(row: UsageRow, job: JobRow, violate: Evidence['violate']): void {
  const total = job.status === 'completed' && countsTokens(job.type) ? TOKENS.total : 0
  const period = new Date(job.finished_at ?? 0).toISOString().slice(0, 7)
  if (row.subject !== job.created_by || row.type !== job.type || row.period !== period || row.total_tokens !== total) {
    violate('I2', `the usage of ${job.id} is ${JSON.stringify(row)}`)
  }
}

async function checkEvents({ store, transitionsByJob, violate }: Evidence): Promise<void> {
  const rows = await store.query<{ job_id: string; type: string; data: string }>(
    sql`select job_id, type, data from events where job_id is not null order by seq`,
  )
  const byJob = Map.groupBy(rows, (row) => row.job_id)
  for (const [jobId, transitions] of transitionsByJob) {
    const wanted = transitions.filter(counts).map((transition) => `${eventOf(transition)}(${transition.new})`)
    const found = (byJob.get(jobId) ?? [])
      .map(({ type, data }) => ({ type, new: (JSON.parse(data) as { status: string }).status }))
      .filter(counts)
      .map((event) => `${event.type}(${event.new})`)
    if (wanted.join() !== found.join()) violate('I2', `${jobId} moved ${wanted}, its events are ${found}`)
  }
}

/** Not the transition to `generating`: when two callbacks share a commit, the row goes straight to its end. */
function counts(transition: { new: string }): boolean {
  return transition.new !== 'generating'
}

function eventOf({ old, new: to }: Transition): string {
  if (old === null) return 'job.created'
  return to === 'generating' || to === 'processing' ? 'job.updated' : `job.${to}`
}

async function checkTimelines({ store, transitionsByJob, violate }: Evidence): Promise<void> {
  const rows = await store.query<{ job_id: string; entries: number }>(
    sql`select job_id, count(*) as entries from job_timeline
      where kind = 'transition' and detail ->> '$.to' <> 'generating' group by job_id`,
  )
  const entries = new Map(rows.map((row) => [row.job_id, row.entries]))
  for (const [jobId, transitions] of transitionsByJob) {
    const noticed = transitions.filter(
      (transition) => transition.old !== null && transition.new !== 'processing' && counts(transition),
    ).length
    if ((entries.get(jobId) ?? 0) !== noticed)
      violate('I2', `the timeline of ${jobId} does not show its ${noticed} transitions`)
  }
}

/** One notification per transition that notifies the owner, with one delivery for each device the owner has then. */
async function checkIntents({ store, jobs, transitionsByJob, violate }: Evidence): Promise<void> {
  const rows = await store.query<{ job_id: string; status: string; devices: string | null }>(sql`
    select n.job_id, n.data ->> '$.status' as status,
      (select group_concat(device_id, ',') from (
        select device_id from deliveries where notification_id = n.id order by device_id)) as devices
    from notifications n where n.job_id is not null order by n.id`)
  const found = Map.groupBy(rows, ({ job_id, status }) => `${job_id} ${status}`)
  const types = new Map(jobs.map((job) => [job.id, JOB_TYPES.get(job.type)]))
  const wanted = [...transitionsByJob.values()].flat().filter((transition) => {
    const texts = types.get(transition.job_id)?.notifications ?? {}
    return (
      transition.old !== null &&
      transition.owner !== null &&
      transition.wants_push === 1 &&
      transition.devices !== null &&
      transition.new in texts
    )
  })
  const expected = Map.groupBy(wanted, ({ job_id, new: status }) => `${job_id} ${status}`)
  for (const key of new Set([...found.keys(), ...expected.keys()])) {
    const given = (found.get(key) ?? []).map(({ devices }) => devices)
    const due = (expected.get(key) ?? []).map(({ devices }) => devices)
    if (given.join(';') !== due.join(';'))
      violate('I2', `${key}: pushes for [${given.join(';')}], devices [${due.join(';')}]`)
  }
}
