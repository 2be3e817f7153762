import { ApiError } from '../core/errors.ts'
import type { Queryable } from '../db/database.ts'
import { type CallbackFilter, callbackIdPages } from '../jobs/callbacks/callback-list-store.ts'
import { type JobStatus, TERMINAL_STATUSES, UNFINISHED_STATUSES } from '../jobs/job.ts'
import { jobIdPages } from '../jobs/lists/id-pages.ts'
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

/** The ids that match a filter now. If there are more than an operation allows, it is a 400 with their number. */
export async function freezeIds(db: Queryable, target: OperationTarget): Promise<string[]> {
  const ids: string[] = []
  let count = 0
  for await (const page of pagesOf(db, target)) {
    count += page.length
    if (count <= MAX_ITEMS) ids.push(...page)
    if (count > MAX_COUNTED) break
    // On SQLite a page never waits. Yielding lets other requests run.
    await new Promise(setImmediate)
  }
  if (count <= MAX_ITEMS) return ids
  const number = count > MAX_COUNTED ? `more than ${MAX_COUNTED}` : `${count}`
  const what = target.action === 'replay' ? 'callbacks' : 'jobs'
  throw new ApiError(
    'invalid_request',
    `body/filter fits ${number} ${what}, and an operation takes ${MAX_ITEMS} at most`,
  )
}

async function* pagesOf(db: Queryable, target: OperationTarget): AsyncGenerator<string[]> {
  if (target.action === 'replay') return yield* callbackIdPages(db, target.filter)
  const { status: wanted } = target.filter
  const statuses = STATUSES_OF[target.action].filter((status) => wanted === undefined || status === wanted)
  for (const status of statuses) yield* jobIdPages(db, { ...target.filter, status })
}
