import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { readMigrations } from '../../src/db/migration-files.ts'
import { Sql, sql } from '../../src/db/sql.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { type NodeName, planSeed } from './faults/plan.ts'
import { CHANGE_TRIGGERS } from './invariants/change-triggers.ts'
import { checkEffects } from './invariants/effects.ts'
import { gather } from './invariants/evidence.ts'
import { checkJobs } from './invariants/jobs.ts'
import { checkStreams } from './invariants/streams.ts'
import { checkWire } from './invariants/wire.ts'
import { createIdentity, type Identity, makeSignaturesSynchronous, START_MS } from './outside/identity.ts'
import { buildApps, type ReusableApp } from './system/node.ts'
import { never } from './system/process-instance.ts'
import { JOB_TYPES, MAX_DEADLINE_MS } from './system/sim-config.ts'
import { SimulatedSystem } from './system/simulated-system.ts'
import { Prng } from './time/prng.ts'
import { drain, Livelock } from './time/virtual-time.ts'
import { installTimers, useTime } from './time/virtual-timers.ts'

/** Longer than the latest deadline, the longest time between two checks, and the retries of a push. */
const SETTLE_MS = MAX_DEADLINE_MS + 720_000
/** The last late callback may create a job for a run that the service did not know. */
const SETTLE_LATE_MS = 360_000
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
  const idle = await openSqlite({ path: ':memory:' })
  const apps = await buildApps({
    clock: { now: () => START_MS, sleep: () => never() },
    random: systemRandom,
    log: silentLog,
    fetch: () => never(),
    db: idle,
    jobTypes: JOB_TYPES,
  })
  const store = await openStore()
  return { run: (seed) => runSeed(seed, { identity, apps, store }) }
}

interface Store {
  db: Database
  /** Empties it for the next seed. That is faster than opening a new one, because its statements stay prepared. */
  clear(): Promise<void>
}

async function openStore(): Promise<Store> {
  const db = await openSqlite({ path: ':memory:' })
  const migrations = await readMigrations(MIGRATIONS, 'sqlite')
  await db.transaction((tx) => tx.exec([...migrations.map(({ script }) => script), CHANGE_TRIGGERS].join('\n')))
  const tables = await db.query<{ name: string }>(sql`
    select name from sqlite_schema where type = 'table' and name not in ('event_log', 'sqlite_sequence') order by rowid`)
  // The newest tables first, because they refer to older ones.
  const names = [...tables.map(({ name }) => name).reverse(), 'sim_late_changes', 'sqlite_sequence']
  const statements = names.map((name) => new Sql([`delete from ${name}`], []))
  return {
    db,
    clear: () =>
      db.transaction(async (tx) => {
        for (const statement of statements) await tx.query(statement)
        await tx.query(sql`update event_log set trimmed_seq = 0`)
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
  const faultsStoppedAtMs = time.now
  // With few slots a sweep takes few jobs at a time, and must run more often.
  await system.stopFaults(system.plan.slots === null ? 120 : 10)
  await time.runUntil(time.now + SETTLE_MS)
  await inspect(system, store, faultsStoppedAtMs)
  if (system.violations.length > 0) return
  // Now the callbacks that are a day late arrive. They must not change anything.
  await system.stopFaults(14_400)
  await time.runUntil(START_MS + faultsMs + Math.max(DAY_MS, system.plan.blackoutMs) + 3_600_000)
  await system.stopFaults(120)
  await time.runUntil(time.now + SETTLE_LATE_MS)
  await system.replayStreams()
  await inspect(system, store, faultsStoppedAtMs)
}

async function inspect(system: SimulatedSystem, store: Database, faultsStoppedAtMs: number): Promise<void> {
  const evidence = await gather({
    store,
    plan: system.plan,
    runtime: system.runtime,
    network: system.network,
    callbacks: system.callbacks,
    provider: system.provider,
    observed: system.observed,
    streams: system.streams,
    crashes: system.crashes,
    suspensions: system.suspensions,
    databaseFaults: system.databaseFaults,
    faultsStoppedAtMs,
    nowMs: system.time.now,
    violate: (invariant, what) => system.violate(invariant, what),
  })
  system.jobsSeen = evidence.jobs.length
  await checkJobs(evidence)
  await checkEffects(evidence)
  await checkWire(evidence)
  await checkStreams(evidence)
}
