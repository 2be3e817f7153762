import { type Static, Type } from 'typebox'
import { principalId } from '../auth/principal.ts'
import type { Clock } from '../core/clock.ts'
import type { Database } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { bearer, callerOf, namedUser, scopes } from '../http/gate/access.ts'
import { pathParams } from '../http/schemas.ts'
import { findUsage, periodOf } from './usage-store.ts'

const Tokens = Type.Object(
  {
    input: Type.Integer({ description: 'Tokens that models read.' }),
    output: Type.Integer({ description: 'Tokens that models wrote.' }),
    total: Type.Integer({ description: 'Both together, as the graph reported it.' }),
  },
  { title: 'Tokens', description: 'Tokens, where the graph reports them; otherwise 0.' },
)
const nullableInteger = (description: string) => Type.Unsafe<number | null>({ type: ['integer', 'null'], description })

const Usage = Type.Object(
  {
    period: Type.String({ description: 'A calendar month, UTC.', examples: ['2026-01'] }),
    runs: Type.Integer({ description: 'Jobs that ended in the period.' }),
    by_type: Type.Array(
      Type.Object(
        {
          type: Type.String({ description: 'A job type.' }),
          runs: Type.Integer({ description: 'Jobs of this type that ended in the period.' }),
          tokens: Tokens,
        },
        { title: 'TypeUsage' },
      ),
      { description: 'The same, for each job type.' },
    ),
    tokens: Tokens,
    limit: nullableInteger('How many jobs a caller may start per month; null: no limit.'),
    remaining: nullableInteger('How many more jobs may be started. Running jobs count too. Null: no limit.'),
  },
  {
    title: 'Usage',
    examples: [
      {
        period: '2026-01',
        runs: 2,
        by_type: [{ type: 'report', runs: 2, tokens: { input: 1200, output: 340, total: 1540 } }],
        tokens: { input: 1200, output: 340, total: 1540 },
        limit: 100,
        remaining: 97,
      },
    ],
  },
)
type Usage = Static<typeof Usage>

const querystring = Type.Object(
  {
    period: Type.Optional(
      Type.String({ pattern: '^\\d{4}-(0[1-9]|1[0-2])$', description: 'A month, UTC. Default: the current one.' }),
    ),
  },
  { additionalProperties: false },
)
const tags = ['Usage']
const getUsage = {
  operationId: 'getUsage',
  tags,
  summary: 'Your own usage',
  querystring,
  response: { 200: Usage },
}
const getUserUsage = {
  operationId: 'getUserUsage',
  tags,
  summary: 'A user’s usage',
  params: pathParams('sub', 'The identity provider’s id of the user.'),
  querystring,
  response: { 200: Usage },
}

interface UsageServices {
  db: Database
  clock: Clock
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
    const counters = await findUsage(db, { subject, period })
    const by_type = counters.map((counter) => ({
      type: counter.type,
      runs: counter.runs,
      tokens: { input: counter.input_tokens, output: counter.output_tokens, total: counter.total_tokens },
    }))
    const runs = sum(by_type.map((part) => part.runs))
    const running = limitRuns === null || period !== periodOf(clock.now()) ? 0 : await countRunning(db, subject)
    return {
      period,
      runs,
      by_type,
      tokens: {
        input: sum(by_type.map((part) => part.tokens.input)),
        output: sum(by_type.map((part) => part.tokens.output)),
        total: sum(by_type.map((part) => part.tokens.total)),
      },
      limit: limitRuns,
      remaining: limitRuns === null ? null : Math.max(0, limitRuns - runs - running),
    }
  }
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0)
}
