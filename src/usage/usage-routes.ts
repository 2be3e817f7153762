import { principalId } from '../auth/principal.ts'
import type { Clock } from '../core/clock.ts'
import type { Database } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { bearer, callerOf, namedUser, scopes } from '../http/gate/access.ts'
import { findLimits } from './limit-store.ts'
import { limitsInForce } from './thresholds.ts'
import { getUsage, getUserUsage, type Usage } from './usage-schema.ts'
import { findUsage, periodOf } from './usage-store.ts'

interface UsageServices {
  db: Database
  clock: Clock
  /** The service's default. */
  limitRuns: number | null
  /** How many jobs of a caller have not ended: they count against the limit too. */
  countRunning: (db: Database, subject: string) => Promise<number>
}

/** Usage per calendar month: callers read their own without a scope; the usage of other users needs `read:users`. */
export function usageRoutes(app: App, { db, clock, limitRuns, countRunning }: UsageServices): void {
  app.get('/v1/usage', { config: { access: bearer() }, schema: getUsage }, (request) =>
    show(principalId(callerOf(request)), request.query.period),
  )
  app.get('/v1/users/:sub/usage', { config: { access: scopes('read:users') }, schema: getUserUsage }, (request) =>
    show(namedUser(request), request.query.period),
  )

  async function show(subject: string, period = periodOf(clock.now())): Promise<Usage> {
    const [counters, found] = await Promise.all([findUsage(db, { subject, period }), findLimits(db, [subject])])
    const own = found.get(subject)
    const limits = limitsInForce(own, limitRuns)
    const by_type = counters.map((counter) => ({
      type: counter.type,
      runs: counter.runs,
      tokens: { input: counter.input_tokens, output: counter.output_tokens, total: counter.total_tokens },
    }))
    const runs = sum(by_type.map((part) => part.runs))
    const total = sum(by_type.map((part) => part.tokens.total))
    const running = limits.runs === null || period !== periodOf(clock.now()) ? 0 : await countRunning(db, subject)
    return {
      period,
      runs,
      by_type,
      tokens: {
        input: sum(by_type.map((part) => part.tokens.input)),
        output: sum(by_type.map((part) => part.tokens.output)),
        total,
      },
      limit: limits.runs,
      remaining: limits.runs === null ? null : Math.max(0, limits.runs - runs - running),
      limit_tokens: limits.tokens,
      remaining_tokens: limits.tokens === null ? null : Math.max(0, limits.tokens - total),
      own_limits: own ?? { runs: null, tokens: null },
    }
  }
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0)
}
