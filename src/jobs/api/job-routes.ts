import type { FastifyRequest } from 'fastify'
import { recordAudit } from '../../audit/record-audit.ts'
import { ApiError } from '../../core/errors.ts'
import { type Queryable, type Transaction, TransactionConflict, UniqueViolation } from '../../db/database.ts'
import { openStream, streaming } from '../../events/event-routes.ts'
import type { EventStreams } from '../../events/event-streams.ts'
import type { App } from '../../http/app-instance.ts'
import { bearer, callerOf } from '../../http/gate/access.ts'
import type { IdempotentCreation } from '../../http/idempotency.ts'
import { listById, onePage, readPageRequest, toPage } from '../../http/paging.ts'
import { writesDocuments } from '../../http/schemas.ts'
import { checkMayFollow } from '../actions/follow-run.ts'
import type { Jobs, NewJobRequest } from '../actions/jobs.ts'
import { repeatJob } from '../actions/retry-job.ts'
import { isTerminal } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import { INLINE_BYTES, type JobRow, type SizedJob, type SlimJob } from '../job-row.ts'
import { findJobUpTo } from '../job-store.ts'
import { faultOfConfigurable } from '../job-types.ts'
import type { LiveStreams } from '../live/live-streams.ts'
import { deleteEndedJobs } from '../retention/delete-jobs.ts'
import { findJobState } from '../retention/delete-store.ts'
import { askerOf } from '../runs/caller.ts'
import { findTimelinePage } from '../settlement/timeline-store.ts'
import type { Reconciler } from '../worker/reconcile.ts'
import { auditedOriginOf, checkMayChange, checkMaySee, isAdmin, NO_SUCH_JOB } from './job-access.ts'
import * as schema from './job-operations.ts'
import { JobReads } from './job-reads.ts'
import { openLiveStream, streamLive } from './live-operation.ts'
import { toJob, toJobType, toTimelineEntry, withDocuments, withoutDocuments } from './present-job.ts'
import { type GivenJob, readGivenAnswer, readNewJob } from './read-job-request.ts'
import { withRoom } from './with-room.ts'

const MAX_DELAY_MS = 30 * 86_400_000

const TIMELINE = listById('timeline')

interface JobRouteServices {
  jobContext: JobContext
  jobs: Jobs
  reconciler: Reconciler
  creation: IdempotentCreation
  streams: EventStreams
  live: LiveStreams
  projectExists: (db: Queryable, id: string) => Promise<boolean>
}

/** The routes of jobs. A job is visible to its owner and to operators; for every other caller it does not exist. */
export function jobRoutes(app: App, services: JobRouteServices): void {
  const { jobContext, jobs, reconciler, creation, streams, live, projectExists } = services
  const { db, types } = jobContext
  const reads = new JobReads(db)
  const config = { access: bearer() }
  const serializerCompiler = writesDocuments
  const not_found = NO_SUCH_JOB
  const one = { ...config, refusals: { not_found } }
  const awaitsRuntime = true as const
  const largeAnswer = 'document' as const
  const forbidden = 'Insufficient scope'

  const creating = {
    ...config,
    largeAnswer,
    documents: ['input', 'configurable'],
    refusals: {
      forbidden,
      not_found: 'No such job type: there are agent, report',
      conflict: 'Another job follows that run, or a job on the thread is unfinished',
      usage_limit_exceeded: 'The limit of 1000 unfinished jobs is reached',
      service_unavailable: 'No agent runtime is configured',
    },
  }
  app.post('/jobs', { config: creating, schema: schema.createJob, serializerCompiler }, async (request, reply) => {
    const given = readNewJob(request, request.body)
    let checked: Promise<NewJobRequest> | undefined
    const check = () => {
      checked ??= checkNewJob(request, given)
      return checked
    }
    const attempt = () =>
      withRoom(request, (maxBytes) =>
        creation.create(
          request,
          reply,
          async (tx) => {
            const { job, begin } = await jobs.create(tx, { ...(await check()), maxBytes })
            await auditStart(tx, request, job)
            return created(job, begin)
          },
          { prepare: check, restore: restoreUpTo(maxBytes) },
        ),
      )
    // Two requests that follow the same run, or a request and the run's callback, violate its unique key. The retry of
    // the second one finds the job of the first.
    return attempt().catch((error: unknown) => {
      if (error instanceof UniqueViolation) return attempt()
      throw error
    })
  })

  app.get(
    '/jobs/:id',
    { config: { ...one, awaitsRuntime, largeAnswer }, schema: schema.getJob, serializerCompiler },
    async (request) => {
      const stored = await ownSizedJob(request, request.params.id)
      return toJob(await wholeJob(request, await reconciler.refresh(stored)))
    },
  )

  app.get('/jobs/:id/timeline', { config: one, schema: schema.listTimeline }, async (request) => {
    const job = await ownSlimJob(request, request.params.id)
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
    {
      config: { ...streaming, refusals: { ...streaming.refusals, not_found } },
      schema: schema.streamJob,
      serializerCompiler,
    },
    async (request, reply) => {
      const job = await ownSlimJob(request, request.params.id)
      await openStream(streams, { request, reply, interest: { jobId: job.id }, after: request.query.after })
    },
  )

  app.get(
    '/jobs/:id/live',
    {
      config: { ...streaming, refusals: { ...streaming.refusals, not_found } },
      schema: streamLive,
      serializerCompiler,
    },
    async (request, reply) => {
      const job = await ownSlimJob(request, request.params.id)
      const { after } = request.query
      openLiveStream(live, { request, reply, job, ...(after === undefined ? {} : { after }) })
    },
  )

  const cancelling = {
    ...config,
    awaitsRuntime,
    largeAnswer,
    refusals: { forbidden, not_found, conflict: 'The job is completed already' },
  }
  app.post(
    '/jobs/:id/cancel',
    { config: cancelling, schema: schema.cancelJob, serializerCompiler },
    async (request, reply) => {
      const found = await changeableJob(request, request.params.id)
      const cancelled = await jobs.cancel(found.id, auditedOriginOf(request, found))
      const job = await wholeJob(request, await reconciler.refresh(cancelled))
      reply.code(isTerminal(job.status) ? 200 : 202)
      return toJob(job)
    },
  )

  const resuming = {
    ...config,
    awaitsRuntime,
    largeAnswer,
    documents: ['input', 'answers', 'configurable'],
    refusals: {
      forbidden,
      not_found,
      conflict: 'The job is completed: it awaits no input',
      service_unavailable: 'The job cannot be resumed now',
    },
  }
  app.post(
    '/jobs/:id/resume',
    { config: resuming, schema: schema.resumeJob, serializerCompiler },
    async (request, reply) => {
      const stored = await ownSizedJob(request, request.params.id)
      checkMayChange(request, stored)
      const paused = await wholeJob(request, stored)
      const by = auditedOriginOf(request, paused)
      const { configurable } = request.body
      const asker = askerOf(callerOf(request))
      const given = readGivenAnswer(request.body)
      const { job, begin } = await withRoom(request, (maxBytes) =>
        jobs.resume(paused, given, { asker, configurable, by, maxBytes }),
      )
      begin()
      reply.code(202)
      return toJob(job)
    },
  )

  const retrying = {
    ...config,
    largeAnswer,
    refusals: {
      forbidden,
      not_found,
      conflict: 'The job is generating: only a job that has ended can be repeated, or it was retried already',
      usage_limit_exceeded: 'The limit of 1000 unfinished jobs is reached',
      service_unavailable: 'No agent runtime is configured',
    },
  }
  app.post(
    '/jobs/:id/retry',
    { config: retrying, schema: schema.retryJob, serializerCompiler },
    async (request, reply) => {
      let found: Promise<SlimJob> | undefined
      const check = () => {
        found ??= changeableJob(request, request.params.id)
        return found
      }
      return withRoom(request, (maxBytes) =>
        creation.create(
          request,
          reply,
          async (tx) => {
            const ended = await check()
            const by = auditedOriginOf(request, ended)
            const wanted = { id: ended.id, asker: askerOf(callerOf(request)), by, byAdmin: isAdmin(request), maxBytes }
            const known = request.body?.again ? {} : { knownRetry: null }
            const { job, begin } = await repeatJob(tx, { jobContext, jobs }, { ...wanted, ...known })
            return created(job, begin)
          },
          { prepare: check, restore: restoreUpTo(maxBytes) },
        ),
      )
    },
  )

  const checking = { ...config, awaitsRuntime, largeAnswer, refusals: { forbidden, not_found } }
  app.post('/jobs/:id/check', { config: checking, schema: schema.checkJob, serializerCompiler }, async (request) => {
    const job = await ownSizedJob(request, request.params.id)
    checkMayChange(request, job)
    const by = auditedOriginOf(request, job)
    if (by) {
      const checked = { by, action: 'job.checked', object: { kind: 'job', id: job.id } } as const
      await db.transaction((tx) => recordAudit(tx, jobContext, checked))
    }
    return toJob(await wholeJob(request, await reconciler.checkNow(job)))
  })

  const replacing = {
    ...config,
    largeAnswer,
    documents: ['input'],
    refusals: {
      forbidden,
      not_found,
      conflict: 'The job is generating: only the input of a turn that waits can be replaced',
    },
  }
  app.patch('/jobs/:id', { config: replacing, schema: schema.replaceJobInput, serializerCompiler }, async (request) => {
    const { input } = request.body
    const job = await changeableJob(request, request.params.id)
    const fault = types.get(job.type)?.inputSchema?.faultOf(input, 'body/input')
    if (fault) throw new ApiError('invalid_request', fault)
    if (input.text === 'null') throw new ApiError('invalid_request', 'body/input must not be null')
    const asker = askerOf(callerOf(request))
    const by = auditedOriginOf(request, job)
    return toJob(await withRoom(request, (maxBytes) => jobs.replaceInput(job.id, input, { asker, by, maxBytes })))
  })

  const deleting = {
    ...config,
    refusals: { forbidden, not_found, conflict: 'The job is processing: only a job that has ended can be deleted' },
  }
  app.delete('/jobs/:id', { config: deleting, schema: schema.deleteJob }, async (request, reply) => {
    const job = checkMaySee(request, await findJobState(db, request.params.id))
    checkMayChange(request, job)
    if (!isTerminal(job.status)) {
      throw new ApiError('conflict', `The job is ${job.status}: only a job that has ended can be deleted`)
    }
    const by = auditedOriginOf(request, job)
    const onDeleted = async (tx: Transaction) => {
      if (by) await recordAudit(tx, jobContext, { by, action: 'job.deleted', object: { kind: 'job', id: job.id } })
    }
    const { clock, countDeleted } = jobContext
    await deleteEndedJobs(db, { ids: [job.id], atMs: clock.now(), countDeleted, onDeleted })
    jobContext.log.info({ jobId: job.id }, 'job.deleted')
    return reply.code(204).send(null)
  })

  app.get('/v1/job-types', { config, schema: schema.listJobTypes, serializerCompiler }, () =>
    onePage([...types.values()].map(toJobType)),
  )

  function created(job: JobRow, begin: () => void) {
    const body = toJob(job)
    return {
      status: 202 as const,
      location: `/jobs/${job.id}`,
      body,
      replayBody: withoutDocuments(body),
      afterCommit: begin,
    }
  }

  /** The stored answer is deleted or erased with its job. Without the job, it is gone too, and the request is a new one. */
  function restoreUpTo(maxBytes: number) {
    return async (tx: Transaction, { location, body }: { location: string; body: string }): Promise<string> => {
      const job = await findJobUpTo(tx, location.slice('/jobs/'.length), maxBytes)
      if (!job || job.erased_at !== null) throw new TransactionConflict()
      return withDocuments(body, job)
    }
  }

  /** For routes that use the documents of the job: without them if they are large. `wholeJob` loads them. */
  async function ownSizedJob(request: FastifyRequest, id: string): Promise<SizedJob> {
    return checkMaySee(request, await reads.find(id))
  }

  async function wholeJob(request: FastifyRequest, sized: SizedJob): Promise<JobRow> {
    const { id, document_bytes, last_error } = sized
    if (document_bytes <= INLINE_BYTES) return sized
    await request.hold?.reserve(document_bytes)
    const job = checkMaySee(request, await withRoom(request, (maxBytes) => findJobUpTo(db, id, maxBytes)))
    return isTerminal(job.status) ? job : { ...job, last_error: job.last_error ?? last_error }
  }

  /** For routes that do not use the documents: an output may be many megabytes. */
  async function ownSlimJob(request: FastifyRequest, id: string): Promise<SlimJob> {
    return checkMaySee(request, await reads.findSlim(id))
  }

  async function changeableJob(request: FastifyRequest, id: string): Promise<SlimJob> {
    const job = await ownSlimJob(request, id)
    checkMayChange(request, job)
    return job
  }

  async function auditStart(tx: Transaction, request: FastifyRequest, job: JobRow): Promise<void> {
    const by = auditedOriginOf(request, job)
    if (!by) return
    const after = { type: job.type, created_by: job.created_by }
    await recordAudit(tx, jobContext, { by, action: 'job.started', object: { kind: 'job', id: job.id }, after })
  }

  /** The checks whose result may change later. A repeat with the same `Idempotency-Key` skips them. */
  async function checkNewJob(request: FastifyRequest, given: GivenJob): Promise<NewJobRequest> {
    const { projectId, work } = given
    const type = types.get(given.type)
    if (!type) throw new ApiError('not_found', `No such job type: there are ${[...types.keys()].join(', ')}`)
    if (projectId !== null && !(await projectExists(db, projectId))) {
      throw new ApiError('invalid_request', 'body/project_id names no project')
    }
    const fault =
      'input' in work
        ? (type.inputSchema?.faultOf(work.input, 'body/input') ??
          faultOfConfigurable(type, work.configurable, 'body/configurable'))
        : null
    if (fault) throw new ApiError('invalid_request', fault)
    const latestMs = jobContext.clock.calendar() + MAX_DELAY_MS
    if ('input' in work && work.runAtMs !== undefined && work.runAtMs > latestMs) {
      throw new ApiError('invalid_request', 'body/run_at must be at most 30 days ahead')
    }
    const wanted = { ...given, type }
    await checkFollowed(request, wanted)
    return wanted
  }

  /** This asks the runtime, which may hang. During that time the request must not count as a change. */
  async function checkFollowed(request: FastifyRequest, { type, work }: NewJobRequest): Promise<void> {
    if (!('runId' in work)) return
    request.hold?.awaitRuntime()
    const principal = callerOf(request)
    const caller = principal.kind === 'user' ? principal.sub : principal.id
    await checkMayFollow(jobContext, work, { type, caller, isAdmin: isAdmin(request) })
  }
}
