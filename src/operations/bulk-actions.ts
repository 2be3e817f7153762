import type { AuditOrigin } from '../audit/record-audit.ts'
import { ApiError } from '../core/errors.ts'
import type { Transaction } from '../db/database.ts'
import type { Jobs } from '../jobs/actions/jobs.ts'
import { RetriedAlready, repeatJob } from '../jobs/actions/retry-job.ts'
import type { CallbackIntake } from '../jobs/callbacks/callback-intake.ts'
import type { ReceivedCallback } from '../jobs/callbacks/match-callbacks.ts'
import { readStoredCallback } from '../jobs/callbacks/replay.ts'
import { isTerminal } from '../jobs/job.ts'
import type { JobContext } from '../jobs/job-context.ts'
import { findSlimJobs, lockSlimJobs } from '../jobs/job-store.ts'
import { askerWithoutScopes } from '../jobs/runs/caller.ts'
import { settleJobs } from '../jobs/settlement/settle.ts'
import type { Settlement } from '../jobs/settlement/settlement.ts'
import { lockThreadsOf } from '../jobs/thread-store.ts'
import type { Reconciler } from '../jobs/worker/reconcile.ts'
import { sentenceOf } from './item-errors.ts'
import type { BulkActionName, OperationAction, OperationItem } from './operation-store.ts'

export interface ItemResult {
  /** Why the item failed; null if it succeeded. */
  error: string | null
  /** Why the item was left alone. */
  skipped?: string
  /** Called once the item is durable. */
  afterCommit?: () => void
}

/** Processes items in the transaction that also records them. It throws only errors that fail the whole transaction. */
type ApplyItems = (items: readonly OperationItem[], by: AuditOrigin) => Promise<ItemResult[]>

export type BulkAction =
  | {
      /** How many items share a transaction. */
      batch: number
      transact: <Result>(work: (tx: Transaction, apply: ApplyItems) => Promise<Result>) => Promise<Result>
    }
  /** Runs outside of a transaction; running it twice does no harm. */
  | { batch: number; ask: (ids: readonly string[]) => Promise<ItemResult[]> }

type BulkActions = Record<BulkActionName, BulkAction>

/** One step of work on one object: what it did, and whether the operation is over, has more to do, or must wait. */
export interface StepOutcome {
  done: number
  /** `stop`: it cannot go on, and its other units are not done. */
  next: 'end' | 'stop' | 'more' | { waitMs: number }
  /** Further objects that the step could not handle, and why. */
  failures?: readonly { object_id: string; error: string }[]
  /** Whether another service failed that the step needs; absent: as before. */
  isFailing?: boolean | undefined
  /** Called once the step is durable. */
  afterCommit?: () => void
}

export interface SteppedWork {
  objectId: string
  operationId: string
  by: AuditOrigin
  /** When the operation was created. */
  startedAtMs: number
  /** Since when its steps fail because of another service; null: the last one did not. */
  failingSinceMs: number | null
  /** Aborted when the process stops: what the step does outside of its transaction ends at once. */
  signal: AbortSignal
}

/**
 * Works on one object in bounded steps, each in a transaction that also records the progress. What a step does outside of
 * it comes first; repeating it does no harm.
 */
export interface SteppedAction {
  transact: <Result>(
    wanted: SteppedWork,
    work: (tx: Transaction, step: () => Promise<StepOutcome>) => Promise<Result>,
  ) => Promise<Result>
}

export type OperationActions = BulkActions & Record<Exclude<OperationAction, BulkActionName>, SteppedAction>

const DONE: ItemResult = { error: null }

interface BulkActionServices {
  jobContext: JobContext
  jobs: Jobs
  intake: CallbackIntake
  reconciler: Reconciler
}

/** What each action does to its items. Inputs and bodies may be large, so their batches are small. */
export function bulkActions(services: BulkActionServices): BulkActions {
  const { jobContext, reconciler } = services
  const { db } = jobContext
  return {
    cancel: {
      batch: 50,
      transact: (work) =>
        settleJobs(jobContext, (tx, settlement) =>
          work(tx, (items, by) => cancelJobs(services, tx, settlement, idsOf(items), by)),
        ),
    },
    retry: {
      batch: 25,
      transact: (work) => db.transaction((tx) => work(tx, (items, by) => retryJobs(services, tx, items, by))),
    },
    replay: {
      batch: 5,
      transact: (work) =>
        settleJobs(jobContext, (tx, settlement) =>
          work(tx, (items, by) => replayCallbacks(services, tx, settlement, idsOf(items), by)),
        ),
    },
    check: { batch: 20, ask: (ids) => Promise.all(ids.map((id) => checkJob(jobContext, reconciler, id))) },
  }
}

async function cancelJobs(
  { jobs }: BulkActionServices,
  tx: Transaction,
  settlement: Settlement,
  ids: readonly string[],
  by: AuditOrigin,
): Promise<ItemResult[]> {
  const locked = new Map((await settlement.lock(ids)).map((job) => [job.id, job]))
  const results: ItemResult[] = []
  for (const id of ids) {
    results.push(
      await attempt(async () => {
        const isRunning = await jobs.requestCancel(tx, settlement, { job: locked.get(id), by })
        return isRunning ? { error: null, afterCommit: () => jobs.stopSoon(id) } : DONE
      }),
    )
  }
  await settlement.write()
  return results
}

async function retryJobs(
  services: BulkActionServices,
  tx: Transaction,
  items: readonly OperationItem[],
  by: AuditOrigin,
): Promise<ItemResult[]> {
  const ids = idsOf(items)
  const owners = new Set((await lockSlimJobs(tx, ids)).map(({ created_by }) => created_by))
  await lockThreadsOf(tx, ids)
  await services.jobs.lockUsageOf(
    tx,
    [...owners].filter((owner) => owner !== null),
  )
  const results: ItemResult[] = []
  for (const { object_id: id, retried_as: knownRetry } of items) {
    results.push(
      await attempt(async () => {
        const wanted = { id, asker: askerWithoutScopes(by.actor), by, byAdmin: true, knownRetry, startsHere: false }
        const { begin } = await repeatJob(tx, services, wanted)
        return { error: null, afterCommit: begin }
      }),
    )
  }
  return results
}

async function replayCallbacks(
  { jobContext, intake }: BulkActionServices,
  tx: Transaction,
  settlement: Settlement,
  ids: readonly string[],
  by: AuditOrigin,
): Promise<ItemResult[]> {
  const callbacks: ReceivedCallback[] = []
  const found: ItemResult[] = []
  for (const id of ids) {
    found.push(
      await attempt(async () => {
        callbacks.push(await readStoredCallback(tx, jobContext, { id, by }))
        return DONE
      }),
    )
  }
  const answers = await intake.replay(tx, settlement, callbacks)
  return found.map((result) => {
    if (result.error !== null) return result
    const answer = answers.shift()
    if (!answer || answer instanceof ApiError) return { error: answer?.message ?? 'No such callback' }
    return { error: null, afterCommit: () => intake.confirm(answer) }
  })
}

async function checkJob(context: JobContext, reconciler: Reconciler, id: string): Promise<ItemResult> {
  const [stored] = await findSlimJobs(context.db, [id])
  if (!stored) return { error: 'No such job' }
  if (context.runtime === null) return { error: 'No agent runtime is configured' }
  const job = await reconciler.checkNow(stored)
  return { error: isTerminal(job.status) ? null : job.last_error }
}

async function attempt(work: () => Promise<ItemResult>): Promise<ItemResult> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof RetriedAlready)
      return { error: null, skipped: `It was retried already, as ${error.retriedAs}` }
    return { error: sentenceOf(error) }
  }
}

function idsOf(items: readonly OperationItem[]): string[] {
  return items.map(({ object_id }) => object_id)
}
