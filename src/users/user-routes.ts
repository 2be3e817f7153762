import type { FastifyReply, FastifyRequest } from 'fastify'
import { auditOriginOf } from '../audit/audit-origin.ts'
import { auditedFields, recordAudit } from '../audit/record-audit.ts'
import { type Principal, principalId } from '../auth/principal.ts'
import { type Clock, toRfc3339 } from '../core/clock.ts'
import { ApiError } from '../core/errors.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Database } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { etagOf, preconditionFailed, readIfMatch } from '../http/etag.ts'
import { bearer, callerOf, scopes } from '../http/gate/access.ts'
import { isText, type ListKind, listByTime, readPageRequest, toPage } from '../http/paging.ts'
import * as schema from './user-schema.ts'
import * as store from './user-store.ts'

const LIST = listByTime('users')
const SEARCH: ListKind<store.UserPlace> = {
  name: 'found users',
  isPosition: (value): value is [store.UserPlace[0], string, string] =>
    value.length === 3 && (value[0] === 'sub' || value[0] === 'email') && value.slice(1).every(isText),
}

interface UserServices {
  db: Database
  clock: Clock
  ids: IdGenerator
}

/** User profiles: users read and change their own without a scope; other profiles need `read:users` or `write:users`. */
export function userRoutes(app: App, { db, clock, ids }: UserServices): void {
  const versioned = true
  const own = { access: bearer(), refusals: { not_found: 'A service account has no user profile' }, versioned } as const
  const one = { refusals: { not_found: 'No such user' }, versioned } as const
  const read = { access: scopes('read:users') }
  const write = { access: scopes('write:users') }

  app.get('/v1/users', { config: read, schema: schema.listUsers }, async (request) => {
    const { search, ...query } = request.query
    if (search !== undefined) {
      const page = readPageRequest(SEARCH, query)
      const rows = await store.searchUsers(db, { ...page, text: search })
      return toPage(SEARCH, { rows, limit: page.limit, toItem: toUser, positionOf: ({ place }) => place })
    }
    const page = readPageRequest(LIST, query)
    const rows = await store.findUserPage(db, page)
    const positionOf = (row: store.UserRow) => [row.created_at, row.sub] as const
    return toPage(LIST, { rows, limit: page.limit, toItem: toUser, positionOf })
  })

  app.get('/v1/users/me', { config: own, schema: schema.getMe }, (request, reply) =>
    show(subOf(callerOf(request)), reply),
  )

  app.get('/v1/users/:sub', { config: { ...read, ...one }, schema: schema.getUser }, (request, reply) =>
    show(request.params.sub, reply),
  )

  app.patch('/v1/users/me', { config: own, schema: schema.changeMe }, (request, reply) =>
    change(subOf(callerOf(request)), request, reply),
  )

  app.patch('/v1/users/:sub', { config: { ...write, ...one }, schema: schema.changeUser }, (request, reply) =>
    change(request.params.sub, request, reply),
  )

  async function show(sub: string, reply: FastifyReply): Promise<schema.User> {
    const row = await store.findUser(db, sub)
    if (!row) throw noSuchUser()
    reply.header('etag', etagOf(row.version))
    return toUser(row)
  }

  async function change(
    sub: string,
    request: FastifyRequest<{ Body: schema.UserChange }>,
    reply: FastifyReply,
  ): Promise<schema.User> {
    const fields = request.body
    const versions = readIfMatch(request.headers['if-match'])
    const isOwn = principalId(callerOf(request)) === sub
    const row = await db.transaction(async (tx) => {
      const before = isOwn ? undefined : await store.findUser(tx, sub)
      const changed = await store.updateUser(tx, { sub, versions, atMs: clock.now() }, fields)
      if (before && changed) {
        const values = { before: auditedFields(toUser(before), fields), after: auditedFields(toUser(changed), fields) }
        const object = { kind: 'user', id: sub } as const
        const by = auditOriginOf(request)
        await recordAudit(tx, { ids, clock }, { by, action: 'user.changed', object, ...values })
      }
      return changed
    })
    if (!row) throw (await store.findUser(db, sub)) ? preconditionFailed() : noSuchUser()
    reply.header('etag', etagOf(row.version))
    return toUser(row)
  }
}

function subOf(principal: Principal): string {
  if (principal.kind === 'user') return principal.sub
  throw new ApiError('not_found', 'A service account has no user profile')
}

export function toUser(row: store.UserRow): schema.User {
  return {
    sub: row.sub,
    email: row.email,
    display_name: row.display_name,
    avatar_url: row.avatar_url,
    locale: row.locale,
    time_zone: row.time_zone,
    push_enabled: row.push_enabled === 1,
    created_at: toRfc3339(row.created_at),
    updated_at: toRfc3339(row.updated_at),
    last_seen_at: toRfc3339(row.last_seen_at),
    blocked_at: row.blocked_at === null ? null : toRfc3339(row.blocked_at),
  }
}

function noSuchUser(): ApiError {
  return new ApiError('not_found', 'No such user')
}
