import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { CallbackAuthenticity } from '../../../src/auth/callback-authenticity.ts'
import { systemClock } from '../../../src/core/clock.ts'
import { IdGenerator } from '../../../src/core/ids.ts'
import { silentLog } from '../../../src/core/log.ts'
import { systemRandom } from '../../../src/core/random.ts'
import { buildNextIndex } from '../../../src/db/build-indexes.ts'
import type { Database, Engine } from '../../../src/db/database.ts'
import { migrate } from '../../../src/db/migrate.ts'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { openSqlite } from '../../../src/db/sqlite/sqlite.ts'
import { createJobServices } from '../../../src/jobs/job-services.ts'
import { type JobType, toJobTypes } from '../../../src/jobs/job-types.ts'
import { findRefusal } from '../../../src/users/user-state-store.ts'
import { hasPushTurnedOff } from '../../../src/users/user-store.ts'
import { startPostgres } from '../../../test/support/postgres.ts'
import { median } from '../comparison.ts'
import { GROWTH_STEPS, type GrowthWorld } from './growth-steps.ts'
import { seedHistory } from './seed-history.ts'

const FEW = 1_000
const ROUNDS = 60
const WARM_UP_ROUNDS = 20
const TYPES = toJobTypes({ report: { assistant_id: 'report', output_key: 'report', may_pause: false } })
const SEED_TIMEOUT_MS = 600_000

export interface GrowthFigure {
  engine: Engine
  step: string
  fewMs: number
  manyMs: number
}

export interface GrowthOutcome {
  figures: GrowthFigure[]
  /** By engine: the longest time for which one step blocked the event loop, with many jobs. */
  loopHeldMs: Map<Engine, number>
}

/** How long each step takes with 1,000 jobs and with many, in turns, on both engines. */
export async function measureGrowth(
  jobs: number,
  { engines, note }: { engines: readonly Engine[]; note: (line: string) => void },
): Promise<GrowthOutcome> {
  const outcome: GrowthOutcome = { figures: [], loopHeldMs: new Map() }
  for (const engine of engines) {
    const stores = await openStores(engine)
    try {
      const few = await fill(stores.few, FEW)
      note(`  ${engine}: filling a database with ${jobs} jobs`)
      const many = await fill(stores.many, jobs)
      note(`  ${engine}: filled after ${Math.round(process.uptime())} s`)
      let heldMs = 0
      for (const [name, step] of Object.entries(GROWTH_STEPS)) {
        const [fewMs, manyMs]: [number[], number[]] = [[], []]
        const delays = monitorEventLoopDelay({ resolution: 1 })
        for (let round = 0; round < WARM_UP_ROUNDS + ROUNDS; round++) {
          fewMs.push(await timed(() => step(few, round)))
          if (round === WARM_UP_ROUNDS) delays.enable()
          manyMs.push(await timed(() => step(many, round)))
        }
        delays.disable()
        heldMs = Math.max(heldMs, delays.max / 1e6)
        const middle = (times: number[]) => median(times.slice(WARM_UP_ROUNDS))
        outcome.figures.push({ engine, step: name, fewMs: middle(fewMs), manyMs: middle(manyMs) })
      }
      outcome.loopHeldMs.set(engine, heldMs)
      await few.services.close()
      await many.services.close()
    } finally {
      await stores.close()
    }
  }
  return outcome
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const startedMs = performance.now()
  await work()
  return performance.now() - startedMs
}

async function openStores(engine: Engine): Promise<{ few: Database; many: Database; close: () => Promise<void> }> {
  const { open, remove } = engine === 'postgres' ? await postgresStores() : sqliteStores()
  const [few, many] = [await open('few'), await open('many')]
  const close = async () => {
    await few.close()
    await many.close()
    await remove()
  }
  return { few, many, close }
}

interface Stores {
  open: (name: string) => Promise<Database>
  remove: () => Promise<void>
}

async function postgresStores(): Promise<Stores> {
  const server = await startPostgres({ settings: { max_wal_size: '4GB', shared_buffers: '512MB' } })
  return {
    open: async () => openPostgres({ url: await server.createDatabase(), queryTimeoutMs: SEED_TIMEOUT_MS }),
    remove: () => server.stop(),
  }
}

function sqliteStores(): Stores {
  const folder = mkdtempSync(join(tmpdir(), 'bench-growth-'))
  return {
    open: (name) => openSqlite({ path: join(folder, `${name}.db`) }),
    remove: async () => rmSync(folder, { recursive: true, force: true }),
  }
}

async function fill(db: Database, jobs: number): Promise<GrowthWorld> {
  await migrate(db)
  while ((await buildNextIndex(db)) !== 'done');
  await seedHistory(db, jobs)
  const services = createJobServices({
    db,
    clock: systemClock,
    random: systemRandom,
    ids: new IdGenerator(systemClock, systemRandom),
    log: silentLog,
    types: TYPES,
    pushOptOut: hasPushTurnedOff,
    findRefusal,
    fetch: () => Promise.reject(new Error('there is no runtime')),
    runtime: { url: 'http://127.0.0.1:9', apiKey: null, timeoutMs: 1_000 },
    runtimeIdentity: { mode: 'sub', secret: null },
    publicUrl: null,
    usageLimitRuns: null,
    maxUnfinishedJobs: null,
    callbackAuthenticity: new CallbackAuthenticity([], systemClock),
    node: { id: 'node', isAlive: true, holdsLeaseOf: () => true },
    sweeps: false,
  })
  return { db, services, type: TYPES.get('report') as JobType, jobs }
}
