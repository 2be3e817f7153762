import type { FastifyRequest } from 'fastify'
import { auditOriginOf } from '../../audit/audit-origin.ts'
import { toRfc3339 } from '../../core/clock.ts'
import { ApiError } from '../../core/errors.ts'
import { JsonText } from '../../core/json/json-text.ts'
import type { App } from '../../http/app-instance.ts'
import { callback, scopes } from '../../http/gate/access.ts'
import { listById, readPageRequest, toPage } from '../../http/paging.ts'
import { writesDocuments } from '../../http/schemas.ts'
import { type CallbackPayload, parseCallback } from '../../runtime/callback-payload.ts'
import { isId } from '../../runtime/read-answers.ts'
import { type CallbackOutcome, type CallbackRow, findCallback } from '../callback-store.ts'
import type { JobContext } from '../job-context.ts'
import type { JobType, JobTypes } from '../job-types.ts'
import type { JobWorker } from '../worker/job-worker.ts'
import type { CallbackAnswer, CallbackIntake } from './callback-intake.ts'
import { type CallbackFilter, findCallbackPage } from './callback-list-store.ts'
import * as schema from './callback-schema.ts'
import { findRefusedPage, type RefusedCallbackRow } from './refused-callback-store.ts'
import type { RefusedCallbacks } from './refused-callbacks.ts'
import { replayStoredCallback } from './replay.ts'

const BODY_LIMIT_BYTES = 10 * 1024 * 1024
const LIST = listById('callbacks')
const REFUSED_LIST = listById('refused-callbacks')

interface CallbackServices {
  jobContext: JobContext
  intake: CallbackIntake
  jobWorker: JobWorker
  refusedCallbacks: RefusedCallbacks
}

/** The two paths for the runtime's callbacks, and the admin routes that list stored and refused ones, and replay stored ones. */
export async function callbackRoutes(app: App, services: CallbackServices): Promise<void> {
  const { jobContext, intake } = services
  // A separate Fastify context that keeps the body as bytes, because the signature covers the bytes.
  await app.register(async (callbackApp: App) => {
    // The content type of the sender does not matter, not even when it is missing or invalid.
    callbackApp.addHook('onRequest', (request, _reply, done) => {
      request.headers['content-type'] = 'application/octet-stream'
      done()
    })
    callbackApp.addHook('onResponse', (request, _reply, done) => {
      services.refusedCallbacks.note(request, knownPathOf(request, jobContext.types))
      done()
    })
    callbackApp.removeAllContentTypeParsers()
    callbackApp.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
    addCallbackPaths(callbackApp, services)
  })

  const admin = { access: scopes('admin:*') }
  const reading = { access: scopes('read:operations') }

  const paging = { ...reading, largeAnswer: 'page' as const }
  const listing = { config: paging, schema: schema.listCallbacks, serializerCompiler: writesDocuments }
  app.get('/v1/callbacks', listing, async (request) => {
    const { limit, cursor, fields, ...wanted } = request.query
    const page = readPageRequest(LIST, { ...(limit && { limit }), ...(cursor !== undefined && { cursor }) })
    const bodies = fields === 'body'
    const found = await findCallbackPage(jobContext.db, { filter: readCallbackFilter(wanted), bodies }, page)
    const toItem = bodies ? toCallback : toSummary
    return toPage(LIST, { ...found, limit: page.limit, toItem, positionOf: (row) => [row.id] as const })
  })

  app.get('/v1/refused-callbacks', { config: reading, schema: schema.listRefusedCallbacks }, async (request) => {
    const { id, ...query } = request.query
    const page = readPageRequest(REFUSED_LIST, query)
    const rows = await findRefusedPage(jobContext.db, page, id)
    return toPage(REFUSED_LIST, { rows, limit: page.limit, toItem: toRefused, positionOf: (row) => [row.id] as const })
  })

  const one = { ...reading, largeAnswer: 'page' as const, refusals: { not_found: 'No such callback' } }
  const showing = { config: one, schema: schema.getCallback, serializerCompiler: writesDocuments }
  app.get('/v1/callbacks/:id', showing, async (request) => {
    const row = await findCallback(jobContext.db, request.params.id)
    if (!row) throw new ApiError('not_found', 'No such callback')
    return toCallback(row)
  })

  const replaying = {
    ...admin,
    refusals: { not_found: 'No such callback', conflict: 'The job type report is not configured any more' },
  }
  app.post('/v1/callbacks/:id/replay', { config: replaying, schema: schema.replayCallback }, async (request) =>
    toAnswer(await replayStoredCallback(jobContext, intake, { id: request.params.id, by: auditOriginOf(request) })),
  )
}

function addCallbackPaths(app: App, { jobContext, intake, jobWorker }: CallbackServices): void {
  const { types, clock } = jobContext
  const config = {
    access: callback(),
    underOverload: 'last' as const,
    payload: schema.CallbackBody,
    refusals: { not_found: 'No such job type', conflict: 'The run belongs to a job of type report' },
  }
  const options = { config, bodyLimit: BODY_LIMIT_BYTES }

  app.post('/webhooks/agent', { ...options, schema: schema.agentCallback }, (request) =>
    receive(request, '/webhooks/agent', types.get('agent')),
  )
  app.post('/webhooks/jobs/:type', { ...options, schema: schema.jobCallback }, (request) =>
    receive(request, `/webhooks/jobs/${request.params.type}`, types.get(request.params.type)),
  )

  async function receive(request: FastifyRequest, path: string, type: JobType | undefined) {
    if (!type) throw new ApiError('not_found', 'No such job type')
    const proof = request.callbackProof
    const provenJobId = proof?.authentic ? proof.jobId : null
    const payload = withFieldsOfUrl(await read(request, type, provenJobId), request.query)
    const receivedAtMs = clock.now()
    return toAnswer(await intake.receive({ payload, type, path, jobId: provenJobId, receivedAtMs }))
  }

  /** A callback that cannot be read still shows that the run may have ended, so its job is checked. */
  async function read(
    { body, query }: FastifyRequest,
    type: JobType,
    provenJobId: string | null,
  ): Promise<CallbackPayload> {
    // The proof for one job is the token in the URL.
    const ownToken = provenJobId === null ? undefined : (query as { token: string }).token
    try {
      return await parseCallback(Buffer.isBuffer(body) ? body : Buffer.alloc(0), type.wantedValues, ownToken)
    } catch (error) {
      if (provenJobId !== null) jobWorker.checkSoon(provenJobId, 'callback')
      throw error
    }
  }
}

/** The path of a callback. A type that is not configured is any text, so the path does not show it. */
function knownPathOf({ routeOptions, params }: FastifyRequest, types: JobTypes): string {
  const { type } = (params ?? {}) as { type?: string }
  if (type === undefined) return routeOptions.url ?? ''
  return `/webhooks/jobs/${types.has(type) ? type : '{type}'}`
}

/** The callback URL names the job and the attempt to start its run too, in case the payload has no metadata. */
function withFieldsOfUrl(payload: CallbackPayload, query: unknown): CallbackPayload {
  const { job_id, attempt } = query as Record<string, unknown>
  if (payload.jobId !== null || !isId(job_id)) return payload
  return { ...payload, jobId: job_id, attempt: Number(attempt) || 1 }
}

function toAnswer({ outcome, jobId }: CallbackAnswer) {
  return { received: true as const, outcome, job_id: jobId }
}

function toCallback(row: CallbackRow): schema.Callback {
  return {
    id: row.id,
    path: row.path,
    type: row.type,
    job_id: row.job_id,
    thread_id: row.thread_id,
    run_id: row.run_id,
    status: row.status,
    outcome: row.outcome,
    received_at: toRfc3339(row.received_at),
    body: new JsonText(row.body),
  }
}

function toRefused({ first_at, last_at, ...row }: RefusedCallbackRow): schema.RefusedCallback {
  return { ...row, first_at: toRfc3339(first_at), last_at: toRfc3339(last_at) }
}

function toSummary(row: CallbackRow): schema.CallbackItem {
  const { body: _body, ...summary } = toCallback({ ...row, body: 'null' })
  return summary
}

interface CallbackQuery {
  job_id?: string
  outcome?: CallbackOutcome
  type?: string
  received_after?: string
  received_before?: string
}

export function readCallbackFilter(query: CallbackQuery): CallbackFilter {
  const { job_id, outcome, type, received_after, received_before } = query
  return {
    ...(job_id !== undefined && { jobId: job_id }),
    ...(outcome !== undefined && { outcome }),
    ...(type !== undefined && { type }),
    ...(received_after !== undefined && { receivedAfterMs: Date.parse(received_after) }),
    ...(received_before !== undefined && { receivedBeforeMs: Date.parse(received_before) }),
  }
}
