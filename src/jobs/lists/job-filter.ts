import { firstIdAt } from '../../core/ids.ts'
import { join, type Sql, sql } from '../../db/sql.ts'
import { COMMON_STATUS } from '../uncommon-jobs.ts'

const COLUMNS = {
  retryOf: sql`retry_of`,
  traceId: sql`trace_id`,
  threadId: sql`thread_id`,
  createdBy: sql`created_by`,
  status: sql`status`,
  errorCode: sql`error_code`,
  projectId: sql`project_id`,
  settledBy: sql`settled_by`,
  outputCheck: sql`output_check`,
  type: sql`type`,
}
type Column = keyof typeof COLUMNS

/** The same in the table `uncommon_jobs`. */
const UNCOMMON_COLUMNS: Partial<Record<Column, Sql>> = {
  createdBy: sql`owner`,
  status: sql`state`,
  errorCode: sql`failure`,
  settledBy: sql`missed_by`,
  outputCheck: sql`unfit`,
}

/** Absent fields match every job. */
export interface JobFilter extends Partial<Record<Column, string>> {
  /** Any run of the job, earlier ones of a resumed job included. */
  runId?: string
  /** Whether the job was retried. */
  retried?: boolean
  createdAfterMs?: number
  createdBeforeMs?: number
  finishedAfterMs?: number
  finishedBeforeMs?: number
}

interface Driver {
  index: string
  by: readonly Column[]
  /** Repeats the condition of the partial index: without it, neither engine uses the index. */
  only?: Sql
  /** The index is one of `uncommon_jobs`. */
  isUncommon?: true
  /** The index has only jobs that were retried. */
  isRetried?: true
  /** Values that the index leaves out. */
  without?: Partial<Record<Column, string>>
}

/** The index that a list reads, most selective first: the first one whose filters are all given. */
const DRIVERS: readonly Driver[] = [
  { index: 'jobs_by_retry', by: ['retryOf'], only: sql`retry_of is not null` },
  { index: 'jobs_by_trace', by: ['traceId'], only: sql`trace_id is not null` },
  { index: 'jobs_by_conversation', by: ['threadId'] },
  {
    index: 'uncommon_jobs_by_owner',
    by: ['createdBy', 'status'],
    isUncommon: true,
    without: { status: COMMON_STATUS },
  },
  { index: 'uncommon_jobs_by_output_check', by: ['outputCheck'], isUncommon: true, only: sql`unfit is not null` },
  { index: 'uncommon_jobs_by_error', by: ['errorCode'], isUncommon: true, only: sql`failure is not null` },
  {
    index: 'jobs_by_owner_and_project',
    by: ['createdBy', 'projectId'],
    only: sql`project_id is not null`,
  },
  { index: 'jobs_by_project', by: ['projectId'], only: sql`project_id is not null` },
  { index: 'jobs_by_owner', by: ['createdBy'] },
  { index: 'jobs_retried', by: [], isRetried: true, only: sql`retried_as is not null` },
  {
    index: 'uncommon_jobs_by_missed_callback',
    by: ['settledBy'],
    isUncommon: true,
    only: sql`missed_by is not null`,
    without: { settledBy: 'callback' },
  },
  { index: 'uncommon_jobs_by_status', by: ['status'], isUncommon: true, without: { status: COMMON_STATUS } },
  { index: 'jobs_by_type', by: ['type'] },
]

interface ListPlan {
  /** The tables that `driving` and `rest` read. */
  from: Sql
  /** The table with the index. Enough for `driving`. */
  indexed: Sql
  /** Served by one index, in the order of ids. */
  driving: Sql
  /** Checked for each row that is read; null when nothing is left to check. */
  rest: { where: Sql; columns: Sql } | null
}

/**
 * Chooses one index for a list. The filters that it does not serve are checked row by row. `candidates`: a condition on the
 * id that every job of the list fits, in place of an index.
 */
export function planList(filter: JobFilter, after: string | null, candidates?: Sql): ListPlan {
  // Only failed jobs have an error code, so the index by owner and status can be used.
  const wanted = filter.errorCode === undefined ? filter : { status: 'failed', ...filter }
  const given = (Object.keys(COLUMNS) as Column[]).filter((column) => wanted[column] !== undefined)
  const isDriven = candidates === undefined && wanted.runId === undefined
  const driver = isDriven ? DRIVERS.find((one) => drives(one, wanted)) : undefined
  const { by = [], only, isUncommon = false } = driver ?? {}
  const equals = (column: Column, name = COLUMNS[column]) => sql`${name} = ${wanted[column] ?? ''}`
  const driven = by.map((column) => equals(column, isUncommon ? UNCOMMON_COLUMNS[column] : undefined))
  const driving = [...driven, ...(only ? [only] : []), ...(candidates ? [candidates] : []), ...idRange(wanted, after)]
  const left = given
    .filter((column) => !by.includes(column))
    .map((column) => ({ column: COLUMNS[column], where: equals(column) }))
  if (wanted.retried !== undefined && !driver?.isRetried) {
    const where = wanted.retried ? sql`retried_as is not null` : sql`retried_as is null`
    left.push({ column: sql`retried_as`, where })
  }
  const ended = endRange(wanted)
  const conditions = [...left.map(({ where }) => where), ...ended]
  const columns = [...left.map(({ column }) => column), ...(ended.length === 0 ? [] : [sql`finished_at`])]
  return {
    indexed: isUncommon ? sql`uncommon_jobs` : sql`jobs`,
    from: isUncommon ? sql`uncommon_jobs join jobs using (id)` : sql`jobs`,
    driving: driving.length === 0 ? sql`1 = 1` : join(driving, ' and '),
    rest: conditions.length === 0 ? null : { where: join(conditions, ' and '), columns: join(columns, ', ') },
  }
}

function drives({ by, isRetried, without = {} }: Driver, filter: JobFilter): boolean {
  if (isRetried && !filter.retried) return false
  return by.every((column) => filter[column] !== undefined && filter[column] !== without[column])
}

/** No index has the time of the end, because each end of a job would write it. `findCandidates` narrows the list. */
function endRange({ finishedAfterMs, finishedBeforeMs }: JobFilter): Sql[] {
  return [
    ...(finishedAfterMs === undefined ? [] : [sql`finished_at > ${finishedAfterMs}`]),
    ...(finishedBeforeMs === undefined ? [] : [sql`finished_at < ${finishedBeforeMs}`]),
  ]
}

/** Ids sort by time. */
function idRange({ runId, createdAfterMs, createdBeforeMs }: JobFilter, after: string | null): Sql[] {
  return [
    ...(runId === undefined ? [] : [sql`id in (select job_id from job_runs where run_id = ${runId})`]),
    ...(createdAfterMs === undefined ? [] : [sql`id >= ${firstIdAt('job', createdAfterMs + 1)}`]),
    ...(createdBeforeMs === undefined ? [] : [sql`id < ${firstIdAt('job', createdBeforeMs)}`]),
    ...(after === null ? [] : [sql`id < ${after}`]),
  ]
}
