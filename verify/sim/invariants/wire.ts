import { sql } from '../../../src/db/sql.ts'
import type { JobRow } from '../../../src/jobs/job-row.ts'
import { LEASE_HELD_MS } from '../faults/incidents.ts'
import { JOB_TYPES } from '../system/sim-config.ts'
import { readUnleasedChecks } from './change-triggers.ts'
import type { Evidence } from './evidence.ts'

/** The bound on the average. A start or the last check makes up to five calls, most checks make one. */
const CALLS_PER_CHECK = 2
/** Checks by a sweep that backs off from five seconds to five minutes. */
const CHECKS_PER_RUN = 10
/** The calls of one check, each with its timeout. */
const LONGEST_CHECK_MS = 25_000
/** How far the service's time may be from the real one; after a step of the database's clock it may be further. */
const SLACK_MS = 1_500
const STEPPED_SLACK_MS = 16_500
const HOUR_MS = 3_600_000
const LONGEST_PAUSE_MS = 150_000
/** A job on an open stream is checked this often. */
const STREAMED_PAUSE_MS = 4_000

/** I5 to I7 and push: accepted callbacks are stored, forged ones are not, the runtime is not called too often, pushes arrive. */
export async function checkWire(evidence: Evidence): Promise<void> {
  await checkCallbacks(evidence)
  await checkOverlaps(evidence)
  await checkCalls(evidence)
  for (const { job_id } of await readUnleasedChecks(evidence.store)) {
    evidence.violate('I7', `a check of ${job_id} was stored without a lease`)
  }
  await checkDeliveries(evidence)
}

async function checkCallbacks({ store, callbacks, runtime, gone, violate }: Evidence): Promise<void> {
  const rows = await store.query<{ body: string; outcome: string }>(sql`select body, outcome from callbacks`)
  const stored = new Set(rows.map(({ body }) => /"nonce":"([^"]*)"/.exec(body)?.[1]))
  for (const [nonce, { runId, answer }] of callbacks.accepted) {
    // Nothing of a deleted or erased job is stored.
    if (gone.has(String(runtime.runs.get(runId)?.metadata.job_id))) continue
    if (!stored.has(nonce)) violate('I5', `callback ${nonce} was answered ${answer} and is not stored`)
  }
  for (const nonce of stored) if (nonce?.startsWith('forged')) violate('I6', `the forged callback ${nonce} is stored`)
  for (const { body } of rows) {
    if (/webhooks[^"]*[?&]token=(?!\[redacted\])/.test(body)) violate('I6', 'a callback was stored with its token')
  }
}

/** The check of a turn that a callback has just ended may still be in progress when the next turn starts, and even ends. */
async function checkOverlaps({ store, plan, overlaps, jobs, violate }: Evidence): Promise<void> {
  const abandoned = new Map((await readAbandoned(store)).map(({ id, replaced_by }) => [id, replaced_by ?? id]))
  // The stored times are the service's.
  const isStepped = plan.incidents.some(({ incident }) => incident.kind === 'clock_step')
  const slackMs = isStepped ? STEPPED_SLACK_MS : SLACK_MS
  for (const { thread, isLook, atMs } of overlaps) {
    const sinceMs = atMs - LONGEST_CHECK_MS - slackMs
    const untilMs = atMs + slackMs
    // After an abandoned start, its node looks for the late run, also while another node begins the next turn.
    if (isLook && abandoned.has(thread)) continue
    // The conversation may have moved to another thread since.
    const turns = jobs.filter(({ thread_id }) => thread_id === (abandoned.get(thread) ?? thread))
    const isNextTurn = turns.some(
      ({ id, finished_at }) =>
        (finished_at ?? 0) > sinceMs &&
        (finished_at ?? 0) <= untilMs &&
        turns.some((next) => next.id > id && next.created_at <= untilMs && (next.finished_at ?? atMs) >= sinceMs),
    )
    if (!isNextTurn) violate('I7', `two processes call the runtime about thread ${thread} at once, at ${atMs}`)
  }
}

/** The threads on which a start was abandoned. */
function readAbandoned(store: Evidence['store']): Promise<{ id: string; replaced_by: string | null }[]> {
  return store.query(sql`select id, replaced_by from threads where replaced_by is not null or is_pinned = 1`)
}

async function checkCalls({
  store,
  jobs,
  network,
  callbacks,
  observed,
  crashes,
  suspensions,
  databaseFaults,
  streams,
  runtime,
  nowMs,
  violate,
}: Evidence): Promise<void> {
  const abandoned = await readAbandoned(store)
  const isStreamed = ({ id, created_by }: JobRow) =>
    streams.some(({ subject, jobId }) => jobId === id || (subject !== null && subject === created_by))
  const byThread = Map.groupBy(jobs, ({ thread_id }) => thread_id)
  for (const [thread, turns] of byThread) {
    // When a client followed the run of another job, both jobs call the runtime about it.
    if (turns.length > 1 && turns.some(({ input }) => input === null)) continue
    const ofTurns = turns.map((job) => {
      const lifetimeMs = (job.finished_at ?? nowMs) - job.created_at
      return (
        (CHECKS_PER_RUN + checksOfQuestion(job)) * job.run_seq +
        Math.ceil(lifetimeMs / LONGEST_PAUSE_MS) +
        (observed.lists.get(job.created_by ?? '') ?? 0) +
        2 * (crashes + suspensions + databaseFaults) +
        (isStreamed(job) ? Math.ceil(lifetimeMs / STREAMED_PAUSE_MS) : 0)
      )
    })
    // A conversation that moved was called about under its old threads, too.
    const threads = [thread, ...abandoned.filter(({ replaced_by }) => replaced_by === thread).map(({ id }) => id)]
    const countOf = (counts: ReadonlyMap<string, number>) => threads.reduce((sum, id) => sum + (counts.get(id) ?? 0), 0)
    const checks =
      ofTurns.reduce((sum, checksOfTurn) => sum + checksOfTurn, 0) +
      countOf(observed.requests) +
      countOf(callbacks.arrived)
    const calls = countOf(network.calls)
    // After a start was repeated, the checks list the runs of the thread, too.
    const wasRepeated = [...runtime.runs.values()].some(
      ({ threadId, metadata }) => threads.includes(threadId) && metadata.attempt !== undefined,
    )
    if (calls > checks * (CALLS_PER_CHECK + (wasRepeated ? 1 : 0)))
      violate('I7', `${turns.map(({ id }) => id)} cost ${calls} calls of the runtime for ${checks} checks`)
  }
}

async function checkDeliveries({
  store,
  plan,
  provider,
  crashes,
  suspensions,
  databaseFaults,
  faultsStoppedAtMs,
  nowMs,
  violate,
}: Evidence): Promise<void> {
  const doubtsEndAtMs = faultsStoppedAtMs + 2 * HOUR_MS
  for (const { tag, jobId } of provider.pushes) {
    if (tag !== jobId) violate('push', `a push for ${jobId} went out under the tag ${tag}`)
  }
  const rows = await store.query<{
    job_id: string
    status: string
    state: string
    token: string
    error: string
  }>(sql`
    select n.job_id, n.data ->> '$.status' as status, d.state, v.token, coalesce(d.last_error, '') as error
    from deliveries d join notifications n on n.id = d.notification_id join sim_devices v on v.id = d.device_id`)
  const delivered = Map.groupBy(
    provider.pushes.filter((push) => push.delivered),
    ({ jobId, status, token }) => `${jobId} ${status} ${token}`,
  )
  for (const { job_id, status, state, token, error } of rows) {
    const key = `${job_id} ${status} ${token}`
    // A push expires when no node was up for an hour, or when the loops of all nodes slept for longer.
    if (state === 'expired' && Math.max(plan.blackoutMs, plan.refusedMs) > HOUR_MS) continue
    if (state === 'failed' && provider.rejected.has(key)) continue
    // The outbox may not trust a report that a device is dead, and retries within the hour.
    const mayWait = provider.deadTokens.has(token) || (provider.calledDead.has(token) && nowMs < doubtsEndAtMs)
    if (state !== 'sent' && mayWait) continue
    if (state !== 'sent' && state !== 'disabled') violate('push', `the delivery ${key} ended as ${state}: ${error}`)
    if (state === 'sent' && !delivered.has(key)) violate('push', `${key} is sent and never arrived`)
  }
  // A job that pauses twice is pushed twice under one status: one push per delivery.
  const due = Map.groupBy(rows, ({ job_id, status, token }) => `${job_id} ${status} ${token}`)
  const mayLoseLeases =
    suspensions > 0 ||
    plan.incidents.some(({ incident }) => incident.kind === 'database_down' && incident.ms > LEASE_HELD_MS)
  for (const key of mayLoseLeases ? [] : provider.overlaps) {
    if (due.get(key)?.length === 1) violate('push', `${key} was being sent twice at once`)
  }
  // Only a crash between sending and marking may send twice; the device shows one, because the tag is the same.
  if (crashes + suspensions + databaseFaults > 0) return
  for (const [key, pushes] of delivered) {
    const known = pushes.filter(({ verdict }) => verdict === 'sent').length
    if (known > (due.get(key)?.length ?? 0)) violate('push', `${key} was delivered ${known} times`)
  }
}

/** A question is checked once more when its owner is reminded, and when it expires. */
function checksOfQuestion({ type }: JobRow): number {
  const { answerWithinMs = null, remindAfterMs = null } = JOB_TYPES.get(type) ?? {}
  return (answerWithinMs === null ? 0 : 1) + (remindAfterMs === null ? 0 : 1)
}
