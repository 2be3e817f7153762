import type { FastifyRequest } from 'fastify'
import { auditOriginOf } from '../audit/audit-origin.ts'
import { auditedFields, recordAudit } from '../audit/record-audit.ts'
import { principalId } from '../auth/principal.ts'
import { ADMIN_SCOPE } from '../auth/scopes.ts'
import { ReadCoalescer } from '../core/async/read-coalescer.ts'
import { type Clock, toRfc3339 } from '../core/clock.ts'
import { ApiError, QuotaExceeded } from '../core/errors.ts'
import type { IdGenerator } from '../core/ids.ts'
import { JsonText } from '../core/json/json-text.ts'
import { takePage } from '../db/bounded-page.ts'
import type { Database, Queryable } from '../db/database.ts'
import { lockName } from '../db/locking.ts'
import type { App } from '../http/app-instance.ts'
import { etagOf, isNotModified, preconditionFailed, readIfMatch } from '../http/etag.ts'
import { callerOf, scopes } from '../http/gate/access.ts'
import type { IdempotentCreation } from '../http/idempotency.ts'
import { listById, readPageRequest, toPage } from '../http/paging.ts'
import { writesDocuments } from '../http/schemas.ts'
import type { ProjectEvents } from './project-events.ts'
import * as schema from './project-schema.ts'
import * as store from './project-store.ts'

const MAX_METADATA_BYTES = 16 * 1024
const NO_METADATA = new JsonText('{}')
const LIST = listById('projects')

interface ProjectServices {
  db: Database
  clock: Clock
  ids: IdGenerator
  creation: IdempotentCreation
  projectEvents: ProjectEvents
  /** Per creator; null: no limit. */
  maxProjects: number | null
}

/** Projects: a caller with the scope reads and changes all of them. */
export function projectRoutes(app: App, services: ProjectServices): void {
  const { db, clock, ids, creation, projectEvents, maxProjects } = services
  const read = { access: scopes('read:projects') }
  const listing = { ...read, largeAnswer: sizeOfPage }
  const pages = new ReadCoalescer<string, string>()
  const write = { access: scopes('write:projects') }
  const one = { refusals: { not_found: 'No such project' } }
  const versioned = true
  const documents = ['metadata']
  const serializerCompiler = writesDocuments

  app.get(
    '/v1/projects',
    { config: listing, schema: schema.listProjects, serializerCompiler },
    async (request, reply) => {
      const { limit, after } = readPageRequest(LIST, request.query)
      // Every caller sees the same list, so concurrent requests share one query and one serialized answer.
      const text = await pages.read(`${limit} ${after?.[0] ?? ''}`, async () => {
        const taken = takePage(await store.findProjectPage(db, { limit, after }), limit, bytesOfProject)
        const page = toPage(LIST, { ...taken, limit, toItem: toProject, positionOf: (row) => [row.id] as const })
        return reply.serialize(page) as string
      })
      // The reply is typed as the page; this is its JSON text.
      return reply.type('application/json; charset=utf-8').send(text as never)
    },
  )

  const refusals = { usage_limit_exceeded: 'The limit of 100 projects is reached' }
  const creating = { ...write, versioned, documents, refusals } as const
  app.post(
    '/v1/projects',
    { config: creating, schema: schema.createProject, serializerCompiler },
    async (request, reply) => {
      const { name, description = null, metadata = NO_METADATA } = request.body
      checkMetadata(metadata)
      const created = await creation.create(request, reply, async (tx) => {
        const id = ids.next('prj')
        const createdBy = principalId(callerOf(request))
        const isExempt = maxProjects === null || callerOf(request).scopes.includes(ADMIN_SCOPE)
        if (!isExempt) {
          await lockName(tx, `projects of ${createdBy}`)
          if ((await store.countProjectsOf(tx, createdBy)) >= maxProjects)
            throw new QuotaExceeded(maxProjects, 'projects')
        }
        const row = await store.insertProject(tx, { id, name, description, metadata, createdBy, atMs: clock.now() })
        await projectEvents.record(tx, 'created', row)
        return { status: 201, location: `/v1/projects/${id}`, body: toProject(row) }
      })
      // An idempotent repeat gets the first answer, and so the first version, even if the project changed since.
      reply.header('etag', etagOf(store.FIRST_VERSION))
      return created
    },
  )

  app.get(
    '/v1/projects/:id',
    { config: { ...read, ...one, versioned }, schema: schema.getProject, serializerCompiler },
    async (request, reply) => {
      const row = await store.findProject(db, request.params.id)
      if (!row) throw noSuchProject()
      const isKnown = isNotModified(request.headers['if-none-match'], row.version)
      reply.header('etag', etagOf(row.version))
      return isKnown ? reply.code(304).send(undefined) : toProject(row)
    },
  )

  app.patch(
    '/v1/projects/:id',
    { config: { ...write, ...one, versioned, documents }, schema: schema.changeProject, serializerCompiler },
    async (request, reply) => {
      const versions = readIfMatch(request.headers['if-match'])
      if (request.body.metadata) checkMetadata(request.body.metadata)
      const { id } = request.params
      const row = await db.transaction(async (tx) => {
        const before = await store.lockProject(tx, id)
        const changed = await store.updateProject(tx, { ...request.body, id, versions, atMs: clock.now() })
        if (!changed) throw await absentOrChanged(tx, id)
        await projectEvents.record(tx, 'updated', changed)
        if (before && !isCreator(request, before)) {
          await recordAudit(tx, services, {
            by: auditOriginOf(request),
            action: 'project.changed',
            object: { kind: 'project', id },
            before: auditedFields(toProject(before), request.body),
            after: auditedFields(toProject(changed), request.body),
          })
        }
        return changed
      })
      reply.header('etag', etagOf(row.version))
      return toProject(row)
    },
  )

  app.delete(
    '/v1/projects/:id',
    { config: { ...write, ...one }, schema: schema.deleteProject },
    async (request, reply) => {
      const versions = readIfMatch(request.headers['if-match'])
      const { id } = request.params
      await db.transaction(async (tx) => {
        const deleted = await store.deleteProjectRow(tx, { id, versions })
        if (!deleted) throw await absentOrChanged(tx, id)
        await projectEvents.record(tx, 'deleted', deleted)
        if (!isCreator(request, deleted)) {
          await recordAudit(tx, services, {
            by: auditOriginOf(request),
            action: 'project.deleted',
            object: { kind: 'project', id },
            before: { name: deleted.name, created_by: deleted.created_by },
          })
        }
      })
      return reply.code(204).send(null)
    },
  )
}

async function absentOrChanged(tx: Queryable, id: string): Promise<ApiError> {
  return (await store.findProject(tx, id)) ? preconditionFailed() : noSuchProject()
}

export function toProject(row: store.ProjectRow): schema.Project {
  return {
    id: row.id,
    name: row.name,
    description: row.description,
    metadata: new JsonText(row.metadata),
    created_by: row.created_by,
    created_at: toRfc3339(row.created_at),
    updated_at: toRfc3339(row.updated_at),
  }
}

/** A page of the default length has at most 0.5 MB. */
function sizeOfPage({ limit }: Readonly<Record<string, unknown>>): 'page' | 'document' {
  return limit === undefined || Number(limit) <= 20 ? 'document' : 'page'
}

function bytesOfProject({ description, metadata }: store.ProjectRow): number {
  return Buffer.byteLength(description ?? '') + Buffer.byteLength(metadata)
}

function isCreator(request: FastifyRequest, { created_by }: store.ProjectRow): boolean {
  return created_by === principalId(callerOf(request))
}

function checkMetadata({ text }: JsonText): void {
  if (Buffer.byteLength(text) > MAX_METADATA_BYTES) {
    throw new ApiError('invalid_request', 'body/metadata must not be larger than 16 KB')
  }
}

function noSuchProject(): ApiError {
  return new ApiError('not_found', 'No such project')
}
