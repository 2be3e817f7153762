import { auditOriginOf } from '../audit/audit-origin.ts'
import { recordAudit } from '../audit/record-audit.ts'
import type { Clock } from '../core/clock.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Database } from '../db/database.ts'
import { eventSchema } from '../events/event-schema.ts'
import { appendEvents } from '../events/event-store.ts'
import type { App } from '../http/app-instance.ts'
import { namedUser, scopes } from '../http/gate/access.ts'
import { findLimits, lockCountersOf, saveLimits } from '../usage/limit-store.ts'
import { reachThresholds } from '../usage/thresholds.ts'
import { setUserLimits, ThresholdData } from '../usage/usage-schema.ts'
import { lockUsage, periodOf } from '../usage/usage-store.ts'

export const UsageEvent = eventSchema({
  title: 'UsageEvent',
  types: ['usage.threshold'],
  description: 'Your usage of this month has reached 80 % or 100 % of one of your limits: once each a month.',
  data: ThresholdData,
})

interface LimitServices {
  db: Database
  clock: Clock
  ids: IdGenerator
  /** The service's default. */
  limitRuns: number | null
  /** The names of the job types. */
  typeNames: readonly string[]
}

/** Admins set the limits of a user per month. Repeating a request changes nothing. */
export function limitRoutes(app: App, { db, clock, ids, limitRuns, typeNames }: LimitServices): void {
  const config = { access: scopes('admin:*') }
  app.put('/v1/users/:sub/limits', { config, schema: setUserLimits }, async (request) => {
    const subject = namedUser(request)
    const after = request.body
    const by = auditOriginOf(request)
    await db.transaction(async (tx) => {
      const atMs = clock.now()
      const period = periodOf(atMs)
      // Starts and settlements of the user come before this change or after it.
      await lockUsage(tx, { subjects: [subject], period, types: typeNames })
      await lockCountersOf(tx, { subject, period })
      const before = (await findLimits(tx, [subject])).get(subject) ?? { runs: null, tokens: null }
      if (before.runs === after.runs && before.tokens === after.tokens) return
      await saveLimits(tx, subject, after)
      const object = { kind: 'user', id: subject } as const
      await recordAudit(tx, { ids, clock }, { by, action: 'user.limits_changed', object, before, after })
      const wanted = { subjects: [subject], period, defaultRuns: limitRuns, atMs }
      await appendEvents(tx, await reachThresholds(tx, wanted))
    })
    return after
  })
}
