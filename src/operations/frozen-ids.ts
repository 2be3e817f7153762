import { ApiError } from '../core/errors.ts'
import type { Queryable } from '../db/database.ts'
import { type CallbackFilter, callbackIdPages } from '../jobs/callbacks/callback-list-store.ts'
import { type JobStatus, TERMINAL_STATUSES, UNFINISHED_STATUSES } from '../jobs/job.ts'
import { findRetries } from '../jobs/job-store.ts'
import { type FittingJob, jobIdPages } from '../jobs/lists/id-pages.ts'
import type { JobFilter } from '../jobs/lists/job-filter.ts'
import type { BulkActionName } from './operation-store.ts'

export const MAX_ITEMS = 10_000
/** Counting stops here: far more than an operation takes. */
const MAX_COUNTED = 100_000

/** The statuses of jobs to which an action applies. Other jobs that match the filter are left out. */
const STATUSES_OF: Record<Exclude<BulkActionName, 'replay'>, readonly JobStatus[]> = {
  cancel: UNFINISHED_STATUSES,
  retry: TERMINAL_STATUSES,
  check: UNFINISHED_STATUSES,
}

type OperationTarget =
  | { action: Exclude<BulkActionName, 'replay'>; filter: JobFilter }
  | { action: 'replay'; filter: CallbackFilter }

/** `knownRetries`: of jobs that may be retried again, the newest retries at the time when the ids were read. */
export interface FrozenItems {
  ids: string[]
  knownRetries: ReadonlyMap<string, string>
}

/** The items of an operation. */
export interface Items {
  /** Read when the operation is created. */
  freeze: (db: Queryable) => Promise<FrozenItems>
  /** For a dry run. `retried`: the jobs that a retry leaves out, because they were retried already. */
  count: (db: Queryable) => Promise<{ total: number; retried?: number }>
}

export function namedItems(ids: readonly string[]): Items {
  const named = [...new Set(ids)]
  return { freeze: async () => ({ ids: named, knownRetries: new Map() }), count: async () => ({ total: named.length }) }
}

export function fittingItems(target: OperationTarget): Items {
  const freeze = (db: Queryable) => freezeIds(db, target)
  return { freeze, count: async (db) => ({ total: (await freeze(db)).ids.length }) }
}

/**
 * A retry leaves out the jobs of a filter that were retried already, and skips those among named jobs. With `again`, it
 * repeats them too, and skips only the jobs that are retried after the operation was created.
 */
export function itemsToRetry(from: { ids: readonly string[] } | { filter: JobFilter }, again: boolean): Items {
  const items =
    'ids' in from
      ? namedItems(from.ids)
      : fittingItems({ action: 'retry', filter: again ? from.filter : { ...from.filter, retried: false } })
  if (again && 'ids' in from) {
    const freeze = async (db: Queryable) => {
      const { ids } = await items.freeze(db)
      return { ids, knownRetries: await findRetries(db, ids) }
    }
    return { ...items, freeze }
  }
  if (again) return items
  const count: Items['count'] = async (db) => {
    if (!('ids' in from)) {
      const { count } = await findFitting(db, { action: 'retry', filter: { ...from.filter, retried: true } })
      return { ...(await items.count(db)), retried: Math.min(count, MAX_COUNTED) }
    }
    const { ids } = await items.freeze(db)
    const { size: retried } = await findRetries(db, ids)
    return { total: ids.length - retried, retried }
  }
  return { ...items, count }
}

/** The ids that match a filter now. If there are more than an operation allows, it is a 400 with their number. */
async function freezeIds(db: Queryable, target: OperationTarget): Promise<FrozenItems> {
  // No index has the time of the end: of too many jobs, no more are read than necessary.
  const isByEnd = target.action !== 'replay' && target.filter.finishedAfterMs !== undefined
  const most = isByEnd ? MAX_ITEMS : MAX_COUNTED
  const { items, count } = await findFitting(db, target, most)
  if (count <= MAX_ITEMS) {
    const retries = items.flatMap(({ id, retried_as }) => (retried_as === null ? [] : [[id, retried_as] as const]))
    return { ids: items.map(({ id }) => id), knownRetries: new Map(retries) }
  }
  const number = count > most ? `more than ${most}` : `${count}`
  const what = target.action === 'replay' ? 'callbacks' : 'jobs'
  throw new ApiError(
    'invalid_request',
    `body/filter fits ${number} ${what}, and an operation takes ${MAX_ITEMS} at most`,
  )
}

/** The number of records that match a filter, and as many of them as an operation takes. Counting stops after `most`. */
async function findFitting(
  db: Queryable,
  target: OperationTarget,
  most = MAX_COUNTED,
): Promise<{ items: FittingJob[]; count: number }> {
  const items: FittingJob[] = []
  let count = 0
  for await (const page of pagesOf(db, target)) {
    count += page.length
    if (count <= MAX_ITEMS) items.push(...page)
    if (count > most) break
    // On SQLite a page never waits. Yielding lets other requests run.
    await new Promise(setImmediate)
  }
  return { items, count }
}

async function* pagesOf(db: Queryable, target: OperationTarget): AsyncGenerator<FittingJob[]> {
  if (target.action === 'replay') {
    for await (const page of callbackIdPages(db, target.filter)) yield page.map((id) => ({ id, retried_as: null }))
    return
  }
  const { status: wanted } = target.filter
  const statuses = STATUSES_OF[target.action].filter((status) => wanted === undefined || status === wanted)
  for (const status of statuses) {
    yield* jobIdPages(db, { ...target.filter, status }, { withRetries: target.action === 'retry' })
  }
}
