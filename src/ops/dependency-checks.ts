import type { Algorithm } from '../auth/issuer/algorithms.ts'
import { isCognitoIssuer } from '../auth/issuer/cognito.ts'
import { connectIssuer } from '../auth/issuer/connect-issuer.ts'
import { discoveryUrl } from '../auth/issuer/discovery.ts'
import { type KeySet, keySetUrl } from '../auth/issuer/key-set.ts'
import { Breaker } from '../core/async/breaker.ts'
import type { MaybePromise } from '../core/async/maybe-promise.ts'
import { systemClock } from '../core/clock.ts'
import { silentLog } from '../core/log.ts'
import { pendingIndexes } from '../db/build-indexes.ts'
import type { Database } from '../db/database.ts'
import { MANY_LOCK_TIMEOUTS, type MeteredDatabase } from '../db/metered-database.ts'
import { pendingMigrations } from '../db/migrate.ts'
import type { Node } from '../db/nodes/node.ts'
import type { ServiceClock } from '../db/nodes/service-clock.ts'
import { findObstacle } from '../db/postgres/find-obstacle.ts'
import { sql } from '../db/sql.ts'
import type { Limiter } from '../limits/limiter.ts'
import type { Outbox } from '../push/outbox/outbox.ts'
import type { PushSender } from '../push/push-provider.ts'
import { RuntimeClient } from '../runtime/runtime-client.ts'
import { type DiskRoom, readDiskRoom } from './disk-usage.ts'
import { failureReason } from './failure-reason.ts'

/** With a degraded dependency the service is still ready; with one that is down it is not. */
export interface DependencyReport {
  state: 'ok' | 'degraded' | 'down'
  detail: string | null
}

export interface ProbeResult {
  ok: boolean
  text: string
  /** It works, and an operator should act. */
  warns?: true
  /** How to fix it; absent on a failure: the check's own `howToFix`. */
  hint?: string
}

/** The settings that the checks read. */
interface DependencySettings {
  production: boolean
  issuerUrl: string
  tokenAlgorithms: readonly Algorithm[]
  tokenAudience: readonly string[] | null
  redisUrl: string | null
  redisPrefix: string
  runtime: { url: string; apiKey: string | null; timeoutMs: number } | null
  publicUrl: string | null
  webhookSecrets: readonly string[]
  push: { projectId: string } | null
}

/** The dependencies as the running service holds them. */
export interface LiveDependencies {
  config: DependencySettings
  db: Pick<MeteredDatabase, 'ping' | 'engine' | 'transactionFailure' | 'recentLockTimeouts'>
  node: Pick<Node, 'isAlive' | 'lastWriteAgeMs' | 'writeFailure'>
  clock: Pick<ServiceClock, 'offsetMs'>
  /** Null if the database is on the disk of another machine. */
  diskRoom: () => Promise<DiskRoom | null>
  keySet: Pick<KeySet, 'isReady' | 'warmUpWithin' | 'state'>
  limiter: Pick<Limiter, 'state'>
  runtimeBreaker: Pick<Breaker, 'state'>
  /** Of the jobs that ended in the last five minutes. */
  missedCallbacks: () => Promise<{ ended: number; missed: number }>
  outbox: Pick<Outbox, 'state' | 'fault'>
}

/** What `doctor` connects with; it runs without a service. */
export interface ProbeContext {
  config: DependencySettings
  openDatabase(): Promise<{ db: Database; close(): Promise<void> }>
  /** One sender for each push provider that has credentials. */
  connectPush(): Promise<PushSender[]>
}

export interface DependencyCheck {
  /** The name in `/readyz`. */
  name: string
  /** The name in the output of `doctor`. */
  label: string
  /** For `/readyz`: quick, and safe to publish. Addresses and error messages of libraries belong in the log. */
  report(live: LiveDependencies): MaybePromise<DependencyReport>
  /** For `doctor`: connects as the service would. A rejection counts as a failure. */
  probe(context: ProbeContext): Promise<ProbeResult>
  howToFix: string
}

/** Below this share of free space an operator should act. */
const LOW_DISK_SHARE = 0.1
/** `doctor` mentions a larger difference. */
const CLOCKS_DIFFER_SECONDS = 5

/** Below the 2.5 s after which the console says that the service does not answer. A provider that hangs is down meanwhile. */
const KEY_WAIT_MS = 1_500

/** With fewer ends of jobs, missed callbacks prove nothing. */
const FEW_ENDS = 5

/** Every dependency of the service, in one list for `/readyz` and `doctor`. */
export const DEPENDENCY_CHECKS: readonly DependencyCheck[] = [
  {
    name: 'database',
    label: 'database',
    report: async ({ db, node }) => {
      await db.ping()
      const fault = findWriteFault({ db, node })
      return fault === null ? { state: 'ok', detail: db.engine } : { state: 'degraded', detail: fault }
    },
    probe: probeDatabase,
    howToFix: 'Check DATABASE_URL (or DATA_DIR), that the server is up, and that this host and user may use it',
  },
  {
    name: 'disk',
    label: 'disk',
    // Never `down`: the database says itself when its disk is full.
    report: async ({ diskRoom }) => {
      const room = await diskRoom().catch(() => undefined)
      if (room === undefined) return { state: 'degraded', detail: 'the free space cannot be read' }
      if (room === null) return { state: 'ok', detail: null }
      return { state: isLow(room) ? 'degraded' : 'ok', detail: describeRoom(room) }
    },
    probe: probeDisk,
    howToFix: 'Enlarge the disk of DATA_DIR, or keep less: HISTORY_RETENTION_DAYS, JOB_RETENTION_DAYS',
  },
  {
    name: 'clock',
    label: 'clock',
    // Never `down`: nothing is ended early or waits for longer.
    report: ({ clock: { offsetMs } }) => {
      if (offsetMs === 0) return { state: 'ok', detail: null }
      const seconds = Math.ceil(Math.abs(offsetMs) / 1_000)
      const where = offsetMs < 0 ? 'ahead of' : 'behind'
      const detail = `the database's clock was set: it is ${seconds} s ${where} the service's time, which follows slowly`
      return { state: 'degraded', detail }
    },
    probe: probeClock,
    howToFix: "Synchronize the clock of the database's machine; if it is right now, the service follows by itself",
  },
  {
    name: 'identity_provider',
    label: 'issuer',
    report: async ({ keySet }) => {
      if (!keySet.isReady()) await keySet.warmUpWithin(KEY_WAIT_MS)
      if (!keySet.isReady()) return { state: 'down', detail: 'no keys fetched yet' }
      const { keys, lastError } = keySet.state()
      return lastError === null
        ? { state: 'ok', detail: keys === 1 ? '1 key' : `${keys} keys` }
        : { state: 'degraded', detail: 'the issuer does not answer: the service uses the keys that it has' }
    },
    probe: probeIdentityProvider,
    howToFix:
      'Check ISSUER_URL, or COGNITO_REGION and COGNITO_USER_POOL_ID, TOKEN_ALGORITHMS, and that this host may reach it',
  },
  {
    name: 'rate_limits',
    label: 'redis',
    report: ({ limiter }) => {
      const { store, degraded } = limiter.state()
      return degraded
        ? { state: 'degraded', detail: 'Redis cannot be used: each node counts rate limits alone' }
        : { state: 'ok', detail: store }
    },
    probe: async ({ config }) => {
      if (config.redisUrl === null) return { ok: true, text: 'not configured: rate limits are counted per process' }
      // Loaded here, so that a service without Redis does not load the driver.
      const { probeRedis } = await import('../limits/redis-probe.ts')
      const { wakeUpChannel } = await import('../events/wake-ups.ts')
      const { redisUrl: url, redisPrefix: prefix } = config
      await probeRedis({ url, prefix, channel: wakeUpChannel(prefix) })
      return { ok: true, text: 'answers' }
    },
    howToFix:
      'Check REDIS_URL, that the server is up, and what its user may do; until then every process counts rate limits alone',
  },
  {
    name: 'runtime',
    label: 'runtime',
    // Never `down`: without the runtime the service still answers, and results arrive later.
    report: ({ config, runtimeBreaker }) => {
      if (config.runtime === null) return { state: 'degraded', detail: 'not configured: jobs cannot be started' }
      return runtimeBreaker.state === 'closed'
        ? { state: 'ok', detail: null }
        : { state: 'degraded', detail: 'the runtime keeps failing: results arrive later' }
    },
    probe: probeRuntime,
    howToFix: 'Check RUNTIME_URL and RUNTIME_API_KEY, and that this host may reach it',
  },
  {
    name: 'callbacks',
    label: 'callbacks',
    // Never `down`: the service finds the results by asking the runtime.
    report: async ({ config, missedCallbacks }) => {
      const fault = findCallbackFault(config)
      if (fault) return { state: 'degraded', detail: fault.text }
      const { ended, missed } = await missedCallbacks().catch(() => ({ ended: 0, missed: 0 }))
      if (ended < FEW_ENDS || missed <= ended / 2) return { state: 'ok', detail: null }
      const jobs = `${missed} of ${ended} jobs that ended in the last 5 minutes`
      return { state: 'degraded', detail: `${jobs} did so without their callback: it was refused, or did not arrive` }
    },
    probe: async ({ config }) =>
      findCallbackFault(config) ?? {
        ok: true,
        text: config.publicUrl ?? 'no runtime is configured, so there are no callbacks',
      },
    howToFix: 'Set WEBHOOK_SECRET, and PUBLIC_URL to the address at which the runtime reaches this service',
  },
  {
    name: 'push',
    label: 'push',
    report: ({ outbox: { state, fault } }) => {
      // The provider's own words are not public.
      if (state === 'halted' || state === 'dropping') {
        const effect = state === 'halted' ? 'deliveries wait' : 'messages to a platform are lost'
        return { state: 'degraded', detail: `${state}: ${effect}; operators find the reason at /v1/push` }
      }
      return fault === null ? { state: 'ok', detail: null } : { state: 'degraded', detail: fault }
    },
    probe: probePush,
    howToFix:
      'Check PUSH_PROJECT_ID, PUSH_CLIENT_EMAIL and PUSH_PRIVATE_KEY, and that this host may reach the provider',
  },
]

/** A database that answers reads may still refuse changes. */
function findWriteFault({ db, node }: Pick<LiveDependencies, 'db' | 'node'>): string | null {
  if (!node.isAlive) {
    const seconds = Math.floor(node.lastWriteAgeMs / 1_000)
    return `this node has written no heartbeat for ${seconds} s: ${failureReason(node.writeFailure)}`
  }
  if (db.transactionFailure !== null) return `changes fail: ${failureReason(db.transactionFailure)}`
  return db.recentLockTimeouts < MANY_LOCK_TIMEOUTS ? null : 'another session holds a lock: statements give up waiting'
}

async function probeDatabase({ openDatabase }: ProbeContext): Promise<ProbeResult> {
  const { db, close } = await openDatabase()
  try {
    await db.ping()
    const pending = await pendingMigrations(db)
    if (pending.length > 0) {
      const obstacle = await findObstacle(db)
      if (obstacle) return { ok: false, ...obstacle }
      const text = `${db.engine}, ${pending.length} migrations pending`
      return { ok: true, text, hint: 'They run at the next start, or with `migrate`' }
    }
    const indexes = await pendingIndexes(db)
    if (indexes.length === 0) return { ok: true, text: `${db.engine}, schema up to date` }
    const text = `${db.engine}, schema up to date, ${indexes.length} indexes pending: ${indexes.join(', ')}`
    return { ok: true, text, hint: 'The running service builds them, or `migrate` does; lists are slower until then' }
  } finally {
    await close()
  }
}

async function probeDisk({ openDatabase }: ProbeContext): Promise<ProbeResult> {
  const { db, close } = await openDatabase()
  try {
    const room = await readDiskRoom(db)
    if (room === null) return { ok: true, text: "the database is on its server's disk: watch it there" }
    const hint = 'Enlarge the disk before it is full: then every change is refused (docs/runbooks/disk.md)'
    return { ok: true, text: describeRoom(room), ...(isLow(room) && { warns: true, hint }) }
  } finally {
    await close()
  }
}

function isLow({ freeBytes, sizeBytes }: DiskRoom): boolean {
  return freeBytes < sizeBytes * LOW_DISK_SHARE
}

function describeRoom(room: DiskRoom): string {
  const percent = Math.floor((100 * room.freeBytes) / room.sizeBytes)
  return isLow(room) ? `almost full: ${percent} % of the disk of DATA_DIR is free` : `${percent} % free`
}

async function probeClock({ openDatabase }: ProbeContext): Promise<ProbeResult> {
  const { db, close } = await openDatabase()
  try {
    const [row] = await db.query<{ now: number }>(sql`select ${db.now} as now`)
    const seconds = Math.round(Math.abs((row?.now ?? 0) - systemClock.now()) / 1_000)
    if (seconds < CLOCKS_DIFFER_SECONDS) return { ok: true, text: "the database's clock agrees with this machine's" }
    const hint = 'The service goes by the database: if its clock is the wrong one, synchronize it'
    return { ok: true, text: `the database's clock differs from this machine's by ${seconds} s`, hint }
  } finally {
    await close()
  }
}

async function probeIdentityProvider({ config }: ProbeContext): Promise<ProbeResult> {
  const { issuerUrl, tokenAlgorithms: algorithms } = config
  const { discovery, keySet } = connectIssuer({ issuerUrl, algorithms, fetch, clock: systemClock, log: silentLog })
  await keySet.warmUp()
  const { keys, lastError } = keySet.state()
  const isFound = discovery.fetchedAtMs !== null
  const url = (isFound && (await discovery.get()).jwks_uri) || keySetUrl(issuerUrl)
  const missing = discovery.lastError
  await Promise.all([discovery.close(), keySet.close()])
  if (keys === 0) return { ok: false, text: `${missing === null ? url : issuerUrl}: ${lastError ?? 'no usable key'}` }
  const text = `${keys} usable keys at ${url}`
  if (missing !== null) {
    const hint = 'The console cannot sign in without it, unless CONSOLE_AUTH_URL is set'
    return { ok: true, text: `${text}; ${discoveryUrl(issuerUrl)}: ${missing}`, hint }
  }
  if (config.tokenAudience !== null || isCognitoIssuer(issuerUrl)) return { ok: true, text }
  const hint = 'Set TOKEN_AUDIENCE to the audience of your tokens, or to "none"; in production `serve` demands it'
  return { ok: !config.production, text: `${text}; no TOKEN_AUDIENCE: tokens for other APIs are accepted`, hint }
}

async function probeRuntime({ config: { runtime } }: ProbeContext): Promise<ProbeResult> {
  if (runtime === null) return { ok: true, text: 'not configured: jobs cannot be started, callbacks still settle' }
  const breaker = new Breaker({ clock: systemClock, threshold: 1, openMs: 1, maxOpenMs: 1 })
  await new RuntimeClient({ ...runtime, fetch, clock: systemClock, breaker }).ping()
  return { ok: true, text: `answers at ${runtime.url}` }
}

function findCallbackFault(config: DependencySettings): ProbeResult | null {
  if (config.webhookSecrets.length === 0) {
    return { ok: !config.production, text: 'no WEBHOOK_SECRET: anyone may post callbacks', hint: 'Set WEBHOOK_SECRET' }
  }
  if (config.publicUrl === null && config.runtime !== null) {
    return {
      ok: true,
      text: 'no PUBLIC_URL: the runtime sends no callbacks, and this service polls for results',
      hint: 'Set PUBLIC_URL to the address at which the runtime reaches this service',
    }
  }
  return null
}

/** Sends a dry run to a device that does not exist: a provider that refuses the device has accepted the credentials. */
async function probePush({ config, connectPush }: ProbeContext): Promise<ProbeResult> {
  if (config.push === null) return { ok: true, text: 'not configured: deliveries wait for credentials' }
  const message = { token: 'doctor', title: 'doctor', body: '', data: {}, tag: 'doctor', link: null } as const
  const limits = { priority: 'normal', ttlSeconds: 60, dryRun: true } as const
  for (const sender of await connectPush()) {
    const verdict = await sender.send({ ...message, ...limits }, new AbortController().signal)
    await sender.close()
    if (verdict.kind === 'halt' || verdict.kind === 'retry') return { ok: false, text: verdict.reason }
  }
  return { ok: true, text: `a dry run reached project ${config.push.projectId}` }
}
