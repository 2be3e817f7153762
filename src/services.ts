import { trimAudit } from './audit/audit-store.ts'
import { CallbackAuthenticity } from './auth/callback-authenticity.ts'
import type { CommandLineKey } from './auth/command-line-key.ts'
import { connectIssuer } from './auth/issuer/connect-issuer.ts'
import { parseScopesMap } from './auth/scopes.ts'
import { ServiceKeyAuthenticator } from './auth/service-key-authenticator.ts'
import { TokenVerifier } from './auth/token-verifier.ts'
import { type Config, requiredAudiences } from './config.ts'
import type { Clock } from './core/clock.ts'
import { IdGenerator } from './core/ids.ts'
import type { Log } from './core/log.ts'
import type { Random } from './core/random.ts'
import { noTracer, type Tracer } from './core/tracing.ts'
import type { Topic } from './db/announcements.ts'
import type { Database, Engine } from './db/database.ts'
import { meteredDatabase } from './db/metered-database.ts'
import { Node } from './db/nodes/node.ts'
import { trimNodes } from './db/nodes/node-store.ts'
import type { EgressPoster } from './egress/egress-port.ts'
import { createEventServices } from './events/event-services.ts'
import { trimEvents } from './events/event-store.ts'
import { Admission } from './http/admission/admission.ts'
import { IdempotentCreation } from './http/idempotency.ts'
import { deleteExpiredAnswers } from './http/idempotency-store.ts'
import { countMissedCallbacks } from './jobs/callbacks/missed-callbacks.ts'
import { trimRefused } from './jobs/callbacks/refused-callback-store.ts'
import { RefusedCallbacks } from './jobs/callbacks/refused-callbacks.ts'
import { noteIdentity } from './jobs/identity-store.ts'
import { createJobServices } from './jobs/job-services.ts'
import { BUILT_IN_JOB_TYPES, type JobTypes } from './jobs/job-types.ts'
import { LiveStreams } from './jobs/live/live-streams.ts'
import { trimJobs } from './jobs/retention/delete-jobs.ts'
import { TOMBSTONE_RETENTION_MS, trimTombstones } from './jobs/retention/delete-store.ts'
import { type TrimContext, trimHistory } from './jobs/retention/trim-history.ts'
import { noteDeliveries } from './jobs/settlement/delivery-notes.ts'
import { findUnfinished } from './jobs/uncommon-jobs.ts'
import { CallerCounts } from './limits/caller-counts.ts'
import { createLimiter } from './limits/limiter.ts'
import { bulkActions } from './operations/bulk-actions.ts'
import { OperationRunner } from './operations/operation-runner.ts'
import { trimOperations } from './operations/operation-store.ts'
import { recoverAction } from './operations/recover-webhooks.ts'
import { readDatabaseSizes, readDiskRoom } from './ops/disk-usage.ts'
import { type HousekeepingTask, startHousekeeping, trimInBatches } from './ops/housekeeping.ts'
import { cacheReading } from './ops/metrics/cached-reading.ts'
import { watchEventLoop } from './ops/metrics/event-loop.ts'
import { Metrics } from './ops/metrics/metrics.ts'
import { registerGauges } from './ops/metrics/service-gauges.ts'
import type { ConsoleSettings } from './ops/pages/console-pages.ts'
import { Readiness } from './ops/readiness.ts'
import { onDeleted } from './people/deleted-records.ts'
import { eraseAction } from './people/erase-user.ts'
import { ProjectEvents } from './projects/project-events.ts'
import type { ProjectNotifications } from './projects/project-notifications.ts'
import { projectExists } from './projects/project-store.ts'
import { findBacklog } from './push/outbox/delivery-list-store.ts'
import { Outbox } from './push/outbox/outbox.ts'
import { connectProviders } from './push/provider-registry.ts'
import type { PushSender } from './push/push-provider.ts'
import { serviceKeyStore } from './service-accounts/service-account-store.ts'
import { ServiceAccounts } from './service-accounts/service-accounts.ts'
import { startStatsRollup } from './stats/stats-rollup.ts'
import { trimStats } from './stats/stats-store.ts'
import { UserActivity } from './users/user-activity.ts'
import { findRefusal } from './users/user-state-store.ts'
import { UserStates } from './users/user-states.ts'
import { hasPushTurnedOff } from './users/user-store.ts'
import { findWebhookBacklog } from './webhooks/delivery-store.ts'
import { countEndpointStates, deleteOldSecrets } from './webhooks/endpoint-store.ts'
import { trimWebhooks } from './webhooks/trim-webhooks.ts'
import { Webhooks } from './webhooks/webhooks.ts'

/** The rows that one statement deletes. On SQLite nothing else runs meanwhile, and 5,000 small rows take 40 ms. */
const TRIM_BATCH: Record<Engine, number> = { sqlite: 500, postgres: 5_000 }
const OPERATION_RETENTION_MS = 90 * 86_400_000

const REFUSED_RETENTION_MS = 7 * 86_400_000

const STOPPED_NODE_RETENTION_MS = 3_600_000

/** Everything that touches the outside world. The simulation and the tests pass their own. */
export interface Dependencies {
  /** The clock of this machine. The services use the time that all nodes share. */
  clock: Clock
  random: Random
  log: Log
  fetch: typeof fetch
  db: Database
  /** The id of this process, as its log lines and traces have it; absent: a new one. */
  nodeId?: string
  /** Absent: nothing is traced. */
  tracer?: Tracer
  /** Absent: only the built-in type `agent`. */
  jobTypes?: JobTypes
  projectNotifications?: ProjectNotifications
  /** How many jobs a process handles at the same time; absent: 100. */
  jobSlots?: number
  /** Absent: one for each push provider that has credentials. */
  pushSenders?: readonly PushSender[]
  /** An additional certificate to trust, for a push provider on loopback. */
  pushCa?: string
  /** Absent: webhooks are sent by HTTP. */
  webhookPoster?: EgressPoster
  /** An additional certificate to trust, for receivers of webhooks on loopback. */
  webhookCa?: string
  /** The key of this start, for commands on this machine; absent: there is none. */
  commandLineKey?: CommandLineKey
  /** Refuses requests whose `Host` is not this machine. */
  loopbackOnly?: boolean
  /** What the console shows in `dev` only. */
  consoleDev?: ConsoleSettings['dev']
}

export type Services = Awaited<ReturnType<typeof createServices>>

/** Creates every part of the service once, and passes each the parts it needs. */
export async function createServices(config: Config, dependencies: Dependencies) {
  const { random, log, pushCa, tracer = noTracer } = dependencies
  const redis = config.redisUrl === null ? null : { url: config.redisUrl, prefix: config.redisPrefix }
  const metrics = new Metrics()
  const db = meteredDatabase(dependencies.db, metrics, () => dependencies.clock.elapsed())
  const node = await Node.start({ db, clock: dependencies.clock, random, log, id: dependencies.nodeId })
  const clock: Clock = node.clock
  const ids = new IdGenerator(clock, random)
  const { issuerUrl, tokenAlgorithms: algorithms } = config
  const { discovery, keySet } = connectIssuer({ issuerUrl, algorithms, fetch: dependencies.fetch, clock, log })
  const verifier = new TokenVerifier({
    issuer: issuerUrl,
    keySet,
    algorithms,
    clock,
    clockToleranceSeconds: config.clockToleranceSeconds,
    audiences: requiredAudiences(config) ?? undefined,
    scopesClaim: config.scopesClaim,
    scopesMap: parseScopesMap(config.scopesMap),
    ...(config.clientIds.length > 0 ? { clientIds: config.clientIds } : {}),
    ...(config.tokenUse === null ? {} : { tokenUse: config.tokenUse }),
  })
  const serviceKeys = new ServiceKeyAuthenticator({ store: serviceKeyStore(db), clock, log })
  const limiter = await createLimiter({ limits: config.limits, clock, random, log, redis: redis ?? undefined })
  const userActivity = new UserActivity({ db, clock, log })
  const forgetUser = (sub: string): void => {
    userActivity.forget(sub)
    verifier.forget(sub)
  }
  const userStates = new UserStates({ db, clock, log, onErased: forgetUser })
  await userStates.load()
  const housekeeping = startHousekeeping(housekeepingTasks(config, { db, clock, log, meter: metrics }), { clock, log })
  const callbackAuthenticity = new CallbackAuthenticity(config.webhookSecrets, clock)
  const outbox = new Outbox({
    db,
    node,
    clock,
    random,
    log,
    meter: metrics,
    tracer,
    senders:
      dependencies.pushSenders ?? (await connectProviders(config, { clock, log, ...(pushCa && { ca: pushCa }) })),
    onMarked: (tx, marks) => noteDeliveries(tx, { marks, ids }),
  })
  const { webhookPoster: poster, webhookCa: ca } = dependencies
  const egress = { allow: config.egressAllow, allowHttp: !config.production, ca }
  const webhooks = new Webhooks({ db, node, clock, random, log, meter: metrics, tracer, egress, poster })
  const onTopic = (topic: Topic): void => {
    if (topic === 'deliveries') outbox.wake()
    webhooks.onTopic(topic)
  }
  const eventServices = await createEventServices({
    db,
    clock,
    random,
    log,
    meter: metrics,
    redis,
    onTopic,
    blockedUsers: userStates,
  })
  if (config.runtime !== null) await noteIdentity(db, config.runtimeIdentity, clock.now())
  const jobServices = createJobServices({
    db,
    clock,
    random,
    ids,
    log,
    types: dependencies.jobTypes ?? BUILT_IN_JOB_TYPES,
    pushOptOut: hasPushTurnedOff,
    findRefusal,
    countDeleted: onDeleted,
    fetch: dependencies.fetch,
    runtime: config.runtime,
    runtimeIdentity: config.runtimeIdentity,
    publicUrl: config.publicUrl,
    usageLimitRuns: config.usageLimitRuns,
    maxUnfinishedJobs: config.maxUnfinishedJobs,
    callbackAuthenticity,
    meter: metrics,
    tracer,
    node,
    slots: dependencies.jobSlots,
    interests: () => {
      const { jobIds, subjects } = eventServices.streams.interests
      return { jobIds: new Set([...jobIds, ...live.jobIds]), subjects }
    },
  })
  const live = new LiveStreams({
    context: jobServices.jobContext,
    feed: eventServices.feed,
    openStreams: eventServices.openStreams,
    // The worker logs a failed check.
    check: async (id) => {
      await jobServices.jobWorker.check(id).catch(() => {})
    },
  })
  const operationRunner = new OperationRunner({
    db,
    node,
    clock,
    random,
    log,
    actions: { ...bulkActions(jobServices), erase: eraseAction(jobServices), recover: recoverAction({ db, clock }) },
  })
  const statsRollup = startStatsRollup({ db, clock, log })
  const refusedCallbacks = new RefusedCallbacks({ db, clock, log })
  const eventLoop = watchEventLoop()
  const diskRoom = cacheReading({ clock, maxAgeMs: 5_000, timeoutMs: 2_000, read: () => readDiskRoom(db) })
  const missedCallbacks = cacheReading({
    clock,
    maxAgeMs: 10_000,
    timeoutMs: 2_000,
    read: () => countMissedCallbacks(db, clock.now()),
  })
  registerGauges(metrics, {
    ...jobServices,
    ...eventServices,
    live,
    clock: node.clock,
    node,
    outbox,
    webhooks,
    limiter,
    keySet,
    eventLoop,
    unfinishedJobs: () => findUnfinished(db, node.clock.now()),
    outboxBacklog: () => findBacklog(db),
    webhookBacklog: () => findWebhookBacklog(db),
    webhookEndpoints: () => countEndpointStates(db),
    databaseSizes: () => readDatabaseSizes(db),
    diskRoom,
  })

  return {
    ...dependencies,
    ...jobServices,
    ...eventServices,
    live,
    db,
    node,
    clock,
    config,
    metrics,
    tracer,
    ids,
    discovery,
    keySet,
    verifier,
    serviceKeys,
    callbackAuthenticity,
    refusedCallbacks,
    limiter,
    callerCounts: new CallerCounts(clock),
    admission: new Admission({ clock }),
    creation: new IdempotentCreation({ db, clock }),
    serviceAccounts: new ServiceAccounts({ db, clock, random, ids, authenticator: serviceKeys }),
    operationRunner,
    userActivity,
    userStates,
    projectEvents: new ProjectEvents({
      clock,
      ids,
      notifications: dependencies.projectNotifications ?? {},
      pushOptOut: hasPushTurnedOff,
    }),
    projectExists,
    pushOptOut: hasPushTurnedOff,
    outbox,
    webhooks,
    readiness: new Readiness(
      {
        config,
        db,
        node,
        clock: node.clock,
        diskRoom,
        keySet,
        limiter,
        runtimeBreaker: jobServices.runtimeBreaker,
        missedCallbacks,
        outbox,
      },
      clock,
    ),
    /** Stops background work. The caller that opened the database closes it. */
    close: async () => {
      await live.close()
      await eventServices.close()
      await refusedCallbacks.close()
      await statsRollup.stop()
      await operationRunner.close()
      await jobServices.close()
      await webhooks.close()
      await outbox.close()
      await housekeeping.stop()
      await userStates.close()
      await userActivity.close()
      limiter.close()
      await serviceKeys.close()
      await Promise.all([discovery.close(), keySet.close()])
      eventLoop.stop()
      await node.close()
    },
  }
}

/** Deletes a bounded number of rows that are older than `beforeMs`; true if there may be more. */
type Trim = (db: Database, bound: { beforeMs: number; limit: number }) => Promise<boolean>

function housekeepingTasks(config: Config, context: TrimContext): HousekeepingTask[] {
  const { db } = context
  const limit = TRIM_BATCH[db.engine]
  const { historyRetentionDays, jobRetentionDays } = config
  const trimOlder = (name: string, keptMs: number, trim: Trim): HousekeepingTask => ({
    name,
    trim: (signal, nowMs) => trimInBatches(signal, () => trim(db, { beforeMs: nowMs - keptMs, limit })),
  })
  const tasks: HousekeepingTask[] = [
    {
      name: 'idempotency',
      trim: (signal, nowMs) => trimInBatches(signal, () => deleteExpiredAnswers(db, { nowMs, limit })),
    },
    trimOlder('tombstones', TOMBSTONE_RETENTION_MS, trimTombstones),
    trimOlder('nodes', STOPPED_NODE_RETENTION_MS, trimNodes),
    trimOlder('events', config.eventsRetentionHours * 3_600_000, trimEvents),
    trimOlder('webhooks', config.eventsRetentionHours * 3_600_000, (_db, bound) => trimWebhooks(context, bound)),
    { name: 'webhook_secrets', trim: (_signal, nowMs) => deleteOldSecrets(db, nowMs) },
    { name: 'stats', trim: (_signal, nowMs) => trimStats(db, nowMs) },
    trimOlder('operations', OPERATION_RETENTION_MS, trimOperations),
    trimOlder('refused_callbacks', REFUSED_RETENTION_MS, trimRefused),
    trimOlder('audit', config.auditRetentionDays * 86_400_000, trimAudit),
  ]
  if (jobRetentionDays !== null) {
    const retentionDays = jobRetentionDays
    tasks.push({
      name: 'jobs',
      trim: (signal) => trimJobs({ ...context, countDeleted: onDeleted }, { retentionDays, signal }),
    })
  }
  if (historyRetentionDays !== null) {
    const retentionDays = historyRetentionDays
    tasks.push({ name: 'history', trim: (signal) => trimHistory(context, { retentionDays, signal }) })
  }
  return tasks
}
