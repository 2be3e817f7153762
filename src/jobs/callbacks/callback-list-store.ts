import { firstIdAt, timeOfId } from '../../core/ids.ts'
import { type BoundedPage, selectBoundedPage } from '../../db/bounded-page.ts'
import type { Queryable } from '../../db/database.ts'
import { isAmong } from '../../db/rows.ts'
import { join, type Sql, sql } from '../../db/sql.ts'
import type { PageRequest } from '../../http/paging.ts'
import { CALLBACKS, type CallbackOutcome, type CallbackRow } from '../callback-store.ts'

/** Absent fields match every callback. */
export interface CallbackFilter {
  jobId?: string
  outcome?: CallbackOutcome
  type?: string
  receivedAfterMs?: number
  receivedBeforeMs?: number
}

/** A rare combination of filters reads no more rows than this for one page, and the page may be short. */
const MAX_READ = 5_000
/** A callback gets its id when it is committed, which is rarely this long after it was received. */
const MAX_COMMIT_MS = 2_000

/** The outcomes that have an index. Callbacks with other outcomes are frequent and are found among the newest. */
const IS_RARE = sql`outcome in ('duplicate', 'stale', 'adopted')`
const RARE: readonly CallbackOutcome[] = ['duplicate', 'stale', 'adopted']

interface Plan {
  /** Served by one index, in the order of ids. */
  driving: Sql
  rest: { where: Sql; columns: Sql } | null
}

/** A type with at most this many jobs is rare, and its callbacks are found by its jobs. */
const MAX_RARE_JOBS = 1_000

/** A condition that finds the callbacks of a rare type; null for a type whose callbacks are found among the newest. */
async function isOfRareType(db: Queryable, { jobId, outcome, type }: CallbackFilter): Promise<Sql | null> {
  if (type === undefined || jobId !== undefined || isRare(outcome)) return null
  const jobs = await db.query<{ id: string }>(sql`
    select id from jobs where type = ${type} order by id desc limit ${MAX_RARE_JOBS + 1}`)
  if (jobs.length > MAX_RARE_JOBS) return null
  const isOfJobs = isAmong(
    db.engine,
    sql`job_id`,
    jobs.map(({ id }) => id),
  )
  const found = await db.query<{ id: string }>(sql`select id from callbacks where ${isOfJobs} limit ${MAX_READ}`)
  if (found.length === MAX_READ) return null
  return isAmong(
    db.engine,
    sql`id`,
    found.map(({ id }) => id),
  )
}

function isRare(outcome: CallbackOutcome | undefined): boolean {
  return outcome !== undefined && RARE.includes(outcome)
}

/** Chooses one index, the most selective first. The filters that it does not serve are checked row by row. */
function planCallbacks(filter: CallbackFilter, after: string | null, ofRareType: Sql | null): Plan {
  const { jobId, outcome, type, receivedAfterMs: afterMs, receivedBeforeMs: beforeMs } = filter
  const driver = jobId !== undefined ? 'job' : isRare(outcome) ? 'outcome' : ofRareType && 'type'
  const driving = [
    ...(jobId === undefined ? [] : [sql`job_id = ${jobId}`]),
    ...(driver === 'outcome' ? [sql`outcome = ${outcome ?? ''}`, IS_RARE] : []),
    ...(ofRareType === null ? [] : [ofRareType]),
    ...(afterMs === undefined ? [] : [sql`id >= ${firstIdAt('cbk', afterMs)}`]),
    ...(beforeMs === undefined ? [] : [sql`id < ${firstIdAt('cbk', beforeMs + MAX_COMMIT_MS)}`]),
    ...(after === null ? [] : [sql`id < ${after}`]),
  ]
  const rest = [
    ...(outcome === undefined || driver === 'outcome' ? [] : [{ name: sql`outcome`, is: sql`outcome = ${outcome}` }]),
    ...(type === undefined || driver === 'type' ? [] : [{ name: sql`type`, is: sql`type = ${type}` }]),
    ...(afterMs === undefined && beforeMs === undefined
      ? []
      : [{ name: sql`received_at`, is: isWithin(afterMs, beforeMs) }]),
  ]
  return {
    driving: driving.length === 0 ? sql`1 = 1` : join(driving, ' and '),
    rest:
      rest.length === 0
        ? null
        : {
            where: join(
              rest.map(({ is }) => is),
              ' and ',
            ),
            columns: join(
              rest.map(({ name }) => name),
              ', ',
            ),
          },
  }
}

function isWithin(afterMs = 0, beforeMs = Number.MAX_SAFE_INTEGER): Sql {
  return sql`received_at > ${afterMs} and received_at < ${beforeMs}`
}

/** A page of callbacks, newest first. Without bodies, `body` is empty and is not read from the table. */
export async function findCallbackPage(
  db: Queryable,
  { filter, bodies }: { filter: CallbackFilter; bodies: boolean },
  page: PageRequest<readonly [string]>,
): Promise<BoundedPage<CallbackRow>> {
  const { driving, rest } = planCallbacks(filter, page.after?.[0] ?? null, await isOfRareType(db, filter))
  return selectBoundedPage<CallbackRow>(db, {
    table: sql`callbacks`,
    columns: bodies ? CALLBACKS.list : sql`${CALLBACK_SUMMARY}, '' as body`,
    large: bodies ? CALLBACKS.large : [],
    where: driving,
    limit: page.limit,
    ...(rest && { rest: { ...rest, maxRead: MAX_READ } }),
  })
}

const CALLBACK_SUMMARY = sql`id, path, type, job_id, thread_id, run_id, status, outcome, received_at`

/** The ids of all callbacks that match a filter, newest first. Each page reads a bounded number of rows. */
export async function* callbackIdPages(db: Queryable, filter: CallbackFilter): AsyncGenerator<string[]> {
  const ofRareType = await isOfRareType(db, filter)
  for (let after: string | null = null; ; ) {
    const { driving, rest } = planCallbacks(filter, after, ofRareType)
    const fits = rest === null ? sql`1` : sql`case when ${rest.where} then 1 else 0 end`
    const rows: { id: string; fits: number }[] = await db.query(sql`
      select id, ${fits} as fits from callbacks where ${driving} order by id desc limit ${MAX_READ}`)
    yield rows.filter((row) => row.fits === 1).map(({ id }) => id)
    const last = rows.at(-1)
    if (rows.length < MAX_READ || !last) return
    after = last.id
  }
}

/** How many callbacks with which outcome were committed between two times, by the minute in which they were received. */
export function countCallbacks(
  db: Queryable,
  { fromMs, toMs }: { fromMs: number; toMs: number },
): Promise<{ minute: number; outcome: CallbackOutcome; count: number }[]> {
  return db.query(sql`
    select received_at / 60000 as minute, outcome, count(*) as count from callbacks
    where id >= ${firstIdAt('cbk', fromMs)} and id < ${firstIdAt('cbk', toMs)} group by 1, 2`)
}

/** The time of the first callback that `countCallbacks` finds from this time on; infinite when there is none. */
export async function findNextCallbackMs(db: Queryable, fromMs: number): Promise<number> {
  const [row] = await db.query<{ id: string }>(sql`
    select id from callbacks where id >= ${firstIdAt('cbk', fromMs)} order by id limit 1`)
  return row ? timeOfId(row.id) : Number.POSITIVE_INFINITY
}
