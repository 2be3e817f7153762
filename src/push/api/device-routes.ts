import { principalId } from '../../auth/principal.ts'
import { type Clock, toRfc3339 } from '../../core/clock.ts'
import { ApiError, QuotaExceeded } from '../../core/errors.ts'
import type { IdGenerator } from '../../core/ids.ts'
import type { Database } from '../../db/database.ts'
import { lockName } from '../../db/locking.ts'
import type { App } from '../../http/app-instance.ts'
import { bearer, callerOf, namedUser, scopes } from '../../http/gate/access.ts'
import type { IdempotentCreation } from '../../http/idempotency.ts'
import { listById, readPageRequest, toPage } from '../../http/paging.ts'
import * as store from '../device-store.ts'
import { DEFAULT_PROVIDER } from '../provider-registry.ts'
import * as schema from './device-schema.ts'

const LIST = listById('devices')
const SHOWN_CHARS = 6

interface DeviceServices {
  db: Database
  clock: Clock
  ids: IdGenerator
  creation: IdempotentCreation
}

/** Each caller changes only its own devices. Those of another user are shown with `read:users`. */
export function deviceRoutes(app: App, { db, clock, ids, creation }: DeviceServices): void {
  const config = { access: bearer() }
  const one = { ...config, refusals: { not_found: 'No such device' } }

  const registering = { ...config, refusals: { usage_limit_exceeded: 'The limit of 100 devices is reached' } }
  app.post('/v1/devices', { config: registering, schema: schema.registerDevice }, (request, reply) => {
    const { token, platform } = request.body
    if (token.trim() === '') throw new ApiError('invalid_request', 'body/token must not be blank')
    if (Buffer.byteLength(token) > schema.MAX_TOKEN_BYTES) {
      throw new ApiError('invalid_request', `body/token must not be larger than ${schema.MAX_TOKEN_BYTES} bytes`)
    }
    const subject = principalId(callerOf(request))
    return creation.create(request, reply, async (tx) => {
      const device = { id: ids.next('dev'), subject, token, platform, provider: DEFAULT_PROVIDER.name }
      await lockName(tx, `devices of ${subject}`)
      const row = await store.upsertDevice(tx, { ...device, atMs: clock.now() })
      const devices = await store.dropSurplusDevices(tx, row)
      // A known device is only refreshed, which is never refused.
      if (row.id === device.id && devices > store.MAX_DEVICES) throw new QuotaExceeded(store.MAX_DEVICES, 'devices')
      return { status: 201, location: `/v1/devices/${row.id}`, body: toDevice(row) }
    })
  })

  app.get('/v1/devices', { config, schema: schema.listOwnDevices }, (request) =>
    list(principalId(callerOf(request)), request.query),
  )

  const others = { access: scopes('read:users') }
  app.get('/v1/users/:sub/devices', { config: others, schema: schema.listUserDevices }, (request) =>
    list(namedUser(request), request.query),
  )

  async function list(subject: string, query: { limit?: number; cursor?: string }) {
    const page = readPageRequest(LIST, query)
    const rows = await store.listDevices(db, subject, page)
    return toPage(LIST, { rows, limit: page.limit, toItem: toDevice, positionOf: (row) => [row.id] as const })
  }

  app.get('/v1/devices/:id', { config: one, schema: schema.getDevice }, async (request) => {
    const row = await store.findDevice(db, { id: request.params.id, subject: principalId(callerOf(request)) })
    if (!row) throw noSuchDevice()
    return toDevice(row)
  })

  app.delete('/v1/devices/:id', { config: one, schema: schema.removeDevice }, async (request, reply) => {
    const device = { id: request.params.id, subject: principalId(callerOf(request)) }
    const removed = await db.transaction((tx) => store.deleteDevice(tx, device))
    if (!removed) throw noSuchDevice()
    return reply.code(204).send(null)
  })
}

function noSuchDevice(): ApiError {
  return new ApiError('not_found', 'No such device')
}

export function toDevice(row: store.DeviceRow): schema.Device {
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
