import type { KeySet } from '../../auth/issuer/key-set.ts'
import type { Breaker } from '../../core/async/breaker.ts'
import type { Clock } from '../../core/clock.ts'
import type { EventStreams } from '../../events/event-streams.ts'
import type { WakeUps } from '../../events/wake-ups.ts'
import type { Limiter } from '../../limits/limiter.ts'
import type { Outbox } from '../../push/outbox/outbox.ts'
import { cacheReading } from './cached-reading.ts'
import type { EventLoopWatch } from './event-loop.ts'
import type { Metrics } from './metrics.ts'

/** The backlog is queried at most this often, independent of the number of scrapers. */
const BACKLOG_MAX_AGE_MS = 5_000
/** Well below the ten seconds after which Prometheus gives up. */
const BACKLOG_TIMEOUT_MS = 2_000

interface GaugeSources {
  clock: Clock & { readonly offsetMs: number }
  node: { readonly lastWriteAgeMs: number }
  unfinishedJobs: () => Promise<readonly { status: string; jobs: number; oldest_at: number | null }[]>
  outboxBacklog: () => Promise<{ depth: number; due_at: number | null; parked: number }>
  intake: { readonly waiting: number }
  runtimeBreaker: Pick<Breaker, 'state'>
  outbox: Pick<Outbox, 'state' | 'inFlight'>
  streams: Pick<EventStreams, 'count'>
  live: { readonly viewers: number; readonly upstreams: number; readonly bytes: number }
  limiter: Pick<Limiter, 'state'>
  wakeUps: Pick<WakeUps, 'state'> | null
  keySet: Pick<KeySet, 'state'>
  eventLoop: EventLoopWatch
}

/** Sets how each gauge is read: from memory, except for the backlog, which is in the database. */
export function registerGauges(metrics: Metrics, sources: GaugeSources): void {
  registerBacklog(metrics, sources)
  const { intake, runtimeBreaker, outbox, streams, live, limiter, wakeUps, keySet } = sources
  metrics.gauge('callbacks_waiting', () => intake.waiting)
  metrics.gauge('runtime_breaker_state', () => oneOf(['closed', 'open', 'probing'], runtimeBreaker.state))
  metrics.gauge('outbox_in_flight', () => outbox.inFlight)
  metrics.gauge('push_state', () => oneOf(['ok', 'no_credentials', 'halted', 'dropping', 'holding'], outbox.state))
  metrics.gauge('streams_open', () => streams.count)
  metrics.gauge('live_viewers', () => live.viewers)
  metrics.gauge('live_upstreams', () => live.upstreams)
  metrics.gauge('live_memory_bytes', () => live.bytes)
  metrics.gauge('node_last_write_age_seconds', () => sources.node.lastWriteAgeMs / 1_000)
  metrics.gauge('clock_offset_seconds', () => sources.clock.offsetMs / 1_000)
  metrics.gauge('redis_up', () => {
    const { store, degraded } = limiter.state()
    const limits = store === 'redis' ? [[{ use: 'limits' }, degraded ? 0 : 1] as const] : []
    const wakings = wakeUps === null ? [] : [[{ use: 'wake_ups' }, wakeUps.state().connected ? 1 : 0] as const]
    return [...limits, ...wakings]
  })
  metrics.gauge('identity_keys', () => keySet.state().keys)
  metrics.gauge('identity_keys_stale', () => (keySet.state().lastError === null ? 0 : 1))
  registerProcess(metrics, sources.eventLoop)
}

function registerBacklog(metrics: Metrics, { clock, unfinishedJobs, outboxBacklog }: GaugeSources): void {
  const backlog = cacheReading({
    clock,
    maxAgeMs: BACKLOG_MAX_AGE_MS,
    timeoutMs: BACKLOG_TIMEOUT_MS,
    read: () => Promise.all([unfinishedJobs(), outboxBacklog()]),
  })
  const ageSeconds = (sinceMs: number | null) => (sinceMs === null ? 0 : Math.max(0, (clock.now() - sinceMs) / 1_000))
  metrics.gauge('database_up', () =>
    backlog().then(
      () => 1,
      () => 0,
    ),
  )
  metrics.gauge('jobs_unfinished', async () => {
    const [unfinished] = await backlog()
    return unfinished.map(({ status, jobs }) => [{ status }, jobs] as const)
  })
  metrics.gauge('jobs_oldest_unfinished_age_seconds', async () => {
    const [unfinished] = await backlog()
    return unfinished.map(({ status, oldest_at }) => [{ status }, ageSeconds(oldest_at)] as const)
  })
  metrics.gauge('outbox_depth', async () => (await backlog())[1].depth)
  metrics.gauge('outbox_parked', async () => (await backlog())[1].parked)
  metrics.gauge('outbox_oldest_due_age_seconds', async () => ageSeconds((await backlog())[1].due_at))
}

function registerProcess(metrics: Metrics, eventLoop: EventLoopWatch): void {
  metrics.gauge('event_loop_lag_seconds', () =>
    Object.entries(eventLoop.lagSeconds()).map(([quantile, seconds]) => [{ quantile }, seconds] as const),
  )
  metrics.gauge('event_loop_busy_seconds_total', () => eventLoop.busySeconds())
  metrics.gauge('process_resident_memory_bytes', () => process.memoryUsage.rss())
  metrics.gauge('process_heap_used_bytes', () => process.memoryUsage().heapUsed)
  metrics.gauge('process_cpu_seconds_total', () => {
    const { user, system } = process.cpuUsage()
    return [[{ mode: 'user' }, user / 1e6] as const, [{ mode: 'system' }, system / 1e6] as const]
  })
  metrics.gauge('process_uptime_seconds', () => process.uptime())
}

/** One series for each possible state: 1 for the current one, 0 for the others. */
function oneOf<State extends string>(states: readonly State[], current: State) {
  return states.map((state) => [{ state }, state === current ? 1 : 0] as const)
}
