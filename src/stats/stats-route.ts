import { type Clock, toRfc3339 } from '../core/clock.ts'
import type { Database } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { scopes } from '../http/gate/access.ts'
import { CALLBACK_OUTCOMES, type CallbackOutcome } from '../jobs/callback-store.ts'
import { countDueChecks } from '../jobs/check-store.ts'
import type { JobStatus, Via } from '../jobs/job.ts'
import { findUnfinished } from '../jobs/uncommon-jobs.ts'
import { findBacklog } from '../push/outbox/delivery-list-store.ts'
import type { DeliveryState } from '../push/outbox/delivery-store.ts'
import { CALLBACK, END, PUSH, percentileOf, readStatsName, TRUTH } from './stats-names.ts'
import { readStats, type Stats, type StatsBucket } from './stats-schema.ts'
import { type BucketCount, findCounts, STATS_WINDOWS } from './stats-store.ts'

/** Statistics for the overview. A read costs the same at any size: it reads buckets, never jobs. */
export function statsRoute(app: App, { db, clock }: { db: Database; clock: Clock }): void {
  const config = { access: scopes('read:operations') }
  app.get('/v1/stats', { config, schema: readStats }, async (request): Promise<Stats> => {
    const { window = '1h' } = request.query
    const { spanMs, bucketMs } = STATS_WINDOWS[window]
    const nowMs = clock.now()
    const lastMs = Math.floor(nowMs / bucketMs) * bucketMs
    const fromMs = lastMs - spanMs + bucketMs
    const [counts, now] = await Promise.all([findCounts(db, { bucketMs, fromMs }), readNow(db, nowMs)])
    const found = Map.groupBy(counts, ({ bucket_at }) => bucket_at)
    const buckets = Array.from({ length: spanMs / bucketMs }, (_, n) => {
      const atMs = fromMs + n * bucketMs
      return toBucket(atMs, found.get(atMs) ?? [])
    })
    return { window, bucket_seconds: bucketMs / 1_000, buckets, now }
  })
}

async function readNow(db: Database, nowMs: number): Promise<Stats['now']> {
  const [unfinished, checks_due, pushes] = await Promise.all([
    findUnfinished(db, nowMs),
    countDueChecks(db, nowMs),
    findBacklog(db),
  ])
  const oldest = unfinished.flatMap(({ oldest_at }) => (oldest_at === null ? [] : [oldest_at]))
  return {
    unfinished: Object.fromEntries(unfinished.map(({ status, jobs }) => [status, jobs])),
    oldest_unfinished_at: oldest.length === 0 ? null : toRfc3339(Math.min(...oldest)),
    checks_due,
    pushes_waiting: pushes.depth,
  }
}

function toBucket(atMs: number, counts: readonly BucketCount[]): StatsBucket {
  const none = Object.fromEntries(Object.keys(CALLBACK_OUTCOMES).map((outcome) => [outcome, 0]))
  const bucket: StatsBucket = {
    at: toRfc3339(atMs),
    ends: [],
    callbacks: none as Record<CallbackOutcome, number>,
    callback_miss_ratio: null,
    time_to_truth_ms: null,
    pushes: {},
  }
  const truth = new Map<number, number>()
  for (const { name, count } of counts) {
    const [kind, first = '', second = ''] = readStatsName(name)
    if (kind === CALLBACK) bucket.callbacks[first as CallbackOutcome] = count
    if (kind === PUSH) bucket.pushes[first as DeliveryState] = count
    if (kind === TRUTH) truth.set(Number(first), count)
    if (kind === END) {
      bucket.ends.push({ status: first as JobStatus, settled_by: second === '' ? null : (second as Via), count })
    }
  }
  const noticed = bucket.ends.filter(({ settled_by }) => settled_by !== null)
  const sum = (ends: StatsBucket['ends']) => ends.reduce((total, { count }) => total + count, 0)
  if (noticed.length > 0) {
    bucket.callback_miss_ratio = sum(noticed.filter(({ settled_by }) => settled_by !== 'callback')) / sum(noticed)
  }
  const [p50, p99] = [percentileOf(truth, 0.5), percentileOf(truth, 0.99)]
  if (p50 !== null && p99 !== null) bucket.time_to_truth_ms = { p50, p99 }
  return bucket
}
