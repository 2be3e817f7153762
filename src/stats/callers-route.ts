import { Type } from 'typebox'
import { type Clock, toRfc3339 } from '../core/clock.ts'
import type { Database } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { scopes } from '../http/gate/access.ts'
import { timeField } from '../http/schemas.ts'
import { countJobsByOwner } from '../jobs/lists/failure-store.ts'
import type { CallerCounts } from '../limits/caller-counts.ts'
import type { TierName } from '../limits/tiers.ts'

const HOUR_MS = 3_600_000
const MAX_CALLERS = 20

const TopCaller = Type.Object(
  {
    caller: Type.String({ description: 'A `sub`, the id of a service account, or an address without a credential.' }),
    tier: Type.Unsafe<TierName | null>({
      type: ['string', 'null'],
      enum: ['unauthenticated', 'authenticated', 'service', null],
      description: 'The tier that was charged; null for an owner of jobs who sent nothing to this node.',
    }),
    requests: Type.Integer({ description: 'Requests to this node.' }),
    refused: Type.Integer({ description: 'Those that were over the rate limit (429).' }),
    jobs: Type.Integer({ description: 'Jobs of this owner that were created in the hour, on all nodes.' }),
  },
  { title: 'TopCaller' },
)

const oneOfCounts = Type.Unsafe<'requests' | 'jobs'>({ type: 'string', enum: ['requests', 'jobs'] })

const topCallers = {
  operationId: 'listTopCallers',
  tags: ['Operations'],
  summary: 'List the callers with the most requests and jobs in the last hour',
  description:
    'Requests are those of the node that answers, since its start. At most 40 callers. Jobs are counted among the 5,000 ' +
    'newest. The node counts 2,000 callers in five minutes, and forgets those with the fewest requests if there are more.',
  response: {
    200: Type.Object(
      {
        since: timeField('The beginning of the hour.'),
        data: Type.Array(TopCaller, { description: 'Most requests first.' }),
        at_least: Type.Array(oneOfCounts, {
          description: 'The counts that may be higher than they say. `requests` is also for `refused`.',
        }),
      },
      {
        title: 'TopCallers',
        examples: [
          {
            since: '2026-01-31T12:00:00.000Z',
            data: [{ caller: 'svc_01kq3v7m2x8n4r6t0w9y5z1abc', tier: 'service', requests: 940, refused: 3, jobs: 120 }],
            at_least: ['jobs'],
          },
        ],
      },
    ),
  },
}

/** Who sends the most: for an operator who looks for the cause of a flood. */
export function callersRoute(
  app: App,
  { db, clock, callerCounts }: { db: Database; clock: Clock; callerCounts: CallerCounts },
): void {
  app.get('/v1/callers', { config: { access: scopes('read:operations') }, schema: topCallers }, async () => {
    const sinceMs = clock.now() - HOUR_MS
    const { owners, isCut: areJobsCut } = await countJobsByOwner(db, { sinceMs })
    const jobsOf = new Map(owners.map(({ owner, jobs }) => [owner, jobs]))
    const { callers: senders, isCut: areRequestsCut } = callerCounts.top(MAX_CALLERS)
    const sent = senders.map(({ tier, key, requests, refused }) => {
      return { caller: key, tier, requests, refused, jobs: jobsOf.get(key) ?? 0 }
    })
    const silent = owners
      .slice(0, MAX_CALLERS)
      .filter(({ owner }) => !senders.some(({ key }) => key === owner))
      .map(({ owner, jobs }) => ({ caller: owner, tier: null, requests: 0, refused: 0, jobs }))
    const at_least = [...(areRequestsCut ? ['requests' as const] : []), ...(areJobsCut ? ['jobs' as const] : [])]
    return { since: toRfc3339(sinceMs), data: [...sent, ...silent], at_least }
  })
}
