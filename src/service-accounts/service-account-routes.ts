import { auditOriginOf } from '../audit/audit-origin.ts'
import { principalId } from '../auth/principal.ts'
import { toRfc3339 } from '../core/clock.ts'
import type { Database } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { callerOf, scopes } from '../http/gate/access.ts'
import type { IdempotentCreation } from '../http/idempotency.ts'
import { listById, readPageRequest, toPage } from '../http/paging.ts'
import * as schema from './service-account-schema.ts'
import type { ServiceAccountRow } from './service-account-store.ts'
import { findServiceAccountPage } from './service-account-store.ts'
import type { IssuedKey, ServiceAccounts } from './service-accounts.ts'

const LIST = listById('service-accounts')
const DEFAULT_GRACE_SECONDS = 86_400

interface ServiceAccountServices {
  db: Database
  serviceAccounts: ServiceAccounts
  creation: IdempotentCreation
}

/** Service accounts: managed by callers with `admin:*`. */
export function serviceAccountRoutes(app: App, { db, serviceAccounts, creation }: ServiceAccountServices): void {
  const admin = { access: scopes('admin:*') }
  const not_found = 'No such service account'
  const one = { ...admin, refusals: { not_found } }
  const rotating = { ...admin, refusals: { not_found, conflict: 'The service account is revoked' } }
  const base = '/v1/service-accounts'

  app.get(base, { config: admin, schema: schema.listServiceAccounts }, async (request) => {
    const { id, ...query } = request.query
    const page = readPageRequest(LIST, query)
    const rows = await findServiceAccountPage(db, page, id)
    return toPage(LIST, { rows, limit: page.limit, toItem: toServiceAccount, positionOf: (row) => [row.id] as const })
  })

  app.post(base, { config: admin, schema: schema.createServiceAccount }, async (request, reply) => {
    const { name, scopes: granted, expires_at } = request.body
    const created = await creation.create(request, reply, async (tx) => {
      const createdBy = principalId(callerOf(request))
      const expiresAtMs = expires_at ? Date.parse(expires_at) : null
      const account = { name, scopes: granted, createdBy, expiresAtMs }
      return shownOnce(await serviceAccounts.create(tx, account, auditOriginOf(request)))
    })
    serviceAccounts.forgetCachedKeys()
    return created
  })

  app.get(`${base}/:id`, { config: one, schema: schema.getServiceAccount }, async (request) =>
    toServiceAccount(await serviceAccounts.find(request.params.id)),
  )

  app.post(`${base}/:id/rotate`, { config: rotating, schema: schema.rotateServiceAccount }, async (request, reply) => {
    const graceSeconds = request.body?.grace_seconds ?? DEFAULT_GRACE_SECONDS
    const rotated = await creation.create(request, reply, async (tx) =>
      shownOnce(await serviceAccounts.rotate(tx, { id: request.params.id, graceSeconds }, auditOriginOf(request))),
    )
    serviceAccounts.forgetCachedKeys()
    return rotated
  })

  app.delete(`${base}/:id`, { config: one, schema: schema.deleteServiceAccount }, async (request, reply) => {
    await serviceAccounts.revoke(request.params.id, auditOriginOf(request))
    return reply.code(204).send(null)
  })

  /** Only the first answer has the key; an idempotent repeat has null in its place. */
  function shownOnce({ row, key }: IssuedKey) {
    const account = toServiceAccount(row)
    return {
      status: 201 as const,
      location: `${base}/${row.id}`,
      body: { ...account, key } as schema.ServiceAccountWithKey,
      replayBody: { ...account, key: null },
    }
  }
}

export function toServiceAccount(row: ServiceAccountRow): schema.ServiceAccount {
  return {
    id: row.id,
    name: row.name,
    scopes: row.scopes.split(' ').filter((scope) => scope !== ''),
    key_hint: row.key_hint,
    created_by: row.created_by,
    created_at: toRfc3339(row.created_at),
    expires_at: orNull(row.expires_at),
    revoked_at: orNull(row.revoked_at),
    last_used_at: orNull(row.last_used_at),
  }
}

function orNull(epochMs: number | null): string | null {
  return epochMs === null ? null : toRfc3339(epochMs)
}
