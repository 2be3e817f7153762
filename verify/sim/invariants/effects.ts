import { sql } from '../../../src/db/sql.ts'
import type { JobStatus } from '../../../src/jobs/job.ts'
import type { JobRow } from '../../../src/jobs/job-row.ts'
import { EXPECTED, isFinal } from '../expected-statuses.ts'
import { countsTokens, TOKENS } from '../outside/run-plans.ts'
import { JOB_TYPES } from '../system/sim-config.ts'
import type { Transition } from './change-triggers.ts'
import type { Evidence } from './evidence.ts'

/** I2: every effect of a job's end is stored exactly once. */
export async function checkEffects(evidence: Evidence): Promise<void> {
  await checkUsage(evidence)
  await checkEvents(evidence)
  await checkTimelines(evidence)
  await checkIntents(evidence)
}

/** What the counters count of a job, also of one that was deleted. */
type EndedJob = Pick<JobRow, 'type' | 'status' | 'created_by' | 'finished_at'>
type CounterRow = { subject: string; period: string; type: string; runs: number; total_tokens: number }

/** The counters are the sums of the ended jobs, and each job has the tokens that its run reported. */
async function checkUsage({ store, jobs, erased, violate }: Evidence): Promise<void> {
  for (const job of jobs) {
    const tokens = job.total_tokens ?? 0
    if (tokens !== tokensOf(job)) violate('I2', `${job.id} is ${job.status} and has ${tokens} tokens`)
  }
  const counters = await store.query<CounterRow>(sql`select * from usage_counters where type <> '' and runs > 0`)
  const counted = counters.map(({ subject, period, type, runs, total_tokens }) =>
    JSON.stringify([subject, period, type, runs, total_tokens]),
  )
  const deleted = await store.query<EndedJob>(sql`select type, status, created_by, finished_at from sim_deleted_jobs`)
  // The numbers of erased users are counted under no name.
  const nameless = erased.map((job) => ({ ...job, created_by: '' }))
  const owned = [...jobs, ...deleted, ...nameless].filter((job) => isFinal(job.status) && job.created_by !== null)
  const sums = [...Map.groupBy(owned, (job) => JSON.stringify([job.created_by, monthOf(job), job.type]))].map(
    ([key, group]) => {
      const total = group.reduce((sum, job) => sum + tokensOf(job), 0)
      return JSON.stringify([...(JSON.parse(key) as string[]), group.length, total])
    },
  )
  if (counted.sort().join() !== sums.sort().join()) violate('I2', `counters say ${counted}, jobs ${sums}`)
}

function tokensOf(job: EndedJob): number {
  return job.status === 'completed' && countsTokens(job.type) ? TOKENS.total : 0
}

function monthOf(job: EndedJob): string {
  return new Date(job.finished_at ?? 0).toISOString().slice(0, 7)
}

/** The question of a paused job was closed by hand: the job shows those that are open now, and stays paused. */
const QUESTION_CLOSED = 'job.updated(awaiting_input)'

async function checkEvents({ store, transitionsByJob, violate }: Evidence): Promise<void> {
  const closed = await store.query<{ job_id: string; times: number }>(
    sql`select job_id, count(*) as times from job_timeline where kind = 'answered_elsewhere' group by job_id`,
  )
  const timesClosed = new Map(closed.map(({ job_id, times }) => [job_id, times]))
  const rows = await store.query<{ job_id: string; type: string; data: string }>(
    sql`select job_id, type, data from events where job_id is not null and type <> 'job.reminder' order by seq`,
  )
  const byJob = Map.groupBy(rows, (row) => row.job_id)
  for (const [jobId, transitions] of transitionsByJob) {
    const wanted = transitions.filter(counts).map((transition) => `${eventOf(transition)}(${transition.new})`)
    const events = (byJob.get(jobId) ?? [])
      .map(({ type, data }) => ({ type, new: (JSON.parse(data) as { status: JobStatus }).status }))
      .filter(counts)
      .map((event) => `${event.type}(${event.new})`)
    const found = events.filter((event) => event !== QUESTION_CLOSED)
    if (wanted.join() !== found.join()) violate('I2', `${jobId} moved ${wanted}, its events are ${found}`)
    const closings = timesClosed.get(jobId) ?? 0
    if (events.length - found.length !== closings)
      violate('I2', `the question of ${jobId} was closed ${closings} times by hand, its events are ${events}`)
  }
}

/** Ignores the transition to `generating`: when two callbacks share a commit, the row moves directly to its end. */
function counts(transition: { new: JobStatus }): boolean {
  return transition.new !== 'generating'
}

function eventOf({ old, new: to }: Transition): string {
  if (old === null) return 'job.created'
  return EXPECTED[to].event
}

async function checkTimelines({ store, transitionsByJob, violate }: Evidence): Promise<void> {
  const rows = await store.query<{ job_id: string; entries: number }>(
    sql`select job_id, count(*) as entries from (
        select job_id, detail from job_timeline where kind = 'transition'
        union all select job_id, transition as detail from callbacks where transition is not null) as noted
      where detail ->> '$.to' <> 'generating' group by job_id`,
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
    from notifications n where n.job_id is not null and n.cause not like '%:reminder' order by n.id`)
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
