import type { FastifyRequest } from 'fastify'
import { auditOriginOf } from '../audit/audit-origin.ts'
import { type Clock, toRfc3339 } from '../core/clock.ts'
import { ApiError } from '../core/errors.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Database } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { callerOf, namedUser, scopes } from '../http/gate/access.ts'
import { changeBlock } from './change-block.ts'
import * as schema from './user-schema.ts'
import type { UserStates } from './user-states.ts'

interface BlockServices {
  db: Database
  clock: Clock
  ids: IdGenerator
  userStates: UserStates
}

/** Admins block users before their tokens expire. Repeating a request changes nothing. */
export function blockRoutes(app: App, { db, clock, ids, userStates }: BlockServices): void {
  const config = { access: scopes('admin:*') }
  const blocking = { ...config, refusals: { conflict: 'You cannot block yourself' } }

  app.post('/v1/users/:sub/block', { config: blocking, schema: schema.blockUser }, (request) => {
    const caller = callerOf(request)
    const sub = namedUser(request)
    if (caller.kind === 'user' && caller.sub === sub) throw new ApiError('conflict', 'You cannot block yourself')
    return change(request, { sub, blockedAtMs: clock.now() })
  })

  app.post('/v1/users/:sub/unblock', { config, schema: schema.unblockUser }, (request) =>
    change(request, { sub: namedUser(request), blockedAtMs: null }),
  )

  async function change(
    request: FastifyRequest,
    wanted: { sub: string; blockedAtMs: number | null },
  ): Promise<schema.UserBlock> {
    const { sub } = wanted
    const { blockedAtMs } = await changeBlock(db, { ids, clock }, { ...wanted, by: auditOriginOf(request) })
    // On this node the change takes effect at once. If this read fails, the next round reads it.
    await userStates.load()
    return { sub, blocked_at: blockedAtMs === null ? null : toRfc3339(blockedAtMs) }
  }
}
