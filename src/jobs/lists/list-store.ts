import { type BoundedPage, selectBoundedPage } from '../../db/bounded-page.ts'
import type { Queryable } from '../../db/database.ts'
import { rowsOf } from '../../db/rows.ts'
import { type Sql, sql } from '../../db/sql.ts'
import type { PageRequest } from '../../http/paging.ts'
import { JOB_STATUSES, type JobStatus } from '../job.ts'
import { JOB_LIST, JOB_SUMMARIES, JOBS_WITH_CHECKS, type ListedJob } from '../job-row.ts'
import { COMMON_STATUS } from '../uncommon-jobs.ts'
import { type JobFilter, planList } from './job-filter.ts'

/** A rare combination of filters reads no more rows than this for one page, and the page may be short. */
const MAX_READ = 5_000

/** A page of jobs, newest first. A summary has null in place of input and output, which are not read. */
export async function findJobPage(
  db: Queryable,
  { filter, summary }: { filter: JobFilter; summary: boolean },
  page: PageRequest<readonly [string]>,
): Promise<BoundedPage<ListedJob>> {
  const { from, driving, rest } = planList(filter, page.after?.[0] ?? null)
  const common = {
    table: sql`jobs`,
    from: JOBS_WITH_CHECKS,
    drivenBy: from,
    where: driving,
    limit: page.limit,
    ...(rest && { rest: { ...rest, maxRead: MAX_READ } }),
  }
  if (!summary) return selectBoundedPage<ListedJob>(db, { ...common, columns: JOB_LIST.list, large: JOB_LIST.large })
  const { list: columns, large } = JOB_SUMMARIES
  const found = await selectBoundedPage<Omit<ListedJob, 'input' | 'output'>>(db, { ...common, columns, large })
  return { ...found, rows: found.rows.map((row) => ({ ...row, input: null, output: null })) }
}

/** Counting in an index stops here, so that it stays cheap at any size. */
const MAX_COUNTED = 10_000

interface JobCounts {
  counts: Record<JobStatus, number>
  /** The statuses whose number is a lower bound, because counting stopped. */
  atLeast: JobStatus[]
}

/**
 * How many jobs are in each status, one owner's or all. An index counts every status except `completed`; completed jobs
 * are counted among the newest ones, so that no index has to hold them.
 */
export async function countJobs(db: Queryable, createdBy: string | null): Promise<JobCounts> {
  const ownedAs = (column: Sql) => (createdBy === null ? sql`1 = 1` : sql`${column} = ${createdBy}`)
  const statuses = rowsOf(
    db.engine,
    JOB_STATUSES.filter((status) => status !== COMMON_STATUS).map((status) => ({ status })),
    { status: 'text' },
  )
  const [indexed, [newest]] = await Promise.all([
    db.query<{ status: JobStatus; jobs: number }>(sql`
      select s.status, (select count(*) from (
        select 1 from uncommon_jobs where state = s.status and ${ownedAs(sql`owner`)}
        limit ${MAX_COUNTED + 1}) as counted) as jobs
      from ${statuses} as s`),
    db.query<{ jobs: number; completed: number }>(sql`
      select count(*) as jobs, count(case when status = ${COMMON_STATUS} then 1 end) as completed
      from (select status from jobs where ${ownedAs(sql`created_by`)} order by id desc limit ${MAX_READ + 1}) as newest`),
  ])
  const found = new Map(indexed.map(({ status, jobs }) => [status, jobs]))
  found.set(COMMON_STATUS, newest?.completed ?? 0)
  const isCut = (status: JobStatus) =>
    status === COMMON_STATUS ? (newest?.jobs ?? 0) > MAX_READ : (found.get(status) ?? 0) > MAX_COUNTED
  const counts = JOB_STATUSES.map((status) => [status, Math.min(found.get(status) ?? 0, MAX_COUNTED)])
  return { counts: Object.fromEntries(counts) as Record<JobStatus, number>, atLeast: JOB_STATUSES.filter(isCut) }
}
