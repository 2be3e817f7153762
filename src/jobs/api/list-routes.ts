import type { FastifyRequest } from 'fastify'
import { principalId } from '../../auth/principal.ts'
import { OPERATIONS_SCOPE } from '../../auth/scopes.ts'
import { type Clock, toRfc3339 } from '../../core/clock.ts'
import { ApiError } from '../../core/errors.ts'
import type { Database } from '../../db/database.ts'
import type { App } from '../../http/app-instance.ts'
import { bearer, callerOf, insufficientScope, scopes } from '../../http/gate/access.ts'
import { listById, readPageRequest, toPage } from '../../http/paging.ts'
import { writesDocuments } from '../../http/schemas.ts'
import { groupFailures } from '../lists/failure-store.ts'
import type { JobFilter } from '../lists/job-filter.ts'
import { countJobs, findJobPage } from '../lists/list-store.ts'
import type { Reconciler } from '../worker/reconcile.ts'
import { seesAllJobs } from './job-access.ts'
import * as schema from './list-operations.ts'
import { toJob } from './present-job.ts'

const LIST = listById('jobs')

const HOUR_MS = 3_600_000
const MAX_FAILURES_MS = 30 * 24 * HOUR_MS

interface ListServices {
  db: Database
  clock: Clock
  reconciler: Reconciler
}

/** The lists and counts of jobs. A caller sees their own jobs, an operator (`read:operations` or `admin:*`) those of every owner. */
export function jobListRoutes(app: App, { db, clock, reconciler }: ListServices): void {
  const config = { access: bearer() }

  app.get(
    '/jobs',
    {
      config: {
        ...config,
        awaitsRuntime: true,
        largeAnswer: sizeOfPage,
        refusals: { forbidden: 'Insufficient scope' },
      },
      schema: schema.listJobs,
      serializerCompiler: writesDocuments,
    },
    async (request) => {
      const { limit, cursor, fields, ...wanted } = request.query
      const page = readPageRequest(LIST, { ...(limit && { limit }), ...(cursor !== undefined && { cursor }) })
      const summary = fields === 'summary'
      const list = { filter: readOwnFilter(request, wanted), summary }
      const stored = await findJobPage(db, list, page)
      const found = (await reconciler.refreshAll(stored.rows)) ? await findJobPage(db, list, page) : stored
      return toPage(LIST, {
        ...found,
        limit: page.limit,
        toItem: summary ? toSummary : toJob,
        positionOf: (row) => [row.id] as const,
      })
    },
  )

  app.get(
    '/v1/jobs/counts',
    { config: { ...config, refusals: { forbidden: 'Insufficient scope' } }, schema: schema.readJobCounts },
    async (request) => {
      const { counts, atLeast } = await countJobs(db, readOwnFilter(request, request.query))
      return { counts, at_least: atLeast }
    },
  )

  app.get(
    '/v1/failures',
    { config: { access: scopes(OPERATIONS_SCOPE) }, schema: schema.listFailures },
    async (request) => {
      const nowMs = clock.now()
      const { since } = request.query
      const sinceMs = since === undefined ? nowMs - HOUR_MS : Date.parse(since)
      if (sinceMs > nowMs || sinceMs < nowMs - MAX_FAILURES_MS) {
        throw new ApiError('invalid_request', 'querystring/since must be a time in the last 30 days')
      }
      const { groups, isCut } = await groupFailures(db, { sinceMs, nowMs })
      const data = groups.map(({ type, error_code, count, before, last_at, message }) => {
        return { type, error_code, count, before, last_at: toRfc3339(last_at), message }
      })
      return { since: toRfc3339(sinceMs), data, at_least: isCut }
    },
  )
}

/** A page of summaries has neither inputs nor outputs, and ends at 256 KB of questions and configurations. */
export function sizeOfPage({ fields }: Readonly<Record<string, unknown>>): 'page' | 'document' {
  return fields === 'summary' ? 'document' : 'page'
}

type JobQuery = Partial<
  Record<
    | 'status'
    | 'type'
    | 'project'
    | 'project_id'
    | 'created_by'
    | 'error_code'
    | 'settled_by'
    | 'output_check'
    | 'run_id'
    | 'thread_id'
    | 'trace_id'
    | 'retry_of'
    | 'created_after'
    | 'created_before'
    | 'finished_after'
    | 'finished_before',
    string
  >
> & { retried?: boolean }

function readOwnFilter(request: FastifyRequest, query: JobQuery): JobFilter {
  const filter = readJobFilter(query, 'querystring')
  if (seesAllJobs(request)) return filter
  if (filter.createdBy !== undefined) throw insufficientScope([OPERATIONS_SCOPE])
  return { ...filter, createdBy: principalId(callerOf(request)) }
}

/** `place` names the part of the request, for error messages. */
export function readJobFilter(query: JobQuery, place: string): JobFilter {
  const { project, project_id } = query
  const timeOf = (text: string | undefined) => (text === undefined ? undefined : Date.parse(text))
  if (project !== undefined && project_id !== undefined) {
    throw new ApiError('invalid_request', `${place} must have either "project" or "project_id", not both`)
  }
  return withoutAbsent({
    createdBy: query.created_by,
    status: query.status,
    type: query.type,
    projectId: project ?? project_id,
    errorCode: query.error_code,
    settledBy: query.settled_by,
    outputCheck: query.output_check,
    // As they are stored.
    runId: query.run_id?.toLowerCase(),
    threadId: query.thread_id?.toLowerCase(),
    traceId: query.trace_id,
    retryOf: query.retry_of,
    retried: query.retried,
    createdAfterMs: timeOf(query.created_after),
    createdBeforeMs: timeOf(query.created_before),
    finishedAfterMs: timeOf(query.finished_after),
    finishedBeforeMs: timeOf(query.finished_before),
  })
}

function withoutAbsent(filter: { [Name in keyof JobFilter]: JobFilter[Name] | undefined }): JobFilter {
  return Object.fromEntries(Object.entries(filter).filter(([, value]) => value !== undefined))
}

export function toSummary(row: Parameters<typeof toJob>[0]): schema.JobItem {
  const { input: _input, output: _output, ...summary } = toJob(row)
  return summary
}
