import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { systemClock, toRfc3339 } from '../../src/core/clock.ts'
import type { Database, Engine } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import { psql } from '../../test/support/postgres.ts'
import { Prng } from '../sim/time/prng.ts'
import { openAuditDatabase, untilSettled } from './audit/audit-database.ts'
import { auditEffects } from './audit/effects.ts'
import { auditEnds, type EndsAudit } from './audit/ends.ts'
import { auditPushes } from './audit/pushes.ts'
import { areCaughtUp, auditStreams } from './audit/streams.ts'
import { countBy, percentile, ViolationCount } from './audit/violation-count.ts'
import { startCluster, type TortureCluster } from './cluster/cluster.ts'
import { injectFaults, stopFaults } from './faults/kills.ts'
import { PacedQueue } from './workload/paced-queue.ts'
import { Workload } from './workload/workload.ts'

const SETTLE_TIMEOUT_MS = 5 * 60_000
const CATCH_UP_MS = 20_000
const POLL_EVERY_MS = 100
/** Four connections of its own, and pools of ten and of two. */
const CONNECTIONS_PER_NODE = 16

export interface TortureOptions {
  engine: Engine
  jobs: number
  kills: number
  seed: number
  /** At the end, makes everything due at once instead of waiting for it. */
  hurry?: boolean
  /** Keeps logs and findings also after a success. */
  keep?: boolean
}

export interface TortureReport {
  /** Name and value of each line of the report. */
  figures: [name: string, value: string][]
  /** All of them must be zero. */
  violations: ViolationCount[]
  failed: boolean
  /** The timelines of the jobs that took longest to end. */
  slowest: string[]
  /** The folder with logs and findings, when they are kept. */
  folder: string | null
}

/** Runs jobs on real processes while these and their servers are killed. Then counts lost, duplicate and wrong results. */
export async function torture(options: TortureOptions): Promise<TortureReport> {
  const { engine, jobs, kills, seed, hurry = false, keep = false } = options
  const random = new Prng(`torture-${seed}`)
  const sinceMs = Date.now()
  const cluster = await startCluster({ engine, random: random.split('cluster') })
  let report: TortureReport | undefined
  try {
    const { balancer, identity } = cluster
    const users = Math.max(3, Math.min(30, Math.ceil(jobs / 20)))
    const workload = new Workload({ url: balancer.url, identity, users, random: random.split('workload') })
    await workload.prepare()
    const queue = new PacedQueue(jobs)
    const working = workload.run(queue)
    await injectFaults(cluster, { queue, jobs, kills, random: random.split('faults') })
    stopFaults(cluster)
    report = await conclude(cluster, workload, { working, hurry, keep })
    report.figures.unshift(
      ['engine', engine === 'postgres' ? 'PostgreSQL and Redis, two nodes, variants A and B' : 'SQLite, one node'],
      ['seed', String(seed)],
      ['took', `${Math.round((Date.now() - sinceMs) / 1_000)} s`],
    )
    return report
  } finally {
    await cluster.close()
    if (report?.failed === false && !keep) rmSync(cluster.folder, { recursive: true, force: true })
    else writeFindings(cluster, report)
  }
}

async function conclude(
  cluster: TortureCluster,
  workload: Workload,
  { working, hurry, keep }: { working: Promise<void>; hurry: boolean; keep: boolean },
): Promise<TortureReport> {
  const faultsStoppedMs = Date.now()
  const leaked = await auditConnections(cluster)
  const db = await openAuditDatabase(cluster)
  try {
    const settling = { timeoutMs: SETTLE_TIMEOUT_MS, faultsStoppedMs, hurry }
    // Clients that wait for a job need it settled first. Their next actions are settled in the second round.
    await Promise.all([working, untilSettled(db, settling)])
    await untilSettled(db, settling)
    await untilCaughtUp(workload, db)
    const ends = await auditEnds(cluster, workload, db)
    const pushes = await auditPushes(cluster, db)
    const effects = await auditEffects(cluster, db)
    const streams = await auditStreams(workload.followers, db)
    const unexpected = new ViolationCount('unexpected responses')
    unexpected.addAll(workload.unexpected)
    await Promise.all(workload.followers.map((follower) => follower.stop()))
    const exits = await auditExits(cluster)
    const violations = [...effects, ...ends.violations, ...streams, ...pushes.violations, unexpected, leaked, exits]
    const { afterNode, afterDatabase } = pushes.repeated
    const failed = violations.some(({ count }) => count > 0)
    const figures: TortureReport['figures'] = [
      ...countFaults(cluster, workload),
      ['jobs ended by', listed(countBy(ends.settledBy, (via) => via))],
      ['pushes sent', String(pushes.sent)],
      [
        'of them again, under the same tag',
        `${afterNode} after a kill of the node, ${afterDatabase} after a kill of the database`,
      ],
      ['time to truth, stored', spread(ends.storedMs)],
      ['time to truth, as seen by a polling client', spread(ends.seenMs)],
    ]
    const slowest = await describeSlowest(db, ends.slowest)
    return { figures, violations, failed, slowest, folder: failed || keep ? cluster.folder : null }
  } finally {
    await db.close()
  }
}

function countFaults({ observed, runtime }: TortureCluster, workload: Workload): TortureReport['figures'] {
  const kills = observed.faults.filter(({ what }) => what !== 'cut')
  const { callbacks, calls } = runtime.stats
  const allCalls = Object.values(calls).reduce((sum, count) => sum + count, 0)
  const breaks = workload.followers.reduce((sum, { connections }) => sum + connections - 1, 0)
  return [
    ['jobs', String(workload.submissions.length)],
    ['kills', `${kills.length} (${listed(countBy(kills, ({ what }) => what))})`],
    ['database connections cut', String(observed.connectionsCut)],
    ['callbacks due, dropped, sent', `${callbacks.due}, ${callbacks.dropped}, ${callbacks.attempted}`],
    ['callbacks accepted', String(observed.accepted.length)],
    ['requests tried again', listed(new Map(Object.entries(workload.client.retries)))],
    ['streams taken up again', `${breaks} times by ${workload.followers.length} followers`],
    ['calls of the runtime per job', (allCalls / Math.max(1, workload.submissions.length)).toFixed(1)],
  ]
}

async function untilCaughtUp({ followers }: Workload, db: Database): Promise<void> {
  const deadlineMs = Date.now() + CATCH_UP_MS
  while (!(await areCaughtUp(followers, db)) && Date.now() < deadlineMs) await systemClock.sleep(POLL_EVERY_MS)
}

/** Nodes that reconnect after every cut must not leave old connections open. */
async function auditConnections({ shared, nodes }: TortureCluster): Promise<ViolationCount> {
  const leaked = new ViolationCount('database connections left behind')
  if (!shared) return leaked
  const mine = `application_name = 'project-api' and datname = current_database()`
  const open = Number(await psql(shared.databaseUrl, `select count(*) from pg_stat_activity where ${mine}`))
  for (let n = CONNECTIONS_PER_NODE * nodes.length; n < open; n++) leaked.add(`${open} are open`)
  return leaked
}

/** No node may have ended by itself, and each ends with code 0 when stopped. */
async function auditExits({ nodes }: TortureCluster): Promise<ViolationCount> {
  const exits = new ViolationCount('unexpected exits')
  for (const { process } of nodes) {
    exits.addAll(process.unexpectedExits)
    const code = await process.stop()
    if (code !== 0) exits.add(`${process.name} was stopped and ended with ${code}`)
  }
  return exits
}

async function describeSlowest(db: Database, slowest: EndsAudit['slowest']): Promise<string[]> {
  const lines: string[] = []
  for (const { jobId, storedMs } of slowest) {
    const rows = await db.query<{ at: number; kind: string; via: string | null; detail: string; last_at: number }>(
      sql`select at, kind, via, detail, last_at from job_timeline where job_id = ${jobId} order by id`,
    )
    lines.push(`${jobId}: ${storedMs} ms`)
    for (const { at, kind, via, detail, last_at } of rows) {
      lines.push(`  ${toRfc3339(at)} to ${toRfc3339(last_at)} ${kind} ${via ?? ''} ${detail}`)
    }
  }
  return lines
}

function writeFindings({ folder, observed }: TortureCluster, report: TortureReport | undefined): void {
  writeFileSync(join(folder, 'faults.log'), `${observed.notes.join('\n')}\n`)
  writeFileSync(join(folder, 'slowest.log'), `${report?.slowest.join('\n') ?? ''}\n`)
  const found = report?.violations.filter(({ count }) => count > 0) ?? []
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
