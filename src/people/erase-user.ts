import { eraseAuditedProfile } from '../audit/audit-store.ts'
import { type AuditOrigin, recordAudit } from '../audit/record-audit.ts'
import type { Clock } from '../core/clock.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Database, Transaction } from '../db/database.ts'
import { deleteEventsFor } from '../events/event-store.ts'
import { deleteAnswersFor } from '../http/idempotency-store.ts'
import type { Jobs } from '../jobs/actions/jobs.ts'
import { isTerminal } from '../jobs/job.ts'
import type { JobContext } from '../jobs/job-context.ts'
import { eraseSomeJobs } from '../jobs/retention/erase-jobs.ts'
import { countJobsOf, eraseActor } from '../jobs/retention/erase-store.ts'
import { deleteThreadsAtRuntime, type ErasedThreads, STAYS_WITH_OTHERS } from '../jobs/retention/erase-threads.ts'
import { settleJobs } from '../jobs/settlement/settle.ts'
import type { JobUpdate, Settlement } from '../jobs/settlement/settlement.ts'
import { eraseThreads } from '../jobs/thread-store.ts'
import { findUnfinishedOf } from '../jobs/uncommon-jobs.ts'
import type { StepOutcome, SteppedAction, SteppedWork } from '../operations/bulk-actions.ts'
import { findOperation, insertOperation, type OperationRow } from '../operations/operation-store.ts'
import { removeCreator } from '../projects/project-store.ts'
import { eraseDevicesAndNotifications } from '../push/trim-notifications.ts'
import { removeAccountCreator } from '../service-accounts/service-account-store.ts'
import { eraseLimits } from '../usage/limit-store.ts'
import { eraseCounters } from '../usage/usage-store.ts'
import { beginErasure, endErasure, findErasure, wasErased } from '../users/user-state-store.ts'
import { deleteUser } from '../users/user-store.ts'
import { deleteDeliveriesOf } from '../webhooks/delivery-store.ts'
import { eraseEndpointCreator } from '../webhooks/endpoint-store.ts'
import { onDeleted } from './deleted-records.ts'
import { isKnownUser } from './export-user.ts'

const BATCH = 500
const CANCELLED_AT_ONCE = 50
/** By then every node refuses the user, so nothing new appears while the last records are erased. */
const REFUSED_EVERYWHERE_MS = 5_000
/** How long the runtime has to stop the user's runs. After that the jobs end as cancelled without it. */
const STOP_WITHIN_MS = 30_000
const LOOK_AGAIN_MS = 1_000
const ASK_RUNTIME_AGAIN_MS = 10_000

interface ErasureContext {
  ids: IdGenerator
  clock: Clock
}

/**
 * Starts the erasure of a user, or finds the one that runs already. Undefined: there is no such user. The erasure of an
 * erased user can be repeated: threads that stayed, because the runtime was away, are then deleted.
 */
export async function startErasure(
  db: Database,
  { ids, clock }: ErasureContext,
  { sub, by }: { sub: string; by: AuditOrigin },
): Promise<OperationRow | undefined> {
  const running = await findErasure(db, sub)
  if (running !== null) return findOperation(db, running)
  if (!(await isKnownUser(db, sub)) && !(await wasErased(db, sub))) return undefined
  return db.transaction(async (tx) => {
    const id = ids.next('opr')
    if (!(await beginErasure(tx, { sub, operationId: id })))
      return findOperation(tx, (await findErasure(tx, sub)) ?? '')
    const total = (await countJobsOf(tx, sub)) + 1
    const object = { kind: 'user', id: sub } as const
    await recordAudit(tx, { ids, clock }, { by, action: 'user.erasure_started', object, after: { operation_id: id } })
    return insertOperation(tx, { id, action: 'erase', by, objectIds: [sub], total, atMs: clock.now() })
  })
}

interface ErasureServices {
  jobContext: JobContext
  jobs: Jobs
}

/**
 * Erases a user in bounded steps. Each step erases what it finds, so a step that is repeated after a crash does no harm.
 * The profile and the state of the user change in the last one.
 */
export function eraseAction(services: ErasureServices): SteppedAction {
  const { jobContext } = services
  return {
    transact: async (wanted, work) => {
      const { objectId: owner, failingSinceMs, signal } = wanted
      const erasedThreads = await deleteThreadsAtRuntime(jobContext, { owner, failingSinceMs, signal })
      return settleJobs(jobContext, (tx, settlement) =>
        work(tx, () => eraseStep(services, tx, settlement, { ...wanted, erasedThreads })),
      )
    },
  }
}

async function eraseStep(
  services: ErasureServices,
  tx: Transaction,
  settlement: Settlement,
  wanted: SteppedWork & { erasedThreads: ErasedThreads },
): Promise<StepOutcome> {
  const { objectId: sub, startedAtMs } = wanted
  const { atMs } = settlement
  // Devices first: the end of the user's jobs is not pushed any more.
  if (await eraseDevicesAndNotifications(tx, sub, BATCH)) return { done: 0, next: 'more' }
  const unfinished = await findUnfinishedOf(tx, { owner: sub, limit: CANCELLED_AT_ONCE })
  if (unfinished.some(({ isCancelRequested }) => isCancelRequested === 0)) {
    return requestCancels(services, tx, settlement, { ids: unfinished.map(({ id }) => id), by: wanted.by })
  }
  const { found, erased, ofOthers } = await eraseSomeJobs(tx, { owner: sub, atMs, countDeleted: onDeleted })
  const stay = ofOthers.map((id) => ({ object_id: id, error: STAYS_WITH_OTHERS }))
  if (found > 0) return { done: erased, next: 'more', failures: stay }
  if (unfinished.length > 0) {
    if (atMs < startedAtMs + STOP_WITHIN_MS) return { done: 0, next: { waitMs: LOOK_AGAIN_MS } }
    await settlement.settle(unfinished.map(({ id }) => cancelled(id)))
    return { done: 0, next: 'more' }
  }
  const untilRefusedMs = startedAtMs + REFUSED_EVERYWHERE_MS - atMs
  if (untilRefusedMs > 0) return { done: 0, next: { waitMs: untilRefusedMs } }
  const { ids, failures, next, isFailing } = wanted.erasedThreads
  if (ids.length > 0) await eraseThreads(tx, ids)
  if (next === 'more') return { done: 0, next, failures, isFailing }
  if (next === 'pause') return { done: 0, next: { waitMs: ASK_RUNTIME_AGAIN_MS }, isFailing }
  if (await eraseRest(tx, sub)) return { done: 0, next: 'more' }
  await eraseCounters(tx, sub)
  await eraseLimits(tx, sub)
  await deleteUser(tx, sub)
  await endErasure(tx, { sub, atMs })
  const object = { kind: 'user', id: sub } as const
  const after = { operation_id: wanted.operationId }
  await recordAudit(tx, services.jobContext, { by: wanted.by, action: 'user.erased', object, after })
  return { done: 0, next: 'end', failures }
}

async function requestCancels(
  { jobs }: ErasureServices,
  tx: Transaction,
  settlement: Settlement,
  { ids, by }: { ids: readonly string[]; by: AuditOrigin },
): Promise<StepOutcome> {
  const running: string[] = []
  for (const job of await settlement.lock(ids)) {
    // The job may have ended meanwhile.
    if (isTerminal(job.status)) continue
    if (await jobs.requestCancel(tx, settlement, { job, by, reason: 'user_erased' })) running.push(job.id)
  }
  await settlement.write()
  const stopRuns = () => {
    for (const id of running) jobs.stopSoon(id)
  }
  return { done: 0, next: 'more', afterCommit: stopRuns }
}

function cancelled(jobId: string): JobUpdate {
  return { jobId, runId: null, verdict: { kind: 'cancelled' }, via: null, traces: null }
}

/** Erases all other records that name the user. True if another step is needed. */
async function eraseRest(tx: Transaction, sub: string): Promise<boolean> {
  let more = await eraseActor(tx, sub, BATCH)
  await removeAccountCreator(tx, sub)
  await eraseEndpointCreator(tx, sub)
  const events = await deleteEventsFor(tx, sub, BATCH)
  await deleteDeliveriesOf(tx, events)
  more = events.length === BATCH || more
  more = (await deleteAnswersFor(tx, sub, BATCH)) || more
  more = (await removeCreator(tx, sub, BATCH)) || more
  return (await eraseAuditedProfile(tx, sub, BATCH)) || more
}
