import type { FastifyRequest } from 'fastify'
import { principalId } from '../../auth/principal.ts'
import { ADMIN_SCOPE } from '../../auth/scopes.ts'
import { ApiError } from '../../core/errors.ts'
import type { JsonText } from '../../core/json/json-text.ts'
import { type Queryable, UniqueViolation } from '../../db/database.ts'
import { openStream, streaming } from '../../events/event-routes.ts'
import type { EventStreams } from '../../events/event-streams.ts'
import type { App } from '../../http/app-instance.ts'
import { bearer, callerOf, insufficientScope } from '../../http/gate/access.ts'
import type { IdempotentCreation } from '../../http/idempotency.ts'
import { listById, readPageRequest, toPage } from '../../http/paging.ts'
import { writesDocuments } from '../../http/schemas.ts'
import type { GivenAnswer } from '../answers.ts'
import { isTerminal } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobRow } from '../job-row.ts'
import type { Jobs, NewJobRequest } from '../jobs.ts'
import { deleteEndedJobs } from '../retention/delete-jobs.ts'
import { findJobState } from '../retention/delete-store.ts'
import { findTimelinePage } from '../settlement/timeline-store.ts'
import type { Reconciler } from '../worker/reconcile.ts'
import { isAdmin, maySee } from './job-access.ts'
import * as schema from './job-operations.ts'
import { JobReads } from './job-reads.ts'
import { toJob, toJobType, toTimelineEntry } from './present-job.ts'

const TIMELINE = listById('timeline')

export interface JobRouteServices {
  jobContext: JobContext
  jobs: Jobs
  reconciler: Reconciler
  creation: IdempotentCreation
  streams: EventStreams
  projectExists: (db: Queryable, id: string) => Promise<boolean>
}

/** The routes of jobs. A job is visible to its owner and to admins; for every other caller it does not exist. */
export function jobRoutes(app: App, services: JobRouteServices): void {
  const { jobContext, jobs, reconciler, creation, streams, projectExists } = services
  const { db, types } = jobContext
  const reads = new JobReads(db)
  const config = { access: bearer() }
  const serializerCompiler = writesDocuments
  const not_found = 'No such job'
  const one = { ...config, refusals: { not_found } }
  const awaitsRuntime = true as const

  const creating = {
    ...config,
    documents: ['input'],
    refusals: {
      forbidden: 'Insufficient scope',
      not_found: 'No such job type: there are agent, report',
      conflict: 'Another job follows that run',
      usage_limit_exceeded: 'The limit of 100 runs for 2026-01 is reached',
      service_unavailable: 'No agent runtime is configured',
    },
  }
  app.post('/jobs', { config: creating, schema: schema.createJob, serializerCompiler }, async (request, reply) => {
    const wanted = await readNewJob(request, request.body)
    const attempt = () =>
      creation.create(request, reply, async (tx) => {
        const job = await jobs.create(tx, wanted)
        return { status: 202, location: `/jobs/${job.id}`, body: toJob(job), afterCommit: () => jobs.begin(job) }
      })
    // Two requests that follow the same run, or a request and the run's callback, violate its unique key. The retry of
    // the second one finds the job of the first.
    return attempt().catch((error: unknown) => {
      if (error instanceof UniqueViolation) return attempt()
      throw error
    })
  })

  app.get(
    '/jobs/:id',
    { config: { ...one, awaitsRuntime }, schema: schema.getJob, serializerCompiler },
    async (request) => {
      const job = await ownJob(request, request.params.id)
      return toJob(await reconciler.refresh(job))
    },
  )

  app.get('/jobs/:id/timeline', { config: one, schema: schema.listTimeline }, async (request) => {
    const job = await ownJob(request, request.params.id)
    const page = readPageRequest(TIMELINE, request.query)
    const rows = await findTimelinePage(db, job.id, page)
    return toPage(TIMELINE, {
      rows,
      limit: page.limit,
      toItem: toTimelineEntry,
      positionOf: (row) => [row.id] as const,
    })
  })

  app.get(
    '/jobs/:id/events',
    { config: { ...streaming, refusals: { ...streaming.refusals, not_found } }, schema: schema.streamJob },
    async (request, reply) => {
      const job = await ownJob(request, request.params.id)
      await openStream(streams, { request, reply, interest: { jobId: job.id }, after: request.query.after })
    },
  )

  const cancelling = { ...config, awaitsRuntime, refusals: { not_found, conflict: 'The job is completed already' } }
  app.post(
    '/jobs/:id/cancel',
    { config: cancelling, schema: schema.cancelJob, serializerCompiler },
    async (request, reply) => {
      const { id } = await ownJob(request, request.params.id)
      const job = await reconciler.refresh(await jobs.cancel(id))
      reply.code(isTerminal(job.status) ? 200 : 202)
      return toJob(job)
    },
  )

  const resuming = {
    ...config,
    awaitsRuntime,
    documents: ['input', 'answers'],
    refusals: {
      not_found,
      conflict: 'The job is completed: it awaits no input',
      service_unavailable: 'The job cannot be resumed now',
    },
  }
  app.post(
    '/jobs/:id/resume',
    { config: resuming, schema: schema.resumeJob, serializerCompiler },
    async (request, reply) => {
      const paused = await ownJob(request, request.params.id)
      const job = await jobs.resume(paused, readAnswer(request.body))
      jobs.begin(job)
      reply.code(202)
      return toJob(job)
    },
  )

  const deleting = {
    ...config,
    refusals: { not_found, conflict: 'The job is processing: only a job that has ended can be deleted' },
  }
  app.delete('/jobs/:id', { config: deleting, schema: schema.deleteJob }, async (request, reply) => {
    const job = await findJobState(db, request.params.id)
    if (!job || !maySee(request, job)) throw new ApiError('not_found', not_found)
    if (!isTerminal(job.status)) {
      throw new ApiError('conflict', `The job is ${job.status}: only a job that has ended can be deleted`)
    }
    await deleteEndedJobs(db, { ids: [job.id], atMs: jobContext.clock.now() })
    jobContext.log.info({ jobId: job.id }, 'job.deleted')
    return reply.code(204).send(null)
  })

  app.get('/v1/job-types', { config, schema: schema.listJobTypes }, () => ({
    data: [...types.values()].map(toJobType),
  }))

  async function ownJob(request: FastifyRequest, id: string): Promise<JobRow> {
    const job = await reads.find(id)
    if (!job || !maySee(request, job)) throw new ApiError('not_found', not_found)
    return job
  }

  async function readNewJob(
    request: FastifyRequest,
    body: {
      type: string
      input?: JsonText
      thread_id?: string
      run_id?: string
      project_id?: string | null
      created_by?: string
    },
  ): Promise<NewJobRequest> {
    const type = types.get(body.type)
    if (!type) throw new ApiError('not_found', `No such job type: there are ${[...types.keys()].join(', ')}`)
    if (body.created_by !== undefined && !isAdmin(request)) throw insufficientScope([ADMIN_SCOPE])
    if (typeof body.project_id === 'string' && !(await projectExists(db, body.project_id))) {
      throw new ApiError('invalid_request', 'body/project_id names no project')
    }
    const work = readWork(body)
    if ('runId' in work) {
      const principal = callerOf(request)
      const caller = principal.kind === 'user' ? principal.sub : principal.id
      await jobs.checkMayFollow(work, { type, caller, isAdmin: isAdmin(request) })
    }
    return {
      type,
      createdBy: body.created_by ?? principalId(callerOf(request)),
      projectId: body.project_id ?? null,
      work,
    }
  }
}

function readWork({
  input,
  thread_id,
  run_id,
}: {
  input?: JsonText
  thread_id?: string
  run_id?: string
}): NewJobRequest['work'] {
  const follows = thread_id !== undefined || run_id !== undefined
  if (input !== undefined && follows) {
    throw new ApiError('invalid_request', 'body must have either "input" or "thread_id" and "run_id", not both')
  }
  if (input !== undefined) return { input }
  if (thread_id !== undefined && run_id !== undefined) {
    return { threadId: thread_id.toLowerCase(), runId: run_id.toLowerCase() }
  }
  throw new ApiError('invalid_request', 'body must have the field "input", or "thread_id" and "run_id"')
}

function readAnswer({ input, answers }: { input?: JsonText; answers?: JsonText }): GivenAnswer {
  if (input !== undefined && answers !== undefined) {
    throw new ApiError('invalid_request', 'body must have either "input" or "answers", not both')
  }
  if (input !== undefined) return { input }
  if (answers === undefined) throw new ApiError('invalid_request', 'body must have the field "input", or "answers"')
  return { answers }
}
