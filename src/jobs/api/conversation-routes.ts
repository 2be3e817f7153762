import type { FastifyRequest } from 'fastify'
import { principalId } from '../../auth/principal.ts'
import { ADMIN_SCOPE } from '../../auth/scopes.ts'
import { toRfc3339 } from '../../core/clock.ts'
import { ApiError } from '../../core/errors.ts'
import type { App } from '../../http/app-instance.ts'
import { bearer, callerOf, insufficientScope } from '../../http/gate/access.ts'
import { listById, readPageRequest, toPage } from '../../http/paging.ts'
import { writesDocuments } from '../../http/schemas.ts'
import { deleteConversation } from '../actions/delete-conversation.ts'
import type { JobContext } from '../job-context.ts'
import { findSlimJobs } from '../job-store.ts'
import { findJobPage } from '../lists/list-store.ts'
import { findPauses, PAUSE_BYTES } from '../settlement/pause-store.ts'
import { findConversation, findConversations, findJobsOn, findThread, type ThreadRow } from '../thread-store.ts'
import type { Reconciler } from '../worker/reconcile.ts'
import * as schema from './conversation-operations.ts'
import { auditedOriginOf, isAdmin, seesAllJobs } from './job-access.ts'
import { sizeOfPage, toSummary } from './list-routes.ts'
import { toJob, toPause } from './present-job.ts'

const CONVERSATIONS = listById('conversations')
const TURNS = listById('turns')
const not_found = 'No such conversation'

/** The routes of conversations. A caller sees their own turns, an operator those of every owner. */
export function conversationRoutes(
  app: App,
  { jobContext, reconciler }: { jobContext: JobContext; reconciler: Reconciler },
): void {
  const { db } = jobContext
  const config = { access: bearer(), awaitsRuntime: true } as const
  const serializerCompiler = writesDocuments

  app.get('/v1/conversations', { config, schema: schema.listConversations }, async (request) => {
    const page = readPageRequest(CONVERSATIONS, request.query)
    const threads = await findConversations(db, principalId(callerOf(request)), page)
    const ids = threads.slice(0, page.limit).flatMap(({ last_job }) => last_job ?? [])
    const stored = await findSlimJobs(db, ids)
    const found = (await reconciler.refreshAll(stored)) ? await findSlimJobs(db, ids) : stored
    const jobs = new Map(found.map((job) => [job.id, job]))
    const { data, ...rest } = toPage(CONVERSATIONS, {
      rows: threads,
      limit: page.limit,
      toItem: ({ thread_id, type, title, last_job }) => {
        const job = jobs.get(last_job ?? '')
        const item = job && { last_job: job.id, status: job.status, updated_at: toRfc3339(job.updated_at) }
        return item ? [{ thread_id, type, title, ...item }] : []
      },
      positionOf: ({ id }) => [id] as const,
    })
    return { data: data.flat(), ...rest }
  })

  app.get(
    '/v1/conversations/:thread_id',
    {
      config: { ...config, largeAnswer: sizeOfPage, refusals: { not_found } },
      schema: schema.getConversation,
      serializerCompiler,
    },
    async (request) => {
      const { thread, owner } = await ownConversation(request, request.params.thread_id)
      const page = readPageRequest(TURNS, request.query)
      const summary = request.query.fields === 'summary'
      const filter = { threadId: thread.id, ...(owner !== null && { createdBy: owner }) }
      const read = () => findJobPage(db, { filter, summary, ...(!summary && { moreBytes: PAUSE_BYTES }) }, page)
      const stored = await read()
      const found = (await reconciler.refreshAll(stored.rows)) ? await read() : stored
      const ids = summary ? [] : found.rows.map(({ id }) => id)
      const pauses = await findPauses(db, ids)
      return {
        thread_id: thread.id,
        type: thread.type,
        // The title is a text of the first owner.
        title: owner === null || owner === thread.owner ? thread.title : null,
        ...toPage(TURNS, {
          ...found,
          limit: page.limit,
          toItem: (row) => ({
            ...(summary ? toSummary(row) : toJob(row)),
            run: row.run_seq,
            pauses: pauses.get(row.id)?.map(toPause) ?? [],
          }),
          positionOf: ({ id }) => [id] as const,
        }),
      }
    },
  )

  const deleting = {
    ...config,
    refusals: {
      forbidden: 'Insufficient scope',
      not_found,
      conflict: 'A job on the thread is unfinished',
      service_unavailable: 'The agent runtime cannot delete the thread now',
    },
  }
  app.delete(
    '/v1/conversations/:thread_id',
    { config: deleting, schema: schema.removeConversation },
    async (request, reply) => {
      const thread = await findThread(db, request.params.thread_id.toLowerCase())
      const owner = isAdmin(request) ? null : principalId(callerOf(request))
      const ofCaller = thread ? await findJobsOn(db, thread.id, { owner, limit: 1 }) : []
      if (!thread || thread.replaced_by !== null || (ofCaller.length === 0 && !seesAllJobs(request))) {
        throw new ApiError('not_found', not_found)
      }
      if (ofCaller.length === 0) throw insufficientScope([ADMIN_SCOPE])
      const by = auditedOriginOf(request, { created_by: thread.owner })
      await deleteConversation(jobContext, { threadId: thread.id, owner, by: owner === null ? by : undefined })
      return reply.code(204).send(null)
    },
  )

  /** The conversation, and the owner whose turns the caller sees; null: of every owner. */
  async function ownConversation(
    request: FastifyRequest,
    threadId: string,
  ): Promise<{ thread: ThreadRow; owner: string | null }> {
    const owner = seesAllJobs(request) ? null : principalId(callerOf(request))
    const thread = await findConversation(db, threadId.toLowerCase())
    const visible = thread ? await findJobsOn(db, thread.id, { owner, limit: 1 }) : []
    if (!thread || visible.length === 0) throw new ApiError('not_found', not_found)
    return { thread, owner }
  }
}
