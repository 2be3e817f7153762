import { readdir } from 'node:fs/promises'
import type { KeySet } from '../../auth/issuer/key-set.ts'
import type { Breaker } from '../../core/async/breaker.ts'
import type { Clock } from '../../core/clock.ts'
import type { EventStreams } from '../../events/event-streams.ts'
import type { WakeUps } from '../../events/wake-ups.ts'
import type { Limiter } from '../../limits/limiter.ts'
import { type Outbox, PUSH_STATES } from '../../push/outbox/outbox.ts'
import type { DiskRoom } from '../disk-usage.ts'
import { cacheReading } from './cached-reading.ts'
import type { EventLoopWatch } from './event-loop.ts'
import type { Metrics } from './metrics.ts'

/** The backlog is queried at most this often, independent of the number of scrapers. */
const BACKLOG_MAX_AGE_MS = 5_000
/** Well below the ten seconds after which Prometheus gives up. */
const BACKLOG_TIMEOUT_MS = 2_000
/** PostgreSQL asks the file system for the size of every file. */
const SIZES_MAX_AGE_MS = 60_000

interface GaugeSources {
  clock: Clock & { readonly offsetMs: number }
  node: { readonly lastWriteAgeMs: number }
  unfinishedJobs: () => Promise<readonly { status: string; jobs: number; oldest_at: number | null }[]>
  outboxBacklog: () => Promise<{ depth: number; due_at: number | null; parked: number }>
  webhookBacklog: () => Promise<{ depth: number; due_at: number | null }>
  webhookEndpoints: () => Promise<Readonly<Record<string, number>>>
  databaseSizes: () => Promise<{ data: number; wal?: number }>
  diskRoom: () => Promise<DiskRoom | null>
  intake: { readonly waiting: number }
  runtimeBreaker: Pick<Breaker, 'state'>
  outbox: Pick<Outbox, 'state' | 'inFlight'>
  webhooks: { readonly inFlight: number }
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
  registerDisk(metrics, sources)
  const { intake, runtimeBreaker, outbox, webhooks, streams, live, limiter, wakeUps, keySet } = sources
  metrics.gauge('callbacks_waiting', () => intake.waiting)
  metrics.gauge('runtime_breaker_state', () => oneOf(['closed', 'open', 'probing'], runtimeBreaker.state))
  metrics.gauge('outbox_in_flight', () => byChannel({ push: outbox.inFlight, webhook: webhooks.inFlight }))
  metrics.gauge('push_state', () => oneOf(PUSH_STATES, outbox.state))
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

function registerBacklog(metrics: Metrics, sources: GaugeSources): void {
  const { clock, unfinishedJobs, outboxBacklog, webhookBacklog, webhookEndpoints } = sources
  const backlog = cacheReading({
    clock,
    maxAgeMs: BACKLOG_MAX_AGE_MS,
    timeoutMs: BACKLOG_TIMEOUT_MS,
    read: () => Promise.all([unfinishedJobs(), outboxBacklog(), webhookBacklog(), webhookEndpoints()]),
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
  metrics.gauge('outbox_depth', async () => {
    const [, push, webhook] = await backlog()
    return byChannel({ push: push.depth, webhook: webhook.depth })
  })
  metrics.gauge('outbox_parked', async () => (await backlog())[1].parked)
  metrics.gauge('webhook_endpoints', async () => {
    const [, , , endpoints] = await backlog()
    return Object.entries(endpoints).map(([state, count]) => [{ state }, count] as const)
  })
  metrics.gauge('outbox_oldest_due_age_seconds', async () => {
    const [, push, webhook] = await backlog()
    return byChannel({ push: ageSeconds(push.due_at), webhook: ageSeconds(webhook.due_at) })
  })
}

function byChannel(values: Readonly<Record<'push' | 'webhook', number>>) {
  return Object.entries(values).map(([channel, value]) => [{ channel }, value] as const)
}

function registerDisk(metrics: Metrics, { clock, databaseSizes, diskRoom }: GaugeSources): void {
  const sizes = cacheReading({
    clock,
    maxAgeMs: SIZES_MAX_AGE_MS,
    timeoutMs: BACKLOG_TIMEOUT_MS,
    read: databaseSizes,
  })
  metrics.gauge('database_size_bytes', async () =>
    Object.entries(await sizes()).map(([part, bytes]) => [{ part }, bytes] as const),
  )
  metrics.gauge('disk_free_bytes', async () => (await diskRoom())?.freeBytes ?? null)
  metrics.gauge('disk_size_bytes', async () => (await diskRoom())?.sizeBytes ?? null)
}

function registerProcess(metrics: Metrics, eventLoop: EventLoopWatch): void {
  metrics.gauge('nodejs_eventloop_lag_seconds', () =>
    Object.entries(eventLoop.lagSeconds()).map(([quantile, seconds]) => [{ quantile }, seconds] as const),
  )
  metrics.gauge('event_loop_busy_seconds_total', () => eventLoop.busySeconds())
  metrics.gauge('nodejs_heap_size_used_bytes', () => process.memoryUsage().heapUsed)
  metrics.gauge('process_resident_memory_bytes', () => process.memoryUsage.rss())
  metrics.gauge('process_cpu_seconds_total', () => {
    const { user, system } = process.cpuUsage()
    return (user + system) / 1e6
  })
  metrics.gauge('process_start_time_seconds', () => performance.timeOrigin / 1_000)
  metrics.gauge('process_open_fds', () =>
    readdir('/proc/self/fd').then(
      // Without the one that reads the folder.
      (files) => files.length - 1,
      () => null,
    ),
  )
}

/** One series for each possible state: 1 for the current one, 0 for the others. */
function oneOf<State extends string>(states: readonly State[], current: State) {
  return states.map((state) => [{ state }, state === current ? 1 : 0] as const)
}
