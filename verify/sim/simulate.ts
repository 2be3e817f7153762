import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { readMigrations } from '../../src/db/migration-files.ts'
import { Sql, sql } from '../../src/db/sql.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { type NodeName, planSeed } from './faults/plan.ts'
import { WITNESS } from './invariants/change-triggers.ts'
import { checkEffects } from './invariants/effects.ts'
import { gather } from './invariants/evidence.ts'
import { checkJobs } from './invariants/jobs.ts'
import { checkStreams } from './invariants/streams.ts'
import { checkWire } from './invariants/wire.ts'
import { createIdentity, type Identity, makeSignaturesSynchronous, START_MS } from './outside/identity.ts'
import { buildShells, type Shell } from './system/node.ts'
import { never } from './system/process-instance.ts'
import { JOB_TYPES, MAX_DEADLINE_MS } from './system/sim-config.ts'
import { World } from './system/simulated-system.ts'
import { Prng } from './time/prng.ts'
import { drain, Livelock } from './time/virtual-time.ts'
import { installTimers, useTime } from './time/virtual-timers.ts'

/** Long enough for the latest deadline, the longest pause between two looks, and the retries of a push. */
const SETTLE_MS = MAX_DEADLINE_MS + 720_000
/** The last callback of all may make a job of a run that nobody knew. */
const SETTLE_LATE_MS = 360_000
const MIGRATIONS = new URL('../../src/db/migrations/', import.meta.url)
const DAY_MS = 86_400_000

export interface SeedReport {
  seed: number
  /** Of the trace: two runs of one seed agree in it. */
  digest: string
  violations: { invariant: string; what: string }[]
  faults: Record<string, number>
  jobs: number
  trace: string[]
}

export interface Simulator {
  run(seed: number): Promise<SeedReport>
}

/** What takes long is done once per process: signing tokens, and building the two applications. */
export async function createSimulator(): Promise<Simulator> {
  makeSignaturesSynchronous()
  installTimers()
  // Every abort makes an error, and nobody reads its stack.
  Error.stackTraceLimit = 0
  const identity = await createIdentity()
  const idle = await openSqlite({ path: ':memory:' })
  const shells = await buildShells({
    clock: { now: () => START_MS, sleep: () => never() },
    random: systemRandom,
    log: silentLog,
    fetch: () => never(),
    db: idle,
    jobTypes: JOB_TYPES,
  })
  const store = await openStore()
  return { run: (seed) => runSeed(seed, { identity, shells, store }) }
}

interface Store {
  db: Database
  /** As it was when it was opened: an empty store with its statements prepared serves the next seed sooner than a new one. */
  clear(): Promise<void>
}

async function openStore(): Promise<Store> {
  const db = await openSqlite({ path: ':memory:' })
  const migrations = await readMigrations(MIGRATIONS, 'sqlite')
  await db.transaction((tx) => tx.exec([...migrations.map(({ script }) => script), WITNESS].join('\n')))
  const tables = await db.query<{ name: string }>(sql`
    select name from sqlite_schema where type = 'table' and name not in ('event_log', 'sqlite_sequence') order by rowid`)
  // The youngest first: a table refers to older ones.
  const names = [...tables.map(({ name }) => name).reverse(), 'sim_thaws', 'sqlite_sequence']
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
  kit: { identity: Identity; shells: Record<NodeName, Shell>; store: Store },
): Promise<SeedReport> {
  const prng = new Prng(`seed ${seed}`)
  const plan = planSeed(prng.split('plan'))
  await kit.store.clear()
  const { db: store } = kit.store
  const world = new World({ plan, prng, store, identity: kit.identity, shells: kit.shells })
  const onRejection = (error: unknown) => world.violate('floating', String(error))
  process.on('unhandledRejection', onRejection)
  useTime(world.time)
  try {
    await play(world, store, plan.chaosMs)
  } catch (error) {
    if (!(error instanceof Livelock)) throw error
    world.violate('livelock', error.message)
  } finally {
    world.end()
    useTime(null)
    await drain()
    process.off('unhandledRejection', onRejection)
  }
  const { trace, violations } = world
  return {
    seed,
    digest: trace.digest(),
    violations,
    faults: Object.fromEntries(trace.counts),
    jobs: world.jobsSeen,
    trace: trace.lines,
  }
}

async function play(world: World, store: Database, chaosMs: number): Promise<void> {
  const { time } = world
  await world.begin()
  await time.runUntil(START_MS + chaosMs)
  if (world.plan.blackoutMs > 0) {
    world.blackOut()
    await time.runUntil(time.now + world.plan.blackoutMs)
  }
  const faultsStoppedAtMs = time.now
  // With few places a sweep takes few jobs at a time, and must come round the more often.
  await world.calm(world.plan.places === null ? 120 : 10)
  await time.runUntil(time.now + SETTLE_MS)
  await inspect(world, store, faultsStoppedAtMs)
  if (world.violations.length > 0) return
  // What was a day late arrives now, and changes nothing any more.
  await world.calm(14_400)
  await time.runUntil(START_MS + chaosMs + Math.max(DAY_MS, world.plan.blackoutMs) + 3_600_000)
  await world.calm(120)
  await time.runUntil(time.now + SETTLE_LATE_MS)
  await world.replayStreams()
  await inspect(world, store, faultsStoppedAtMs)
}

async function inspect(world: World, store: Database, faultsStoppedAtMs: number): Promise<void> {
  const evidence = await gather({
    store,
    plan: world.plan,
    runtime: world.runtime,
    network: world.network,
    callbacks: world.callbacks,
    provider: world.provider,
    promises: world.promises,
    streams: world.streams,
    crashes: world.crashes,
    suspensions: world.suspensions,
    databaseFaults: world.databaseFaults,
    faultsStoppedAtMs,
    nowMs: world.time.now,
    violate: (invariant, what) => world.violate(invariant, what),
  })
  world.jobsSeen = evidence.jobs.length
  await checkJobs(evidence)
  await checkEffects(evidence)
  await checkWire(evidence)
  await checkStreams(evidence)
}
