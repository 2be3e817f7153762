import { type Static, Type } from 'typebox'
import { pathParams } from '../http/schemas.ts'
import { THRESHOLDS, type Threshold } from './thresholds.ts'

/** Large enough for any limit, and exact in every client. */
const MAX_LIMIT = 1_000_000_000_000

const nullableInteger = (description: string, bounds: { minimum?: number; maximum?: number } = {}) =>
  Type.Unsafe<number | null>({ type: ['integer', 'null'], ...bounds, description })
const limit = (description: string) => nullableInteger(description, { minimum: 0, maximum: MAX_LIMIT })

const UsageLimits = Type.Object(
  {
    runs: limit('How many jobs may be started in a calendar month (UTC); null: the service’s default.'),
    tokens: limit('How many tokens jobs may use in it before no more are started; null: the service’s default.'),
  },
  {
    title: 'UsageLimits',
    description: 'The limits that an admin set for one user.',
    additionalProperties: false,
    examples: [{ runs: 100, tokens: 500_000 }],
  },
)

const Tokens = Type.Object(
  {
    input: Type.Integer({ description: 'Tokens that models read.' }),
    output: Type.Integer({ description: 'Tokens that models wrote.' }),
    total: Type.Integer({ description: 'Both together, as the graph reported it.' }),
  },
  { title: 'Tokens', description: 'Tokens, where the graph reports them; otherwise 0.' },
)

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
    limit_tokens: nullableInteger('After how many tokens in a month no more jobs are started; null: no limit.'),
    remaining_tokens: nullableInteger('How many tokens are left. Running jobs do not count yet. Null: no limit.'),
    own_limits: UsageLimits,
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
        limit_tokens: 500_000,
        remaining_tokens: 498_460,
        own_limits: { runs: null, tokens: 500_000 },
      },
    ],
  },
)
export type Usage = Static<typeof Usage>

const Used = Type.Object(
  {
    used: Type.Integer({ description: 'What the jobs that ended in the period used.' }),
    limit: nullableInteger('The limit at that time; null: none.'),
  },
  { title: 'UsedLimit', description: 'Usage and its limit.' },
)

/** The `data` of `usage.threshold`. */
export const ThresholdData = Type.Object(
  {
    sub: Type.String({ description: 'The user, or the id of the service account.' }),
    period: Type.String({ description: 'The calendar month, UTC.' }),
    threshold: Type.Unsafe<Threshold>({
      type: 'integer',
      enum: [...THRESHOLDS],
      description: 'The percentage that was reached.',
    }),
    runs: Used,
    tokens: Used,
  },
  { title: 'UsageEventData', description: 'The threshold, and the usage and limits at that time.' },
)

const querystring = Type.Object(
  {
    period: Type.Optional(
      Type.String({ pattern: '^\\d{4}-(0[1-9]|1[0-2])$', description: 'A month, UTC. Default: the current one.' }),
    ),
  },
  { additionalProperties: false },
)
const tags = ['Usage']
const params = pathParams('sub', 'The identity provider’s id of the user.')

export const getUsage = {
  operationId: 'getUsage',
  tags,
  summary: 'Your own usage',
  querystring,
  response: { 200: Usage },
}
export const getUserUsage = {
  operationId: 'getUserUsage',
  tags,
  summary: 'A user’s usage',
  params,
  querystring,
  response: { 200: Usage },
}
export const setUserLimits = {
  operationId: 'setUserLimits',
  tags,
  summary: 'Set the usage limits of a user',
  description:
    'Replaces both limits; they hold from the next start on. It works for a `sub` that never signed in, and for the id of ' +
    'a service account. If the usage of this month has reached 80 % or 100 % of a new limit, the event `usage.threshold` ' +
    'follows at once, unless that threshold was announced this month.',
  params,
  body: UsageLimits,
  response: { 200: UsageLimits },
}
