import { principalId } from '../auth/principal.ts'
import { type Clock, toRfc3339 } from '../core/clock.ts'
import { ApiError } from '../core/errors.ts'
import type { IdGenerator } from '../core/ids.ts'
import { type Static, Type } from '../core/schema.ts'
import type { Database } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { bearer, callerOf } from '../http/gate/access.ts'
import type { IdempotentCreation } from '../http/idempotency.ts'
import { listById, pageOf, pageQuery, readPageRequest, toPage } from '../http/paging.ts'
import { idempotencyHeader, nullableTimestamp, pathParams, text, timestamp } from '../http/schemas.ts'
import {
  type DeviceRow,
  deleteDevice,
  dropSurplusDevices,
  findDevice,
  listDevices,
  upsertDevice,
} from './device-store.ts'
import { PLATFORMS, type Platform } from './push-message.ts'

const LIST = listById('devices')
const MAX_TOKEN_BYTES = 4096
const SHOWN_CHARS = 6

const platform = Type.Unsafe<Platform>({ type: 'string', enum: [...PLATFORMS] })

const Device = Type.Object(
  {
    id: Type.String(),
    token: Type.String({ description: 'Its last characters; the whole is never shown.' }),
    platform,
    created_at: timestamp,
    last_seen_at: timestamp,
    disabled_at: nullableTimestamp,
    disabled_reason: Type.Unsafe<string | null>({ type: ['string', 'null'] }),
  },
  {
    title: 'Device',
    examples: [
      {
        id: 'dev_01kq3v7m2x8n4r6t0w9y5z1abc',
        token: '…x9Qa7c',
        platform: 'android',
        created_at: '2026-01-31T12:00:00.000Z',
        last_seen_at: '2026-01-31T12:00:00.000Z',
        disabled_at: null,
        disabled_reason: null,
      },
    ],
  },
)

const tags = ['Push']

const registerDevice = {
  operationId: 'registerDevice',
  tags,
  summary: 'Register a device for push',
  description:
    'Repeat it on every start of the app: it refreshes the device, and moves a token to its newest owner. ' +
    'Of more than 50 devices the one not seen for longest is removed.',
  headers: idempotencyHeader,
  body: Type.Object(
    { token: text({ minLength: 1, maxLength: MAX_TOKEN_BYTES }), platform },
    { title: 'DeviceInput', additionalProperties: false, examples: [{ token: 'cX3…:APA91b…', platform: 'web' }] },
  ),
  response: { 201: Device },
}
const listOwnDevices = {
  operationId: 'listDevices',
  tags,
  summary: 'List your devices, newest first',
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
  response: { 200: pageOf(Device) },
}
const getDevice = {
  operationId: 'getDevice',
  tags,
  summary: 'Get one of your devices',
  params: pathParams('id'),
  response: { 200: Device },
}
const removeDevice = {
  operationId: 'removeDevice',
  tags,
  summary: 'Remove a device',
  params: pathParams('id'),
  response: { 204: Type.Null({ description: 'It gets nothing any more.' }) },
}

export interface DeviceServices {
  db: Database
  clock: Clock
  ids: IdGenerator
  creation: IdempotentCreation
}

/** A caller's own devices, and nobody else's. */
export function deviceRoutes(app: App, { db, clock, ids, creation }: DeviceServices): void {
  const config = { access: bearer() }
  const one = { ...config, refusals: { not_found: 'No such device' } }

  app.post('/v1/devices', { config, schema: registerDevice }, (request, reply) => {
    const { token, platform } = request.body
    if (token.trim() === '') throw new ApiError('invalid_request', 'body/token must not be blank')
    if (Buffer.byteLength(token) > MAX_TOKEN_BYTES) {
      throw new ApiError('invalid_request', `body/token must not be larger than ${MAX_TOKEN_BYTES} bytes`)
    }
    const subject = principalId(callerOf(request))
    return creation.create(request, reply, async (tx) => {
      const row = await upsertDevice(tx, { id: ids.next('dev'), subject, token, platform, atMs: clock.now() })
      await dropSurplusDevices(tx, row)
      return { status: 201, location: `/v1/devices/${row.id}`, body: toDevice(row) }
    })
  })

  app.get('/v1/devices', { config, schema: listOwnDevices }, async (request) => {
    const page = readPageRequest(LIST, request.query)
    const rows = await listDevices(db, principalId(callerOf(request)), page)
    return toPage(LIST, { rows, limit: page.limit, toItem: toDevice, positionOf: (row) => [row.id] as const })
  })

  app.get('/v1/devices/:id', { config: one, schema: getDevice }, async (request) => {
    const row = await findDevice(db, { id: request.params.id, subject: principalId(callerOf(request)) })
    if (!row) throw noSuchDevice()
    return toDevice(row)
  })

  app.delete('/v1/devices/:id', { config: one, schema: removeDevice }, async (request, reply) => {
    const removed = await deleteDevice(db, { id: request.params.id, subject: principalId(callerOf(request)) })
    if (!removed) throw noSuchDevice()
    return reply.code(204).send(null)
  })
}

function noSuchDevice(): ApiError {
  return new ApiError('not_found', 'No such device')
}

function toDevice(row: DeviceRow): Static<typeof Device> {
  return {
    id: row.id,
    token: `…${row.token.slice(-SHOWN_CHARS).toWellFormed()}`,
    platform: row.platform,
    created_at: toRfc3339(row.created_at),
    last_seen_at: toRfc3339(row.last_seen_at),
    disabled_at: row.disabled_at === null ? null : toRfc3339(row.disabled_at),
    disabled_reason: row.disabled_reason,
  }
}
