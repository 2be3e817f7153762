import { sql } from '../../../src/db/sql.ts'
import { trespassesOf } from './change-triggers.ts'
import type { Evidence } from './evidence.ts'

/** A start or the last look may ask five times; most looks ask once, so that a job's average stays below one. */
const CALLS_PER_LOOK = 2
/** Looks of a sweep that backs off from five seconds to five minutes. */
const LOOKS_OF_A_RUN = 10
const HOUR_MS = 3_600_000
const LONGEST_PAUSE_MS = 150_000

/** I5 to I7 and the push provider: what was accepted is stored, what was forged is not, and nobody is asked too often. */
export async function checkWire(evidence: Evidence): Promise<void> {
  await checkCallbacks(evidence)
  checkCalls(evidence)
  for (const { job_id } of await trespassesOf(evidence.store)) {
    evidence.violate('I7', `a look at ${job_id} was concluded without a lease`)
  }
  await checkDeliveries(evidence)
}

async function checkCallbacks({ store, callbacks, violate }: Evidence): Promise<void> {
  const rows = await store.query<{ body: string; outcome: string }>(sql`select body, outcome from callbacks`)
  const stored = new Set(rows.map(({ body }) => /"nonce":"([^"]*)"/.exec(body)?.[1]))
  for (const [nonce, { answer }] of callbacks.accepted) {
    if (!stored.has(nonce)) violate('I5', `callback ${nonce} was answered ${answer} and is not stored`)
  }
  for (const nonce of stored) if (nonce?.startsWith('forged')) violate('I6', `the forged callback ${nonce} is stored`)
  for (const { body } of rows) {
    if (/webhooks[^"]*[?&]token=(?!\[redacted\])/.test(body)) violate('I6', 'a callback was stored with its token')
  }
}

function checkCalls({
  jobs,
  network,
  callbacks,
  promises,
  crashes,
  suspensions,
  databaseFaults,
  nowMs,
  violate,
}: Evidence): void {
  const byThread = Map.groupBy(jobs, ({ thread_id }) => thread_id)
  for (const job of jobs) {
    // Two jobs on one thread, because somebody followed the run of another: each asks for itself.
    if ((byThread.get(job.thread_id)?.length ?? 0) > 1) continue
    const lifetimeMs = (job.finished_at ?? nowMs) - job.created_at
    const looks =
      LOOKS_OF_A_RUN * job.run_seq +
      Math.ceil(lifetimeMs / LONGEST_PAUSE_MS) +
      (promises.looks.get(job.thread_id) ?? 0) +
      (callbacks.arrived.get(job.thread_id) ?? 0) +
      2 * (crashes + suspensions + databaseFaults)
    const calls = network.calls.get(job.thread_id) ?? 0
    if (calls > looks * CALLS_PER_LOOK) violate('I7', `${job.id} cost ${calls} calls of the runtime for ${looks} looks`)
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
    // Nobody waits for a push that nobody could send for an hour.
    if (state === 'expired' && plan.blackoutMs > HOUR_MS) continue
    if (state === 'failed' && provider.rejected.has(key)) continue
    // Nobody must believe at once that a device is dead; once it is back, it is looked for within the hour.
    const mayWait = provider.deadTokens.has(token) || (provider.calledDead.has(token) && nowMs < doubtsEndAtMs)
    if (state !== 'sent' && mayWait) continue
    if (state !== 'sent' && state !== 'disabled') violate('push', `the delivery ${key} ended as ${state}: ${error}`)
    if (state === 'sent' && !delivered.has(key)) violate('push', `${key} is sent and never arrived`)
  }
  // A job that paused twice is pushed twice under one status: as many as there are deliveries, each with its own cause.
  const due = Map.groupBy(rows, ({ job_id, status, token }) => `${job_id} ${status} ${token}`)
  for (const key of suspensions > 0 ? [] : provider.overlaps) {
    if (due.get(key)?.length === 1) violate('push', `${key} was being sent twice at once`)
  }
  // A crash between sending and marking sends twice; the tag hides it. Without one, nothing is sent twice.
  if (crashes + suspensions + databaseFaults > 0) return
  for (const [key, pushes] of delivered) {
    const known = pushes.filter(({ verdict }) => verdict === 'sent').length
    if (known > (due.get(key)?.length ?? 0)) violate('push', `${key} was delivered ${known} times`)
  }
}
