import type { FastifyReply } from 'fastify'
import { auditOriginOf } from '../../audit/audit-origin.ts'
import { type AuditedChange, auditedFields, recordAudit } from '../../audit/record-audit.ts'
import { principalId } from '../../auth/principal.ts'
import { type Clock, toRfc3339 } from '../../core/clock.ts'
import { ApiError } from '../../core/errors.ts'
import type { IdGenerator } from '../../core/ids.ts'
import type { Log } from '../../core/log.ts'
import type { Random } from '../../core/random.ts'
import type { Database, Queryable, Transaction } from '../../db/database.ts'
import { lockName } from '../../db/locking.ts'
import { appendEvents, findHead, findPositionOf } from '../../events/event-store.ts'
import type { App } from '../../http/app-instance.ts'
import { etagOf, preconditionFailed, readIfMatch } from '../../http/etag.ts'
import { callerOf, scopes } from '../../http/gate/access.ts'
import type { IdempotentCreation } from '../../http/idempotency.ts'
import { onePage } from '../../http/paging.ts'
import { insertDeliveries, lockWebhook } from '../delivery-store.ts'
import * as store from '../endpoint-store.ts'
import { newSecret } from '../signature.ts'
import { disabledEvent, MAX_ENDPOINTS } from '../webhook-channel.ts'
import type { Webhooks } from '../webhooks.ts'
import { toDelivery } from './delivery-routes.ts'
import * as schema from './endpoint-schema.ts'

const OLD_SECRET_MS = 24 * 3_600_000

interface WebhookServices {
  db: Database
  clock: Clock
  random: Random
  ids: IdGenerator
  log: Log
  creation: IdempotentCreation
  webhooks: Pick<Webhooks, 'guard'>
  /** The names of the job types. */
  typeNames: readonly string[]
  projectExists: (db: Queryable, id: string) => Promise<boolean>
}

const NO_ENDPOINT = 'No such webhook endpoint'
const IS_DISABLED = 'The endpoint is disabled'

/** Admins say which backends get which events. */
export function webhookEndpointRoutes(app: App, services: WebhookServices): void {
  const { db, clock, random, ids, log, creation } = services
  const base = '/v1/webhook-endpoints'
  const reading = { access: scopes('read:operations') }
  const admin = { access: scopes('admin:*') }
  const one = { ...admin, refusals: { not_found: NO_ENDPOINT } }

  app.get(base, { config: reading, schema: schema.listWebhookEndpoints }, async () =>
    onePage((await store.listEndpoints(db)).map(toEndpoint)),
  )

  const readingOne = { ...reading, refusals: { not_found: NO_ENDPOINT }, versioned: true as const }
  app.get(`${base}/:id`, { config: readingOne, schema: schema.getWebhookEndpoint }, (request, reply) =>
    show(reply, request.params.id),
  )

  const creating = { ...admin, refusals: { conflict: `There are ${MAX_ENDPOINTS} endpoints, the most there may be` } }
  app.post(base, { config: creating, schema: schema.createWebhookEndpoint }, (request, reply) =>
    creation.create(
      request,
      reply,
      async (tx) => {
        const { events, types = null, project_id = null, description = null } = request.body
        const url = new URL(request.body.url).href
        await lockName(tx, 'webhook_endpoints')
        if ((await store.countEndpoints(tx)) >= MAX_ENDPOINTS) {
          throw new ApiError('conflict', `There are ${MAX_ENDPOINTS} endpoints, the most there may be`)
        }
        const atMs = clock.now()
        const row: store.EndpointRow = {
          id: ids.next('whe'),
          url,
          description,
          event_types: JSON.stringify(events),
          types: types && JSON.stringify(types),
          project_id,
          secret: newSecret(random),
          old_secret: null,
          old_secret_until: null,
          after_seq: (await findHead(tx)).seq,
          missed: 0,
          failing_since: null,
          disabled_at: null,
          disabled_reason: null,
          created_by: principalId(callerOf(request)),
          version: 1,
          created_at: atMs,
          updated_at: atMs,
        }
        await store.insertEndpoint(tx, row)
        const after = { url, events, types, project_id, description }
        await audit(tx, { by: auditOriginOf(request), action: 'webhook_endpoint.created', id: row.id, after })
        return shownOnce({ ...row, waiting: 0 })
      },
      { prepare: () => check(services, request.body) },
    ),
  )

  const changing = { ...one, versioned: true as const }
  app.patch(`${base}/:id`, { config: changing, schema: schema.changeWebhookEndpoint }, async (request, reply) => {
    const { id } = request.params
    const change = request.body
    const versions = readIfMatch(request.headers['if-match'])
    await check(services, change)
    const isDisabled = await db.transaction(async (tx) => {
      const before = await lock(tx, id)
      if (versions !== null && !versions.includes(before.version)) throw preconditionFailed()
      const after = await changed(tx, before, change)
      await store.updateEndpoint(tx, after)
      const disabledAtMs = before.disabled_at === null ? after.disabled_at : null
      if (disabledAtMs !== null) await appendEvents(tx, [disabledEvent({ id, reason: 'admin', atMs: disabledAtMs })])
      const fields = {
        before: auditedFields(toAudited(before), change),
        after: auditedFields(toAudited(after), change),
      }
      await audit(tx, { by: auditOriginOf(request), action: 'webhook_endpoint.changed', id, ...fields })
      return disabledAtMs !== null
    })
    if (isDisabled) log.info({ endpointId: id, reason: 'admin' }, 'webhook.disabled')
    return show(reply, id)
  })

  app.delete(`${base}/:id`, { config: one, schema: schema.deleteWebhookEndpoint }, async (request, reply) => {
    const { id } = request.params
    await db.transaction(async (tx) => {
      const { url } = await lock(tx, id)
      await store.deleteEndpoint(tx, id)
      await audit(tx, { by: auditOriginOf(request), action: 'webhook_endpoint.deleted', id, before: { url } })
    })
    return reply.code(204).send(null)
  })

  app.post(`${base}/:id/rotate`, { config: one, schema: schema.rotateWebhookSecret }, (request, reply) =>
    creation.create(request, reply, async (tx) => {
      const { id } = request.params
      const before = await lock(tx, id)
      const atMs = clock.now()
      const row = {
        ...before,
        secret: newSecret(random),
        old_secret: before.secret,
        old_secret_until: atMs + OLD_SECRET_MS,
        updated_at: atMs,
      }
      await store.updateEndpoint(tx, row)
      await audit(tx, { by: auditOriginOf(request), action: 'webhook_endpoint.rotated', id })
      const waiting = (await store.findEndpoint(tx, id))?.waiting ?? 0
      return shownOnce({ ...row, waiting })
    }),
  )

  const testing = { ...admin, refusals: { not_found: NO_ENDPOINT, conflict: IS_DISABLED } }
  app.post(`${base}/:id/test`, { config: testing, schema: schema.testWebhookEndpoint }, async (request, reply) => {
    const { id } = request.params
    const delivery = await db.transaction(async (tx) => {
      const { disabled_at } = await lock(tx, id)
      if (disabled_at !== null) throw new ApiError('conflict', IS_DISABLED)
      const atMs = clock.now()
      const cause = `${id}:test:${request.id}:${atMs}`
      const data = JSON.stringify({ endpoint_id: id })
      await appendEvents(tx, [{ subject: null, job_id: null, type: 'webhook.test', cause, data, created_at: atMs }])
      const key = { event_seq: await findPositionOf(tx, cause), endpoint_id: id }
      await insertDeliveries(tx, { deliveries: [{ ...key, event_type: 'webhook.test' }], atMs })
      await audit(tx, { by: auditOriginOf(request), action: 'webhook_endpoint.tested', id })
      return lockWebhook(tx, key, atMs)
    })
    if (!delivery) throw new Error('A test has no delivery')
    return reply.code(202).send(toDelivery(delivery))
  })

  async function changed(
    tx: Transaction,
    before: store.EndpointRow,
    { url: given, events, types, enabled, ...rest }: EndpointChange,
  ): Promise<store.EndpointRow> {
    const atMs = clock.now()
    const url = given === undefined ? before.url : new URL(given).href
    const row: store.EndpointRow = {
      ...before,
      ...rest,
      url,
      // The failures were those of another receiver.
      failing_since: url === before.url ? before.failing_since : null,
      ...(events && { event_types: JSON.stringify(events) }),
      ...(types !== undefined && { types: types && JSON.stringify(types) }),
      updated_at: atMs,
    }
    const isEnabled = before.disabled_at === null
    if (enabled === undefined || enabled === isEnabled) return row
    if (!enabled) return { ...row, disabled_at: atMs, disabled_reason: 'admin' }
    // The events of the time in between are sent by `recover` alone.
    const after_seq = (await findHead(tx)).seq
    return { ...row, disabled_at: null, disabled_reason: null, failing_since: null, after_seq }
  }

  async function show(reply: FastifyReply, id: string): Promise<schema.WebhookEndpoint> {
    const row = await store.findEndpoint(db, id)
    if (!row) throw new ApiError('not_found', NO_ENDPOINT)
    reply.header('etag', etagOf(row.version))
    return toEndpoint(row)
  }

  async function lock(tx: Transaction, id: string): Promise<store.EndpointRow> {
    const row = await store.lockEndpoint(tx, id)
    if (!row) throw new ApiError('not_found', NO_ENDPOINT)
    return row
  }

  function audit(tx: Transaction, { id, ...change }: Omit<AuditedChange, 'object'> & { id: string }): Promise<void> {
    return recordAudit(tx, services, { ...change, object: { kind: 'webhook_endpoint', id } })
  }
}

interface EndpointChange {
  url?: string
  events?: string[]
  types?: string[] | null
  project_id?: string | null
  description?: string | null
  enabled?: boolean
}

async function check(
  { db, webhooks, typeNames, projectExists }: WebhookServices,
  given: EndpointChange,
): Promise<void> {
  const { url, types, project_id } = given
  const fault = url === undefined ? null : webhooks.guard.faultOf(url)
  if (fault !== null) throw new ApiError('invalid_request', `body/url ${fault}`)
  const unknown = types?.find((type) => !typeNames.includes(type))
  if (unknown !== undefined) throw new ApiError('invalid_request', `body/types names no job type: ${unknown}`)
  if (project_id && !(await projectExists(db, project_id))) {
    throw new ApiError('invalid_request', 'body/project_id names no project')
  }
}

/** Only the first answer has the secret; an idempotent repeat has null in its place. */
function shownOnce(row: store.ListedEndpoint) {
  const endpoint = toEndpoint(row)
  return {
    status: 201 as const,
    location: `/v1/webhook-endpoints/${row.id}`,
    body: { ...endpoint, secret: row.secret } as schema.WebhookEndpointWithSecret,
    replayBody: { ...endpoint, secret: null },
  }
}

function toAudited(row: store.EndpointRow) {
  const { url, description, project_id, disabled_at } = row
  const types = row.types === null ? null : (JSON.parse(row.types) as string[])
  const events = JSON.parse(row.event_types) as string[]
  return { url, events, types, project_id, description, enabled: disabled_at === null }
}

export function toEndpoint(row: store.ListedEndpoint): schema.WebhookEndpoint {
  const timeOf = (ms: number | null) => (ms === null ? null : toRfc3339(ms))
  return {
    id: row.id,
    ...toAudited(row),
    disabled_at: timeOf(row.disabled_at),
    disabled_reason: row.disabled_reason,
    failing_since: timeOf(row.failing_since),
    waiting: row.waiting,
    missed_events: row.missed,
    previous_secret_until: timeOf(row.old_secret_until),
    created_by: row.created_by,
    created_at: toRfc3339(row.created_at),
    updated_at: toRfc3339(row.updated_at),
  }
}
