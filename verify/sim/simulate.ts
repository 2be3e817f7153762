import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { readMigrations } from '../../src/db/migration-files.ts'
import { Sql, sql } from '../../src/db/sql.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { startCalmWorkload } from './clients/calm-scenario.ts'
import { type NodeName, planSeed } from './faults/plan.ts'
import { checkBounds } from './invariants/bounds.ts'
import { checkCallers } from './invariants/callers.ts'
import { CHANGE_TRIGGERS } from './invariants/change-triggers.ts'
import { checkEffects } from './invariants/effects.ts'
import { type Evidence, gather } from './invariants/evidence.ts'
import { checkJobs } from './invariants/jobs.ts'
import { checkLimits, LIMIT_TRIGGERS } from './invariants/limits.ts'
import { checkOperators } from './invariants/operators.ts'
import { checkRuns } from './invariants/runs.ts'
import { checkStreams } from './invariants/streams.ts'
import { checkTimes } from './invariants/times.ts'
import { checkTurns } from './invariants/turns.ts'
import { checkWebhooks, WEBHOOK_TRIGGERS } from './invariants/webhooks.ts'
import { checkWire } from './invariants/wire.ts'
import { createIdentity, type Identity, makeSignaturesSynchronous, START_MS } from './outside/identity.ts'
import { LOCK_TRIGGERS } from './system/lock-order.ts'
import { buildApps, type ReusableApp } from './system/node.ts'
import { never } from './system/process-instance.ts'
import { JOB_TYPES, LONG_DEADLINE_MS, MAX_DEADLINE_MS } from './system/sim-config.ts'
import { SimulatedSystem } from './system/simulated-system.ts'
import { Prng } from './time/prng.ts'
import { drain, Livelock } from './time/virtual-time.ts'
import { installTimers, useTime } from './time/virtual-timers.ts'

/** The nodes recover from the faults: leases run out, the circuit breaker closes. */
const RECOVERY_MS = 45_000
/** A check that was begun while the runtime refused calls may end after that. */
const REFUSED_SLACK_MS = 60_000
/** How long clients start and watch jobs after the recovery. */
const CALM_MS = 60_000
/** Longer than the latest deadline, the longest time between two checks, and the retries of a push. */
const SETTLE_MS = MAX_DEADLINE_MS + 720_000
/** In this time a paused job that no client reads is checked, and the run that answered its question elsewhere is followed. */
const PAUSED_MS = 2 * 3_600_000
/** At most three turns wait one after the other, each for up to its predecessor's deadline. */
const QUEUED_MS = 3 * MAX_DEADLINE_MS
/** The last late callback may create a job for a run that the service did not know. */
const SETTLE_LATE_MS = 720_000
const MIGRATIONS = new URL('../../src/db/migrations/', import.meta.url)
const DAY_MS = 86_400_000

export interface SeedReport {
  seed: number
  /** A hash of the trace: the same in every run of the seed. */
  digest: string
  violations: { invariant: string; what: string }[]
  faults: Record<string, number>
  jobs: number
  trace: string[]
}

export interface Simulator {
  run(seed: number): Promise<SeedReport>
}

/** Signing tokens and building the two applications take long, so each process does it once for all seeds. */
export async function createSimulator(): Promise<Simulator> {
  makeSignaturesSynchronous()
  installTimers()
  // Every abort creates an error, and no code reads its stack.
  Error.stackTraceLimit = 0
  const identity = await createIdentity()
  const atStart = () => START_MS
  const idle = await openSqlite({ path: ':memory:' })
  await migrate(idle)
  const apps = await buildApps({
    clock: { now: atStart, calendar: atStart, elapsed: atStart, sleep: () => never() },
    random: systemRandom,
    log: silentLog,
    fetch: () => never(),
    db: idle,
    jobTypes: JOB_TYPES,
  })
  const store = await openStore()
  return { run: (seed) => runSeed(seed, { identity, apps, store }) }
}

const TRIGGERS = [CHANGE_TRIGGERS, LIMIT_TRIGGERS, WEBHOOK_TRIGGERS, LOCK_TRIGGERS]

interface Store {
  db: Database
  /** What the database's clock shows. */
  useClock(clock: () => number): void
  /** Empties it for the next seed. That is faster than opening a new one, because its statements stay prepared. */
  clear(): Promise<void>
}

async function openStore(): Promise<Store> {
  let now = () => START_MS
  const db = await openSqlite({ path: ':memory:', clock: { now: () => now() } })
  const migrations = await readMigrations(MIGRATIONS, 'sqlite')
  await db.transaction((tx) => tx.exec([...migrations.map(({ script }) => script), ...TRIGGERS].join('\n')))
  const tables = await db.query<{ name: string }>(sql`
    select name from sqlite_schema where type = 'table' and name not in ('event_log', 'stats_cursors', 'webhook_cursor', 'user_state_version', 'service_clock', 'sqlite_sequence')
    order by rowid`)
  // The newest tables first, because they refer to older ones.
  const noted = tables.map(({ name }) => name).filter((name) => name.startsWith('sim_'))
  // The triggers of the simulation write a row into the `sim_` tables for each row deleted from another table, so the
  // `sim_` tables are emptied last.
  const names = [...tables.map(({ name }) => name).reverse(), ...noted, 'sqlite_sequence']
  const statements = names.map((name) => new Sql([`delete from ${name}`], []))
  return {
    db,
    useClock: (clock) => {
      now = clock
    },
    clear: () =>
      db.transaction(async (tx) => {
        for (const statement of statements) await tx.query(statement)
        await tx.query(sql`update event_log set trimmed_seq = 0`)
        await tx.query(sql`update stats_cursors set position = 0`)
        await tx.query(sql`update webhook_cursor set position = 0`)
        await tx.query(sql`update user_state_version set version = 0`)
        await tx.query(
          sql`update service_clock set version = 0, offset_ms = 0, calendar_offset_ms = 0, stepped_at = 0, ran_until = 0`,
        )
      }),
  }
}

async function runSeed(
  seed: number,
  kit: { identity: Identity; apps: Record<NodeName, ReusableApp>; store: Store },
): Promise<SeedReport> {
  const prng = new Prng(`seed ${seed}`)
  const plan = planSeed(prng.split('plan'))
  await kit.store.clear()
  const { db: store } = kit.store
  const system = new SimulatedSystem({ plan, prng, store, identity: kit.identity, apps: kit.apps })
  const onRejection = (error: unknown) => system.violate('floating', String(error))
  process.on('unhandledRejection', onRejection)
  useTime(system.time)
  kit.store.useClock(() => system.time.now + system.databaseAheadMs)
  try {
    await play(system, store, plan.faultsMs)
  } catch (error) {
    if (!(error instanceof Livelock)) throw error
    system.violate('livelock', error.message)
  } finally {
    system.end()
    useTime(null)
    await drain()
    process.off('unhandledRejection', onRejection)
  }
  const { trace, violations } = system
  return {
    seed,
    digest: trace.digest(),
    violations,
    faults: Object.fromEntries(trace.counts),
    jobs: system.jobsSeen,
    trace: trace.lines,
  }
}

async function play(system: SimulatedSystem, store: Database, faultsMs: number): Promise<void> {
  const { time } = system
  await system.begin()
  await time.runUntil(START_MS + faultsMs)
  if (system.plan.blackoutMs > 0) {
    system.blackout()
    await time.runUntil(time.now + system.plan.blackoutMs)
  }
  const { refusedMs, calm, slots, hurried } = system.plan
  if (refusedMs > 0) {
    await system.stopFaults(1_200)
    system.refuseCalls()
    await time.runUntil(time.now + refusedMs)
    // Kill the nodes, because their loops sleep for long: they would still sleep in the next phase, which needs exact
    // times.
    system.killAll()
  }
  const faultsStoppedAtMs = time.now
  const wasRefused = (atMs: number) =>
    atMs >= faultsStoppedAtMs - refusedMs && atMs < faultsStoppedAtMs + REFUSED_SLACK_MS && refusedMs > 0
  await system.stopFaults(1)
  await time.runUntil(time.now + RECOVERY_MS)
  startCalmWorkload(system)
  await time.runUntil(time.now + CALM_MS)
  const moments = { faultsStoppedAtMs, calmEndedAtMs: time.now, slowUntilMs: 0, wasRefused }
  // With few slots a sweep takes few jobs at a time, and must run more often.
  await system.stopFaults(slots === null ? 120 : 10)
  const pausedMs = system.plan.elsewhere > 0 ? PAUSED_MS : 0
  const queuedMs = hurried > 0 ? QUEUED_MS : 0
  await time.runUntil(time.now + SETTLE_MS + pausedMs + queuedMs + (calm.hasLongRun ? LONG_DEADLINE_MS : 0))
  await inspect(system, store, moments)
  if (system.violations.length > 0) return
  // Now the callbacks that are a day late arrive. They must not change anything.
  await system.stopFaults(14_400)
  const { blackoutMs } = system.plan
  await time.runUntil(START_MS + faultsMs + Math.max(DAY_MS, blackoutMs + refusedMs) + 3_600_000)
  await system.stopAll()
  const slowUntilMs = time.now
  await system.stopFaults(120)
  await time.runUntil(time.now + SETTLE_LATE_MS)
  await system.replayStreams()
  await inspect(system, store, { ...moments, slowUntilMs })
}

type Moments = Pick<Evidence, 'faultsStoppedAtMs' | 'calmEndedAtMs' | 'slowUntilMs' | 'wasRefused'>

async function inspect(system: SimulatedSystem, store: Database, moments: Moments): Promise<void> {
  const evidence = await gather({
    store,
    plan: system.plan,
    runtime: system.runtime,
    network: system.network,
    overlaps: system.overlaps,
    callbacks: system.callbacks,
    provider: system.provider,
    receivers: system.receivers,
    observed: system.observed,
    streams: system.streams,
    crashes: system.crashes,
    suspensions: system.suspensions,
    suspendedUntilMs: system.suspendedUntilMs,
    databaseFaults: system.databaseFaults,
    ...moments,
    nowMs: system.time.now,
    violate: (invariant, what) => system.violate(invariant, what),
  })
  system.jobsSeen = evidence.jobs.length
  await checkJobs(evidence)
  await checkRuns(evidence)
  await checkTurns(evidence)
  checkCallers(evidence)
  await checkTimes(evidence)
  checkBounds(evidence)
  await checkEffects(evidence)
  await checkWire(evidence)
  await checkStreams(evidence)
  await checkOperators(evidence)
  await checkLimits(evidence)
  await checkWebhooks(evidence)
}
