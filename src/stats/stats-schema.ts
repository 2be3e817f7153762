import { type Static, Type } from 'typebox'
import { nullableObject, nullableTimeField, timeField } from '../http/schemas.ts'
import { CALLBACK_OUTCOMES, type CallbackOutcome } from '../jobs/callback-store.ts'
import { type JobStatus, TERMINAL_STATUSES, UNFINISHED_STATUSES, type Via } from '../jobs/job.ts'
import { DELIVERY_STATES, type DeliveryState } from '../push/outbox/delivery-store.ts'
import { STATS_WINDOWS, type StatsWindow } from './stats-store.ts'

const window = Type.Unsafe<StatsWindow>({
  type: 'string',
  enum: Object.keys(STATS_WINDOWS),
  description: '`1h` in buckets of a minute, `24h` of 15 minutes, `7d` of two hours.',
})

function numbers<Name extends string>(names: readonly Name[], what: string, description: string) {
  return Type.Unsafe<Partial<Record<Name, number>>>({
    type: 'object',
    properties: Object.fromEntries(
      names.map((name) => [name, { type: 'integer', description: `${what} \`${name}\`.` }]),
    ),
    description,
  })
}

const bucket = Type.Object(
  {
    at: timeField('When the bucket begins.'),
    ends: Type.Array(
      Type.Object(
        {
          status: Type.Unsafe<JobStatus>({ type: 'string', enum: TERMINAL_STATUSES, description: 'The final status.' }),
          settled_by: Type.Unsafe<Via | null>({ type: ['string', 'null'], description: nullableVia() }),
          count: Type.Integer({ description: 'How many jobs ended with this status.' }),
        },
        { title: 'StatsEnds' },
      ),
      { description: 'The jobs that ended in the bucket.' },
    ),
    callbacks: Type.Unsafe<Record<CallbackOutcome, number>>(
      numbers(Object.keys(CALLBACK_OUTCOMES) as CallbackOutcome[], 'Callbacks with the outcome', 'Callbacks received.'),
    ),
    callback_miss_ratio: Type.Unsafe<number | null>({
      type: ['number', 'null'],
      description:
        'The share of ended runs whose end a read or the sweep noticed before a callback; null without ends.',
    }),
    time_to_truth_ms: nullableObject(
      Type.Object(
        {
          p50: Type.Integer({ description: 'Half of the jobs took at most this long.' }),
          p99: Type.Integer({ description: '99 of 100 jobs took at most this long.' }),
        },
        { title: 'TimeToTruth' },
      ),
      'From the first sign of a run’s end to the stored result, within a tenth.',
    ),
    pushes: numbers<DeliveryState>(DELIVERY_STATES, 'Deliveries that became', 'Deliveries by the state they reached.'),
  },
  { title: 'StatsBucket' },
)

function nullableVia(): string {
  return 'What revealed first that the run had ended; null when this service ended the job.'
}

export const Stats = Type.Object(
  {
    window,
    bucket_seconds: Type.Integer({ description: 'The length of a bucket.' }),
    buckets: Type.Array(bucket, { description: 'Oldest first, empty ones included; the last one has just begun.' }),
    now: Type.Object(
      {
        unfinished: numbers(UNFINISHED_STATUSES, 'Jobs in status', 'Unfinished jobs; counting stops at 10,001.'),
        oldest_unfinished_at: nullableTimeField('When the oldest unfinished job was created.'),
        checks_due: Type.Integer({ description: 'Jobs that the sweep should check now; at most 10,001.' }),
        pushes_waiting: Type.Integer({ description: 'Deliveries in the state `pending`; at most 10,001.' }),
      },
      { title: 'StatsNow', description: 'The backlog at this moment.' },
    ),
  },
  {
    title: 'Stats',
    examples: [
      {
        window: '1h',
        bucket_seconds: 60,
        buckets: [
          {
            at: '2026-01-31T12:00:00.000Z',
            ends: [{ status: 'completed', settled_by: 'callback', count: 12 }],
            callbacks: { applied: 12, duplicate: 0, stale: 0, adopted: 0, deferred: 0 },
            callback_miss_ratio: 0,
            time_to_truth_ms: { p50: 4, p99: 11 },
            pushes: { sent: 12 },
          },
        ],
        now: { unfinished: { processing: 1 }, oldest_unfinished_at: null, checks_due: 0, pushes_waiting: 0 },
      },
    ],
  },
)
export type Stats = Static<typeof Stats>
export type StatsBucket = Stats['buckets'][number]

export const readStats = {
  operationId: 'getStats',
  tags: ['Operations'],
  summary: 'Get statistics of jobs, callbacks and pushes',
  description: 'Counts are at most five seconds behind.',
  querystring: Type.Object(
    { window: Type.Optional({ ...window, default: '1h' } as typeof window) },
    { additionalProperties: false },
  ),
  response: { 200: Stats },
}
