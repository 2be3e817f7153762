import { sql } from '../../../src/db/sql.ts'
import type { JobRow } from '../../../src/jobs/job-row.ts'
import { questionTimes } from '../../../src/jobs/job-types.ts'
import { BARRED_USER } from '../clients/operator-scenario.ts'
import { subOf } from '../outside/identity.ts'
import { isOwn, type SimRun } from '../outside/runtime.ts'
import { JOB_TYPES } from '../system/sim-config.ts'
import type { Evidence } from './evidence.ts'

/** How wrong the calendar of a node may be without a step of the database's clock. */
const CALENDAR_SLACK_MS = 1_500
/** A node whose loops are slowed down notices within this time that a question has expired. */
const NOTICED_WITHIN_MS = 600_000
/** In quiet times, a node notices within this time that a reminder is due, also after evidence that it was closed. */
const REMINDED_WITHIN_MS = 8_000
const RECOVERY_MS = 60_000
const SKEW_MS = 5_000

/** Times that users and types chose: delayed starts, questions that expire, reminders, and the runs of one owner. */
export async function checkTimes(evidence: Evidence): Promise<void> {
  checkDelays(evidence)
  await checkBarred(evidence)
  await checkQuestionTimes(evidence)
  await checkReminders(evidence)
  checkRunsOfOwners(evidence)
}

/** A delayed job never starts early. `checkRuns` says that it starts once, `checkJobs` that it starts at all. */
function checkDelays({ jobs, plan, runtime, violate }: Evidence): void {
  // The calendar follows a step of the database's clock.
  if (plan.incidents.some(({ incident }) => incident.kind === 'clock_step')) return
  const runAt = new Map(jobs.map(({ id, run_at }) => [id, run_at]))
  for (const { runId, metadata, createdAtMs } of [...runtime.runs.values()].filter(isOwn)) {
    const atMs = runAt.get(String(metadata.job_id)) ?? null
    if (atMs !== null && createdAtMs < atMs - CALENDAR_SLACK_MS)
      violate('delays', `${runId} of ${metadata.job_id} started ${atMs - createdAtMs} ms early`)
  }
}

/** The delayed job of a user who was blocked before ends cancelled, without a run, and its timeline says why. */
async function checkBarred({ store, jobs, plan, runtime, observed, violate }: Evidence): Promise<void> {
  const { barredAtMs } = observed.operators
  if (barredAtMs === null || plan.incidents.some(({ incident }) => incident.kind === 'clock_step')) return
  const reasons = await store.query<{ job_id: string }>(sql`
    select job_id from job_timeline where kind = 'cancel_requested' and detail ->> '$.reason' = 'user_blocked'`)
  const explained = new Set(reasons.map(({ job_id }) => job_id))
  const runs = [...runtime.runs.values()]
  for (const job of jobs.filter(({ created_by }) => created_by === subOf(BARRED_USER))) {
    if ((job.run_at ?? 0) < barredAtMs + CALENDAR_SLACK_MS) continue
    const hasRun = runs.some(({ metadata }) => metadata.job_id === job.id)
    if (job.status !== 'cancelled' || hasRun || !explained.has(job.id))
      violate('delays', `${job.id} of a blocked user is ${job.status}, with a run: ${hasRun}`)
  }
}

type EventRow = { job_id: string; type: string; cause: string; created_at: number }

/** One question of a job, and the event that closed it. All times are the service's. */
interface Question {
  job: JobRow
  cause: string
  askedAtMs: number
  closed: EventRow | undefined
}

async function findQuestions({ store, jobs }: Evidence): Promise<Question[]> {
  const rows = await store.query<EventRow>(sql`
    select job_id, type, cause, created_at from events where job_id is not null and type <> 'job.reminder' order by seq`)
  const byJob = Map.groupBy(rows, ({ job_id }) => job_id)
  return jobs.flatMap((job) => {
    const events = (byJob.get(job.id) ?? []).filter(({ cause }) => !cause.includes(':answered_elsewhere:'))
    return events.flatMap(({ type, cause, created_at: askedAtMs }, index) =>
      type === 'job.awaiting_input' ? [{ job, cause, askedAtMs, closed: events[index + 1] }] : [],
    )
  })
}

/** A question expires not early and is not forgotten. An answer is accepted until then, and not later. */
async function checkQuestionTimes(evidence: Evidence): Promise<void> {
  const { nowMs, plan, violate } = evidence
  for (const { job, askedAtMs, closed } of await findQuestions(evidence)) {
    const byMs = questionTimes(askedAtMs, JOB_TYPES.get(job.type)).answer_by
    const isExpired = closed?.type === 'job.failed'
    if (isExpired && (byMs === null || job.error_code !== 'answer_expired'))
      violate('questions', `${job.id} failed with ${job.error_code} while its question was open`)
    if (byMs === null) continue
    if (isExpired && closed.created_at < byMs)
      violate('questions', `the question of ${job.id} expired ${byMs - closed.created_at} ms early`)
    if (closed?.cause.endsWith(':resumed') && closed.created_at >= byMs)
      violate('questions', `${job.id} was answered ${closed.created_at - byMs} ms after its question expired`)
    const isForgotten = closed === undefined && nowMs > byMs + NOTICED_WITHIN_MS
    // With one or two slots, jobs wait for each other.
    if (isForgotten && plan.slots === null)
      violate('questions', `the question of ${job.id} is open ${nowMs - byMs} ms after its time`)
  }
}

/** One event, one timeline entry and one push for each reminder, not early; and a reminder for each question that needs one. */
async function checkReminders(evidence: Evidence): Promise<void> {
  const { store, gone, plan, runtime, faultsStoppedAtMs, calmEndedAtMs, violate } = evidence
  const rows = await store.query<EventRow>(sql`
    select job_id, type, cause, created_at from events where type = 'job.reminder'`)
  const reminders = new Map(rows.map((row) => [row.cause, row]))
  const noted = await store.query<{ job_id: string; entries: number }>(sql`
    select job_id, sum(times) as entries from job_timeline where kind = 'reminded' group by job_id`)
  const told = Map.groupBy(rows, ({ job_id }) => job_id)
  for (const { job_id, entries } of noted) {
    if (!gone.has(job_id) && (told.get(job_id) ?? []).length !== entries)
      violate('questions', `${job_id} was reminded ${entries} times, with ${told.get(job_id)?.length ?? 0} events`)
  }
  // While the database's clock is wrong, the service's time may run slower by a tenth.
  const mayLagMs = plan.incidents.reduce(
    (lagMs, { incident }) => Math.max(lagMs, incident.kind === 'clock_step' ? incident.ms / 10 : 0),
    0,
  )
  for (const { job, cause, askedAtMs, closed } of await findQuestions(evidence)) {
    const dueMs = questionTimes(askedAtMs, JOB_TYPES.get(job.type)).remind_at
    const reminder = reminders.get(cause.replace(/awaiting_input$/, 'reminder'))
    if (reminder && (dueMs === null || reminder.created_at < dueMs))
      violate('questions', `${job.id} was reminded too early`)
    // Also a run of another client that fails at once, and so leaves no checkpoint, closes the question.
    const isChanged = runtime.wasChangedElsewhere(job.thread_id) || !runtime.runsOn(job.thread_id).every(isOwn)
    if (dueMs === null || reminder || plan.slots !== null || isChanged) continue
    const lastMs = dueMs + REMINDED_WITHIN_MS + mayLagMs
    const isQuiet = askedAtMs > faultsStoppedAtMs + RECOVERY_MS && lastMs < calmEndedAtMs
    if (isQuiet && (closed === undefined || closed.created_at > lastMs))
      violate('questions', `the owner of ${job.id} was not reminded`)
  }
  await checkReminderPushes(evidence)
}

async function checkReminderPushes({ store, gone, violate }: Evidence): Promise<void> {
  const wanted = await store.query<{ cause: string; devices: string | null }>(sql`
    select cause, case when wants_push = 1 then devices end as devices from sim_reminders`)
  const pushed = await store.query<{ cause: string; devices: string | null }>(sql`
    select n.cause, (select group_concat(device_id, ',') from (
      select device_id from deliveries where notification_id = n.id order by device_id)) as devices
    from notifications n where n.cause like '%:reminder'`)
  for (const { cause, devices } of wanted) {
    if (gone.has(cause.slice(0, cause.indexOf(':')))) continue
    const pushes = pushed.filter((push) => push.cause === cause).map((push) => push.devices)
    const due = devices === null ? [] : [devices]
    if (pushes.join(';') !== due.join(';')) violate('questions', `${cause}: pushes for [${pushes}], devices [${due}]`)
  }
}

/** When a run of the service begins, its owner has fewer other runs of the type than the type allows. */
function checkRunsOfOwners({ jobs, runtime, violate }: Evidence): void {
  for (const [name, { maxRunningPerOwner: limit }] of JOB_TYPES) {
    if (limit === null) continue
    const byId = new Map(jobs.filter(({ type }) => type === name).map((job) => [job.id, job]))
    const jobOf = (run: SimRun) => byId.get(String(run.metadata.job_id))
    const own = [...runtime.runs.values()].filter((run) => isOwn(run) && !run.isLate && jobOf(run) !== undefined)
    for (const run of own) {
      const atMs = run.createdAtMs
      const isActive = (other: SimRun) => {
        const job = jobOf(other)
        if (other.createdAtMs >= atMs || (other.endedAtMs ?? atMs + 1) <= atMs || other.removed) return false
        return job?.run_id === other.runId && (job.finished_at ?? nowhere) > atMs + SKEW_MS
      }
      const others = own.filter((other) => jobOf(other)?.created_by === jobOf(run)?.created_by && isActive(other))
      if (others.length >= limit)
        violate('places', `${run.runId} began while ${others.length} other runs of its owner were active`)
    }
  }
}

const nowhere = Number.POSITIVE_INFINITY
