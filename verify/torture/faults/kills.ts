import { systemClock } from '../../../src/core/clock.ts'
import { NO_RUNTIME_FAULTS, type RuntimeFaults } from '../../../src/sandbox/agent-runtime/faults.ts'
import { psql } from '../../../test/support/postgres.ts'
import type { Prng } from '../../sim/time/prng.ts'
import type { TortureCluster } from '../cluster/cluster.ts'
import type { PacedQueue } from '../workload/paced-queue.ts'
import { KILL_POINTS, type KillPoint } from './kill-points.ts'

/** any_node and all_nodes are killed at a random moment. */
type Kill = KillPoint | 'any_node' | 'all_nodes' | 'postgres' | 'redis'

const ON_POSTGRES: readonly Kill[] = [...KILL_POINTS, 'any_node', 'any_node', 'all_nodes', 'postgres', 'redis']
const ON_SQLITE: readonly Kill[] = [...KILL_POINTS, 'any_node', 'any_node']
const READY_TIMEOUT_MS = 60_000
/** How long to wait for a kill point before killing any node instead. */
const POINT_TIMEOUT_MS = 8_000
const DOWN_MS = 1_200
const CATCH_UP_MS = 15_000

/** Makes one kill after the other, each followed by a recovery. Jobs are released at the same pace. */
export async function injectFaults(
  cluster: TortureCluster,
  { queue, jobs, kills, random }: { queue: PacedQueue; jobs: number; kills: number; random: Prng },
): Promise<void> {
  const { observed, runtime, nodes, balancer } = cluster
  for (const [index, kill] of planOf(cluster, kills, random.split('plan')).entries()) {
    await untilCaughtUp(queue)
    queue.releaseUpTo(Math.ceil(((index + 1) * jobs) / (kills + 1)))
    runtime.setFaults(callbackAndCallFaults(random))
    await systemClock.sleep(random.int(0, 700))
    if (random.chance(0.4)) await cutConnections(cluster, random)
    const fault = await makeKill(cluster, kill, random)
    const atMs = Date.now()
    observed.note(`killed ${fault.target} (${kill})`)
    // The system runs without the killed part for a while.
    await systemClock.sleep(random.int(0, DOWN_MS))
    await fault.recover()
    for (const { process } of nodes) await balancer.untilReady(process.name, READY_TIMEOUT_MS)
    observed.faults.push({ atMs, untilMs: Date.now(), what: kill, target: fault.target })
    observed.note(`recovered from ${kill}`)
  }
  queue.releaseUpTo(jobs)
}

/** The service gets time to accept the released jobs before the next kill. */
async function untilCaughtUp(queue: PacedQueue): Promise<void> {
  const deadlineMs = Date.now() + CATCH_UP_MS
  while (queue.backlog > 0 && Date.now() < deadlineMs) await systemClock.sleep(50)
}

/** From here on no fault is injected. */
export function stopFaults({ runtime, observed }: TortureCluster): void {
  runtime.setFaults(NO_RUNTIME_FAULTS)
  observed.note('the faults are over')
}

/** Every kind of kill once in random order, then again in another order, and so on. */
function planOf({ engine }: TortureCluster, kills: number, random: Prng): Kill[] {
  const kinds = engine === 'postgres' ? ON_POSTGRES : ON_SQLITE
  const plan: Kill[] = []
  while (plan.length < kills) plan.push(...shuffled(kinds, random))
  return plan.slice(0, kills)
}

interface InjectedFault {
  target: string
  recover: () => Promise<void>
}

async function makeKill(cluster: TortureCluster, kill: Kill, random: Prng): Promise<InjectedFault> {
  const { nodes, shared } = cluster
  if (kill === 'all_nodes') {
    return killNodes(
      cluster,
      nodes.map(({ process }) => process.name),
    )
  }
  if (kill === 'any_node') return killNodes(cluster, [random.pick(nodes).process.name])
  if (kill === 'postgres' || kill === 'redis') {
    const server = shared?.[kill]
    await server?.kill()
    return { target: kill, recover: async () => server?.restart() }
  }
  return killNodes(cluster, [await killAtPoint(cluster, kill, random)])
}

/** Returns the node that was killed at the point, or any node if none reached the point in time. */
async function killAtPoint(
  { killPoints, nodes, observed }: TortureCluster,
  point: KillPoint,
  random: Prng,
): Promise<string> {
  const killed = killPoints.arm(point)
  const over = new AbortController()
  const tooLate = systemClock.sleep(POINT_TIMEOUT_MS, over.signal).then(() => {
    if (!killPoints.disarm()) return killed
    observed.note(`no node passed ${point}`)
    return random.pick(nodes).process.name
  })
  const target = await Promise.race([killed, tooLate])
  over.abort()
  return target
}

function killNodes({ nodes }: TortureCluster, names: readonly string[]): InjectedFault {
  const killed = nodes.filter(({ process }) => names.includes(process.name))
  for (const { process } of killed) process.kill()
  const recover = async () => {
    for (const { process } of killed) {
      await process.gone()
      await process.start()
    }
  }
  return { target: names.join(' and '), recover }
}

/** Breaks the connections of one node to the database, or terminates all sessions in the database. */
async function cutConnections({ nodes, shared, observed }: TortureCluster, random: Prng): Promise<void> {
  const { process, database } = random.pick(nodes)
  if (!database || !shared) return
  const atMs = Date.now()
  if (random.chance(0.5)) {
    observed.connectionsCut += database.cut()
    observed.note(`cut ${process.name} off from postgres`)
  } else {
    const others = `select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'project-api'`
    observed.connectionsCut += Number(await psql(shared.databaseUrl, others))
    observed.note('terminated all sessions')
  }
  observed.faults.push({ atMs, untilMs: Date.now(), what: 'cut', target: 'postgres' })
}

function callbackAndCallFaults(random: Prng): Partial<RuntimeFaults> {
  return {
    pending_ms: 20,
    running_ms: 100,
    drop_callbacks: random.pick([0, 0.1, 0.3]),
    duplicate_callbacks: random.pick([0, 0.2, 0.5]),
    corrupt_callbacks: random.pick([0, 0, 0.05]),
    failing_callbacks: random.pick([0, 0.1]),
    late_callbacks_ms: random.pick([0, 0, 200, 1_500]),
    reorder_callbacks: random.chance(0.3),
    delivery: random.pick(['js', 'hosted']),
    lookup_latency_ms: random.pick([0, 0, 30]),
    lookup_failure: random.pick([0, 0, 0.05]),
    start_failure: random.pick([0, 0, 0.05]),
    lose_start_answers: random.pick([0, 0.05]),
    refuse_webhook: random.chance(0.1),
  }
}

function shuffled<T>(items: readonly T[], random: Prng): T[] {
  return items
    .map((item) => ({ item, at: random.fraction() }))
    .sort((a, b) => a.at - b.at)
    .map(({ item }) => item)
}
