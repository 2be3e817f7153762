import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { systemClock, toRfc3339 } from '../../src/core/clock.ts'
import type { Database, Engine } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import { psql } from '../../test/support/postgres.ts'
import { Prng } from '../sim/time/prng.ts'
import { openLedger, untilSettled } from './audit/audit-database.ts'
import { auditEffects } from './audit/effects.ts'
import { auditEnds, type EndsAudit } from './audit/ends.ts'
import { auditPushes } from './audit/pushes.ts'
import { areCaughtUp, auditStreams } from './audit/streams.ts'
import { countBy, percentile, Tally } from './audit/violation-count.ts'
import { startWorld, type World } from './cluster/cluster.ts'
import { calmDown, wreakHavoc } from './faults/kills.ts'
import { Flow } from './workload/paced-queue.ts'
import { Workload } from './workload/workload.ts'

const SETTLE_TIMEOUT_MS = 5 * 60_000
const CATCH_UP_MS = 20_000
const LOOK_EVERY_MS = 100
/** Four lanes and a pool of ten. */
const CONNECTIONS_PER_NODE = 14

export interface TortureOptions {
  engine: Engine
  jobs: number
  kills: number
  seed: number
  /** At the end, what would come due by itself is made due at once: for a run that has no minute to wait. */
  hurry?: boolean
  /** Keeps logs and findings also when all is well. */
  keep?: boolean
}

export interface TortureReport {
  /** What it was and how it went, line by line. */
  figures: [name: string, value: string][]
  /** What must all be zero. */
  tallies: Tally[]
  failed: boolean
  /** The timelines of the jobs whose end took longest to arrive. */
  slowest: string[]
  /** Logs and findings, where they were kept. */
  folder: string | null
}

/** Lets jobs flow through real processes while they, and what they stand on, are killed; then counts what was lost. */
export async function torture(options: TortureOptions): Promise<TortureReport> {
  const { engine, jobs, kills, seed, hurry = false, keep = false } = options
  const random = new Prng(`torture-${seed}`)
  const sinceMs = Date.now()
  const world = await startWorld({ engine, random: random.split('world') })
  let report: TortureReport | undefined
  try {
    const { balancer, identity } = world
    const users = Math.max(3, Math.min(30, Math.ceil(jobs / 20)))
    const workload = new Workload({ url: balancer.url, identity, users, random: random.split('workload') })
    await workload.prepare()
    const flow = new Flow(jobs)
    const working = workload.run(flow)
    await wreakHavoc(world, { flow, jobs, kills, random: random.split('chaos') })
    calmDown(world)
    report = await conclude(world, workload, { working, hurry, keep })
    report.figures.unshift(
      ['engine', engine === 'postgres' ? 'PostgreSQL and Redis, two nodes, variants A and B' : 'SQLite, one node'],
      ['seed', String(seed)],
      ['took', `${Math.round((Date.now() - sinceMs) / 1_000)} s`],
    )
    return report
  } finally {
    await world.close()
    if (report?.failed === false && !keep) rmSync(world.folder, { recursive: true, force: true })
    else keepEvidence(world, report)
  }
}

async function conclude(
  world: World,
  workload: Workload,
  { working, hurry, keep }: { working: Promise<void>; hurry: boolean; keep: boolean },
): Promise<TortureReport> {
  const calmSinceMs = Date.now()
  const leaked = await auditConnections(world)
  const db = await openLedger(world)
  try {
    const settling = { timeoutMs: SETTLE_TIMEOUT_MS, calmSinceMs, hurry }
    // Those who wait for a job are spared the wait as well; what they do with it then comes to its end afterwards.
    await Promise.all([working, untilSettled(db, settling)])
    await untilSettled(db, settling)
    await untilCaughtUp(workload, db)
    const ends = await auditEnds(world, workload, db)
    const pushes = await auditPushes(world, db)
    const effects = await auditEffects(world, db)
    const streams = await auditStreams(workload.followers, db)
    const surprises = new Tally('answers nobody should get')
    surprises.addAll(workload.surprises)
    await Promise.all(workload.followers.map((follower) => follower.stop()))
    const exits = await auditExits(world)
    const tallies = [...effects, ...ends.tallies, ...streams, ...pushes.tallies, surprises, leaked, exits]
    const { afterNode, afterDatabase } = pushes.repeated
    const failed = tallies.some(({ count }) => count > 0)
    const figures: TortureReport['figures'] = [
      ...countFaults(world, workload),
      ['jobs ended by', listed(countBy(ends.settledBy, (via) => via))],
      ['pushes sent', String(pushes.sent)],
      ['of them again, under the same tag', `${afterNode} after a node’s death, ${afterDatabase} after the database’s`],
      ['time to truth, stored', spread(ends.storedMs)],
      ['time to truth, as seen by who asks', spread(ends.seenMs)],
    ]
    const slowest = await tellSlowest(db, ends.slowest)
    return { figures, tallies, failed, slowest, folder: failed || keep ? world.folder : null }
  } finally {
    await db.close()
  }
}

function countFaults({ records, runtime }: World, workload: Workload): TortureReport['figures'] {
  const kills = records.faults.filter(({ what }) => what !== 'cut')
  const { callbacks, calls } = runtime.stats
  const allCalls = Object.values(calls).reduce((sum, count) => sum + count, 0)
  const breaks = workload.followers.reduce((sum, { connections }) => sum + connections - 1, 0)
  return [
    ['jobs', String(workload.submissions.length)],
    ['kills', `${kills.length} (${listed(countBy(kills, ({ what }) => what))})`],
    ['database connections cut', String(records.connectionsCut)],
    ['callbacks due, dropped, sent', `${callbacks.due}, ${callbacks.dropped}, ${callbacks.attempted}`],
    ['callbacks accepted', String(records.accepted.length)],
    ['requests tried again', listed(new Map(Object.entries(workload.client.retries)))],
    ['streams taken up again', `${breaks} times by ${workload.followers.length} followers`],
    ['calls of the runtime per job', (allCalls / Math.max(1, workload.submissions.length)).toFixed(1)],
  ]
}

async function untilCaughtUp({ followers }: Workload, db: Database): Promise<void> {
  const deadlineMs = Date.now() + CATCH_UP_MS
  while (!(await areCaughtUp(followers, db)) && Date.now() < deadlineMs) await systemClock.sleep(LOOK_EVERY_MS)
}

/** Whoever comes back after every cut must not leave the old connections behind. */
async function auditConnections({ shared, nodes }: World): Promise<Tally> {
  const leaked = new Tally('database connections left behind')
  if (!shared) return leaked
  const mine = `application_name = 'project-api' and datname = current_database()`
  const open = Number(await psql(shared.databaseUrl, `select count(*) from pg_stat_activity where ${mine}`))
  for (let n = CONNECTIONS_PER_NODE * nodes.length; n < open; n++) leaked.add(`${open} are open`)
  return leaked
}

/** Nobody may have died but by our hand, and in the end all leave in good order. */
async function auditExits({ nodes }: World): Promise<Tally> {
  const exits = new Tally('unexpected exits')
  for (const { process } of nodes) {
    exits.addAll(process.unexpectedExits)
    const code = await process.stop()
    if (code !== 0) exits.add(`${process.name} was told to stop and ended with ${code}`)
  }
  return exits
}

async function tellSlowest(db: Database, slowest: EndsAudit['slowest']): Promise<string[]> {
  const told: string[] = []
  for (const { jobId, storedMs } of slowest) {
    const rows = await db.query<{ at: number; kind: string; via: string | null; detail: string; last_at: number }>(
      sql`select at, kind, via, detail, last_at from job_timeline where job_id = ${jobId} order by id`,
    )
    told.push(`${jobId}: ${storedMs} ms`)
    for (const { at, kind, via, detail, last_at } of rows) {
      told.push(`  ${toRfc3339(at)} to ${toRfc3339(last_at)} ${kind} ${via ?? ''} ${detail}`)
    }
  }
  return told
}

function keepEvidence({ folder, records }: World, report: TortureReport | undefined): void {
  writeFileSync(join(folder, 'faults.log'), `${records.notes.join('\n')}\n`)
  writeFileSync(join(folder, 'slowest.log'), `${report?.slowest.join('\n') ?? ''}\n`)
  const found = report?.tallies.filter(({ count }) => count > 0) ?? []
  writeFileSync(
    join(folder, 'findings.json'),
    JSON.stringify(
      found.map(({ name, count, examples }) => ({ name, count, examples })),
      null,
      2,
    ),
  )
}

function listed(counts: ReadonlyMap<string, number>): string {
  return [...counts].map(([name, count]) => `${name} ${count}`).join(', ') || 'none'
}

function spread(values: readonly number[]): string {
  if (values.length === 0) return 'nothing to measure'
  const [p50, p99, max] = [percentile(values, 0.5), percentile(values, 0.99), Math.max(...values)]
  return `p50 ${p50} ms, p99 ${p99} ms, longest ${max} ms`
}
