import type { FastifyRequest } from 'fastify'
import { principalId } from '../../auth/principal.ts'
import { OPERATIONS_SCOPE } from '../../auth/scopes.ts'
import { ApiError } from '../../core/errors.ts'
import type { Database } from '../../db/database.ts'
import type { App } from '../../http/app-instance.ts'
import { bearer, callerOf, insufficientScope } from '../../http/gate/access.ts'
import { listById, readPageRequest, toPage } from '../../http/paging.ts'
import { writesDocuments } from '../../http/schemas.ts'
import type { JobFilter } from '../lists/job-filter.ts'
import { countJobs, findJobPage } from '../lists/list-store.ts'
import type { Reconciler } from '../worker/reconcile.ts'
import { seesAllJobs } from './job-access.ts'
import * as schema from './list-operations.ts'
import { toJob } from './present-job.ts'

const LIST = listById('jobs')

/** The lists and counts of jobs. A caller sees their own jobs, an operator (`read:operations` or `admin:*`) those of every owner. */
export function jobListRoutes(app: App, { db, reconciler }: { db: Database; reconciler: Reconciler }): void {
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

  app.get('/v1/jobs/counts', { config, schema: schema.readJobCounts }, async (request) => {
    const { counts, atLeast } = await countJobs(db, seesAllJobs(request) ? null : principalId(callerOf(request)))
    return { counts, at_least: atLeast }
  })
}

/** A summary has neither input nor output. */
function sizeOfPage({ fields }: Readonly<Record<string, unknown>>): 'page' | 'document' {
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
    | 'run_id'
    | 'thread_id'
    | 'trace_id'
    | 'retry_of'
    | 'created_after'
    | 'created_before',
    string
  >
>

function readOwnFilter(request: FastifyRequest, query: JobQuery): JobFilter {
  const filter = readJobFilter(query, 'querystring')
  if (seesAllJobs(request)) return filter
  if (filter.createdBy !== undefined) throw insufficientScope([OPERATIONS_SCOPE])
  return { ...filter, createdBy: principalId(callerOf(request)) }
}

/** `place` names the part of the request, for error messages. */
export function readJobFilter(query: JobQuery, place: string): JobFilter {
  const { project, project_id, created_after, created_before } = query
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
    // As they are stored.
    runId: query.run_id?.toLowerCase(),
    threadId: query.thread_id?.toLowerCase(),
    traceId: query.trace_id,
    retryOf: query.retry_of,
    createdAfterMs: created_after === undefined ? undefined : Date.parse(created_after),
    createdBeforeMs: created_before === undefined ? undefined : Date.parse(created_before),
  })
}

function withoutAbsent(filter: { [Name in keyof JobFilter]: JobFilter[Name] | undefined }): JobFilter {
  return Object.fromEntries(Object.entries(filter).filter(([, value]) => value !== undefined))
}

function toSummary(row: Parameters<typeof toJob>[0]): schema.JobItem {
  const { input: _input, output: _output, ...summary } = toJob(row)
  return summary
}
