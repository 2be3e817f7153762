import { CallbackAuthenticity } from './auth/callback-authenticity.ts'
import { KeySet } from './auth/key-set.ts'
import { ServiceKeyAuthenticator } from './auth/service-key-authenticator.ts'
import { TokenVerifier } from './auth/token-verifier.ts'
import type { Config } from './config.ts'
import { type Loop, startLoop } from './core/async/loop.ts'
import type { Clock } from './core/clock.ts'
import { IdGenerator } from './core/ids.ts'
import type { Log } from './core/log.ts'
import type { Random } from './core/random.ts'
import type { Topic } from './db/announcements.ts'
import type { Database } from './db/database.ts'
import { meteredDatabase } from './db/metered-database.ts'
import { createEventServices, type EventServices } from './events/event-services.ts'
import { trimEvents } from './events/event-store.ts'
import { IdempotentCreation } from './http/idempotency.ts'
import { deleteExpiredAnswers } from './http/idempotency-store.ts'
import { Overload } from './http/server/overload.ts'
import { createJobServices, type JobServices } from './jobs/job-services.ts'
import { findUnfinished } from './jobs/job-store.ts'
import { BUILT_IN_JOB_TYPES, type JobTypes } from './jobs/job-types.ts'
import { type TrimContext, trimHistory } from './jobs/retention/trim-history.ts'
import { noteDeliveries } from './jobs/settlement/delivery-notes.ts'
import { createLimiter, type Limiter } from './limits/limiter.ts'
import { watchEventLoop } from './ops/metrics/event-loop.ts'
import { Metrics } from './ops/metrics/metrics.ts'
import { registerGauges } from './ops/metrics/service-gauges.ts'
import { type DependencyReport, Readiness } from './ops/readiness.ts'
import { ProjectEvents } from './projects/project-events.ts'
import type { ProjectNotifications } from './projects/project-notifications.ts'
import { findBacklog } from './push/outbox/delivery-store.ts'
import { Outbox } from './push/outbox/outbox.ts'
import type { PushSender } from './push/push-message.ts'
import { ServiceAccounts } from './service-accounts/service-accounts.ts'
import { UserSightings } from './users/user-sightings.ts'

const HOUSEKEEPING_EVERY_MS = 10 * 60_000
const TRIM_BATCH = 5_000

/** What comes from outside: the simulation and the tests bring their own. */
export interface Surroundings {
  clock: Clock
  random: Random
  log: Log
  fetch: typeof fetch
  db: Database
  /** Absent: the built-in `agent` alone. */
  jobTypes?: JobTypes
  projectNotifications?: ProjectNotifications
  /** How many jobs a process looks after at once; absent: 50. */
  jobSlots?: number
  /** Absent: the provider's, when there are credentials; otherwise deliveries wait. */
  pushSender?: PushSender
  /** A certificate to trust beside the usual ones, for a push provider on loopback. */
  pushCa?: string
}

export interface Services extends Surroundings, Omit<JobServices, 'close'>, Omit<EventServices, 'close'> {
  config: Config
  ids: IdGenerator
  keySet: KeySet
  verifier: TokenVerifier
  serviceKeys: ServiceKeyAuthenticator
  callbackAuthenticity: CallbackAuthenticity
  limiter: Limiter
  overload: Overload
  creation: IdempotentCreation
  serviceAccounts: ServiceAccounts
  sightings: UserSightings
  projectEvents: ProjectEvents
  outbox: Outbox
  readiness: Readiness
  metrics: Metrics
  /** Ends background work, newest first; the database is its opener's to close. */
  close(): Promise<void>
}

/** Wires everything, once; nothing below this file looks for its own dependencies. */
export async function createServices(config: Config, surroundings: Surroundings): Promise<Services> {
  const { clock, random, log } = surroundings
  const metrics = new Metrics()
  const db = meteredDatabase(surroundings.db, metrics)
  const ids = new IdGenerator(clock, random)
  const keySet = new KeySet({
    url: `${config.issuerUrl.replace(/\/$/, '')}/.well-known/jwks.json`,
    fetch: surroundings.fetch,
    clock,
    log,
  })
  const verifier = new TokenVerifier({
    issuer: config.issuerUrl,
    keySet,
    clock,
    clockToleranceSeconds: config.clockToleranceSeconds,
    ...(config.clientIds.length > 0 ? { clientIds: config.clientIds } : {}),
    ...(config.tokenUse === null ? {} : { tokenUse: config.tokenUse }),
  })
  const serviceKeys = new ServiceKeyAuthenticator({ db, clock, log })
  const redis = config.redisUrl === null ? undefined : { url: config.redisUrl }
  const limiter = await createLimiter({ limits: config.limits, clock, random, log, redis })
  const sightings = new UserSightings({ db, clock, log })
  const housekeeping = keepHouse({ db, clock, log, meter: metrics }, config)
  const callbackAuthenticity = new CallbackAuthenticity(config.webhookSecrets, clock)
  const jobServices = createJobServices({
    db,
    clock,
    random,
    ids,
    log,
    types: surroundings.jobTypes ?? BUILT_IN_JOB_TYPES,
    fetch: surroundings.fetch,
    runtime: config.runtime,
    publicUrl: config.publicUrl,
    usageLimitRuns: config.usageLimitRuns,
    callbackAuthenticity,
    meter: metrics,
    slots: surroundings.jobSlots,
  })
  const outbox = new Outbox({
    db,
    clock,
    random,
    log,
    meter: metrics,
    sender: surroundings.pushSender ?? (await createSender(config, surroundings)),
    onMarked: (tx, marks) => noteDeliveries(tx, { marks, ids }),
  })
  const onTopic = (topic: Topic): void => {
    if (topic === 'deliveries') outbox.wake()
  }
  const eventServices = await createEventServices({
    db,
    clock,
    random,
    log,
    meter: metrics,
    redisUrl: config.redisUrl,
    onTopic,
  })
  const eventLoop = watchEventLoop()
  registerGauges(metrics, {
    ...jobServices,
    ...eventServices,
    clock,
    outbox,
    limiter,
    keySet,
    eventLoop,
    unfinishedJobs: () => findUnfinished(db),
    outboxBacklog: () => findBacklog(db),
  })

  return {
    ...surroundings,
    ...jobServices,
    ...eventServices,
    db,
    config,
    metrics,
    ids,
    keySet,
    verifier,
    serviceKeys,
    callbackAuthenticity,
    limiter,
    overload: new Overload({ clock }),
    creation: new IdempotentCreation({ db, clock }),
    serviceAccounts: new ServiceAccounts({ db, clock, random, ids, authenticator: serviceKeys }),
    sightings,
    projectEvents: new ProjectEvents({ clock, ids, notifications: surroundings.projectNotifications ?? {} }),
    outbox,
    readiness: new Readiness({
      database: () => db.ping().then((): DependencyReport => ({ state: 'ok', detail: db.engine })),
      identity_provider: () => identityReport(keySet),
      rate_limits: () => limiterReport(limiter),
      runtime: () => runtimeReport(config, jobServices),
      callbacks: () => callbacksReport(config, callbackAuthenticity),
      push: () => pushReport(outbox),
    }),
    close: async () => {
      await eventServices.close()
      await jobServices.close()
      await outbox.close()
      await housekeeping.stop()
      await sightings.close()
      limiter.close()
      await serviceKeys.close()
      await keySet.close()
      eventLoop.stop()
    },
  }
}

async function createSender(config: Config, { clock, log, pushCa }: Surroundings): Promise<PushSender | null> {
  if (config.push === null) return null
  const { createFcmSender } = await import('./push/fcm/fcm-sender.ts')
  return createFcmSender({
    credentials: config.push,
    apiUrl: config.pushApiUrl,
    tokenUrl: config.pushTokenUrl,
    clock,
    log,
    ...(pushCa === undefined ? {} : { ca: pushCa }),
  })
}

function keepHouse(context: TrimContext, { eventsRetentionHours, historyRetentionDays }: Config): Loop {
  const { db, clock, log } = context
  const untilNoMore = async (signal: AbortSignal, trim: () => Promise<boolean>) => {
    // On SQLite a batch waits for nothing, and requests want their turn before the next one.
    while (!signal.aborted && (await trim())) await new Promise(setImmediate)
  }
  return startLoop({
    clock,
    everyMs: HOUSEKEEPING_EVERY_MS,
    run: async (signal) => {
      const nowMs = clock.now()
      await untilNoMore(signal, () => deleteExpiredAnswers(db, { nowMs, limit: TRIM_BATCH }))
      const beforeMs = nowMs - eventsRetentionHours * 3_600_000
      await untilNoMore(signal, () => trimEvents(db, { beforeMs, limit: TRIM_BATCH }))
      if (historyRetentionDays !== null) await trimHistory(context, { retentionDays: historyRetentionDays, signal })
    },
    onError: (error) => log.warn({ err: error }, 'housekeeping.failed'),
  })
}

/** What these say is public: which address failed to answer, and in what words, is for the log. */
async function identityReport(keySet: KeySet): Promise<DependencyReport> {
  if (!keySet.isReady()) await keySet.warmUp()
  const { keys, lastError } = keySet.state()
  if (!keySet.isReady()) return { state: 'down', detail: 'no keys fetched yet' }
  return lastError === null
    ? { state: 'ok', detail: keys === 1 ? '1 key' : `${keys} keys` }
    : { state: 'degraded', detail: 'it cannot be asked: serving the keys fetched before' }
}

function limiterReport(limiter: Limiter): DependencyReport {
  const { store, degraded } = limiter.state()
  return degraded
    ? { state: 'degraded', detail: 'redis is down, this node counts alone' }
    : { state: 'ok', detail: store }
}

/** Never `down`: without the runtime everything but new results is served, and those land later. */
function runtimeReport({ runtime }: Config, { runtimeBreaker }: JobServices): DependencyReport {
  if (runtime === null) return { state: 'degraded', detail: 'not configured: jobs cannot be started' }
  return runtimeBreaker.state === 'closed'
    ? { state: 'ok', detail: null }
    : { state: 'degraded', detail: 'it keeps failing: results land later' }
}

function pushReport({ state, trouble }: Outbox): DependencyReport {
  if (state === 'halted') return { state: 'degraded', detail: 'halted: deliveries wait, and the log says why' }
  return trouble === null ? { state: 'ok', detail: null } : { state: 'degraded', detail: trouble }
}

function callbacksReport({ publicUrl, runtime }: Config, authenticity: CallbackAuthenticity): DependencyReport {
  if (authenticity.open) return { state: 'degraded', detail: 'no WEBHOOK_SECRET: anyone may post callbacks' }
  if (publicUrl === null && runtime !== null) {
    return { state: 'degraded', detail: 'no PUBLIC_URL: runs end without a callback, and are found by asking' }
  }
  return { state: 'ok', detail: null }
}
