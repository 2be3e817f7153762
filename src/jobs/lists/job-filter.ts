import { firstIdAt } from '../../core/ids.ts'
import { join, type Sql, sql } from '../../db/sql.ts'
import type { JobStatus } from '../job.ts'

const COLUMNS = {
  retryOf: sql`retry_of`,
  traceId: sql`trace_id`,
  threadId: sql`thread_id`,
  createdBy: sql`created_by`,
  status: sql`status`,
  errorCode: sql`error_code`,
  projectId: sql`project_id`,
  settledBy: sql`settled_by`,
  type: sql`type`,
}
type Column = keyof typeof COLUMNS

/** Absent fields match every job. */
export interface JobFilter extends Partial<Record<Column, string>> {
  /** Any run of the job, earlier ones of a resumed job included. */
  runId?: string
  createdAfterMs?: number
  createdBeforeMs?: number
}

/** Nearly every job ends in this status, so the indexes by status leave it out. */
export const COMMON_STATUS = 'completed' satisfies JobStatus
/** The condition of those indexes, as the migration spells it. */
export const HAS_RARE_STATUS = sql`status <> 'completed'`

interface Driver {
  index: string
  by: readonly Column[]
  /** The condition of a partial index in its own words: without it, neither engine uses the index. */
  only?: Sql
  /** Values that the partial index leaves out. */
  without?: Partial<Record<Column, string>>
}

/** The index that a list reads, most selective first: the first one whose filters are all given. */
export const DRIVERS: readonly Driver[] = [
  { index: 'jobs_by_retry', by: ['retryOf'], only: sql`retry_of is not null` },
  { index: 'jobs_by_trace', by: ['traceId'], only: sql`trace_id is not null` },
  { index: 'jobs_by_conversation', by: ['threadId'] },
  {
    index: 'jobs_by_owner_and_status',
    by: ['createdBy', 'status'],
    only: HAS_RARE_STATUS,
    without: { status: COMMON_STATUS },
  },
  { index: 'jobs_by_error', by: ['errorCode'], only: sql`error_code is not null` },
  { index: 'jobs_by_project', by: ['projectId'], only: sql`project_id is not null` },
  { index: 'jobs_by_owner', by: ['createdBy'] },
  {
    index: 'jobs_by_missed_callback',
    by: ['settledBy'],
    only: sql`settled_by in ('read', 'sweep')`,
    without: { settledBy: 'callback' },
  },
  {
    index: 'jobs_by_status',
    by: ['status'],
    only: HAS_RARE_STATUS,
    without: { status: COMMON_STATUS },
  },
  { index: 'jobs_by_type', by: ['type'] },
]

export interface ListPlan {
  /** Served by one index, in the order of ids. */
  driving: Sql
  /** Checked for each row that is read; null when nothing is left to check. */
  rest: { where: Sql; columns: Sql } | null
}

/** Chooses one index for a list. The filters that it does not serve are checked row by row. */
export function planList(filter: JobFilter, after: string | null): ListPlan {
  // Only failed jobs have an error code, so an owner's are found by status.
  const wanted = filter.errorCode === undefined ? filter : { status: 'failed', ...filter }
  const given = (Object.keys(COLUMNS) as Column[]).filter((column) => wanted[column] !== undefined)
  const { by = [], only } = wanted.runId === undefined ? (DRIVERS.find((driver) => drives(driver, wanted)) ?? {}) : {}
  const equals = (column: Column) => sql`${COLUMNS[column]} = ${wanted[column] ?? ''}`
  const driving = [...by.map(equals), ...(only ? [only] : []), ...idRange(wanted, after)]
  const left = given.filter((column) => !by.includes(column))
  return {
    driving: driving.length === 0 ? sql`1 = 1` : join(driving, ' and '),
    rest:
      left.length === 0
        ? null
        : {
            where: join(left.map(equals), ' and '),
            columns: join(
              left.map((column) => COLUMNS[column]),
              ', ',
            ),
          },
  }
}

function drives({ by, without = {} }: Driver, filter: JobFilter): boolean {
  return by.every((column) => filter[column] !== undefined && filter[column] !== without[column])
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
