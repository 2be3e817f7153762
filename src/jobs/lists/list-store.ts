import { type BoundedPage, selectBoundedPage } from '../../db/bounded-page.ts'
import type { Queryable } from '../../db/database.ts'
import { type Sql, sql } from '../../db/sql.ts'
import type { PageRequest } from '../../http/paging.ts'
import { isTerminal, JOB_STATUSES, type JobStatus } from '../job.ts'
import { JOB_LIST, JOB_SUMMARIES, JOBS_WITH_CHECKS, type ListedJob } from '../job-row.ts'
import { findCandidates } from './ended-jobs.ts'
import { type JobFilter, planList } from './job-filter.ts'

/** A rare combination of filters reads no more rows than this for one page, and the page may be short. */
const MAX_READ = 5_000

/** Many pages of summaries are read at once: a request for one reserves only this much. */
const MAX_SUMMARY_BYTES = 256 * 1024

/**
 * A page of jobs, newest first. A summary has null in place of input and output, which are not read. `moreBytes` is the size
 * of the additional columns that the caller reads for each job.
 */
export async function findJobPage(
  db: Queryable,
  { filter, summary, moreBytes }: { filter: JobFilter; summary: boolean; moreBytes?: Sql },
  page: PageRequest<readonly [string]>,
): Promise<BoundedPage<ListedJob>> {
  const { from, driving, rest } = planList(filter, page.after?.[0] ?? null, await findCandidates(db, filter))
  const common = {
    table: sql`jobs`,
    from: JOBS_WITH_CHECKS,
    drivenBy: from,
    where: driving,
    limit: page.limit,
    ...(moreBytes && { moreBytes }),
    ...(rest && { rest: { ...rest, maxRead: MAX_READ } }),
  }
  if (!summary) return selectBoundedPage<ListedJob>(db, { ...common, columns: JOB_LIST.list, large: JOB_LIST.large })
  const { list: columns, large } = JOB_SUMMARIES
  const summaries = { ...common, columns, large, maxBytes: MAX_SUMMARY_BYTES }
  const found = await selectBoundedPage<Omit<ListedJob, 'input' | 'output'>>(db, summaries)
  return { ...found, rows: found.rows.map((row) => ({ ...row, input: null, output: null })) }
}

/** Counting stops at this many jobs of a status, and after this many rows, so that it stays cheap at any size. */
const MAX_COUNTED = 5_000
const MAX_COUNTING_READS = 4

interface JobCounts {
  counts: Record<JobStatus, number>
  /** The statuses whose number is a lower bound, because counting stopped. */
  atLeast: JobStatus[]
}

/** How many jobs fit the filter in each status. */
export async function countJobs(db: Queryable, filter: JobFilter): Promise<JobCounts> {
  const found = await Promise.all(
    JOB_STATUSES.map(async (status) => [status, await countFitting(db, { ...filter, status })] as const),
  )
  return {
    counts: Object.fromEntries(found.map(([status, { jobs }]) => [status, jobs])) as Record<JobStatus, number>,
    atLeast: found.filter(([, { isCut }]) => isCut).map(([status]) => status),
  }
}

type Counted = { jobs: number; isCut: boolean }

/** Stops at the bound of jobs, not of rows: a number that grows never falls below the bound again. */
async function countFitting(db: Queryable, filter: JobFilter & { status: JobStatus }): Promise<Counted> {
  if (isImpossible(filter)) return { jobs: 0, isCut: false }
  const candidates = await findCandidates(db, filter)
  let jobs = 0
  let after: string | null = null
  for (let reads = 0; reads < MAX_COUNTING_READS; reads++) {
    const { from, indexed, driving, rest } = planList(filter, after, candidates)
    const fits = rest === null ? sql`1` : sql`case when ${rest.where} then 1 end`
    const [row]: { read: number; fit: number; last: string | null }[] = await db.query(sql`
      select count(*) as read, count(fits) as fit, min(id) as last from (
        select id, ${fits} as fits from ${rest === null ? indexed : from} where ${driving} order by id desc limit ${MAX_COUNTED + 1}) as scanned`)
    jobs += row?.fit ?? 0
    after = row?.last ?? null
    if (jobs > MAX_COUNTED) return { jobs: MAX_COUNTED, isCut: true }
    if (after === null || (row?.read ?? 0) <= MAX_COUNTED) return { jobs, isCut: false }
  }
  return { jobs, isCut: true }
}

/** Only failed jobs have an error code; unfinished ones have neither a hint that ended them nor a time of their end. */
function isImpossible({
  status,
  errorCode,
  settledBy,
  outputCheck,
  finishedAfterMs,
  finishedBeforeMs,
}: JobFilter & { status: JobStatus }) {
  const needsEnd = [settledBy, outputCheck, finishedAfterMs, finishedBeforeMs].some((value) => value !== undefined)
  return (errorCode !== undefined && status !== 'failed') || (needsEnd && !isTerminal(status))
}
