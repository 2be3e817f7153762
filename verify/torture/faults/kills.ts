import { systemClock } from '../../../src/core/clock.ts'
import { NO_RUNTIME_FAULTS, type RuntimeFaults } from '../../../src/sandbox/agent-runtime/faults.ts'
import { psql } from '../../../test/support/postgres.ts'
import type { Prng } from '../../sim/time/prng.ts'
import type { World } from '../cluster/cluster.ts'
import type { Flow } from '../workload/paced-queue.ts'
import { MARKS, type Mark } from './kill-points.ts'

/** any_node and all_nodes: at a moment of no meaning, which may be any. */
type Kill = Mark | 'any_node' | 'all_nodes' | 'postgres' | 'redis'

const ON_POSTGRES: readonly Kill[] = [...MARKS, 'any_node', 'any_node', 'all_nodes', 'postgres', 'redis']
const ON_SQLITE: readonly Kill[] = [...MARKS, 'any_node', 'any_node']
const READY_TIMEOUT_MS = 60_000
/** How long a marked moment is waited for before the kill comes without. */
const AMBUSH_MS = 8_000
const DOWN_MS = 1_200
const CATCH_UP_MS = 15_000

/** Kills what it was told to, one after the other, and lets everything recover; jobs are released at the same pace. */
export async function wreakHavoc(
  world: World,
  { flow, jobs, kills, random }: { flow: Flow; jobs: number; kills: number; random: Prng },
): Promise<void> {
  const { records, runtime, nodes, balancer } = world
  for (const [index, kill] of planOf(world, kills, random.split('plan')).entries()) {
    await untilCaughtUp(flow)
    flow.releaseUpTo(Math.ceil(((index + 1) * jobs) / (kills + 1)))
    runtime.setFaults(callbackAndCallFaults(random))
    await systemClock.sleep(random.int(0, 700))
    if (random.chance(0.4)) await cutConnections(world, random)
    const blow = await strike(world, kill, random)
    const atMs = Date.now()
    records.note(`killed ${blow.whom} (${kill})`)
    // The others manage alone for a while.
    await systemClock.sleep(random.int(0, DOWN_MS))
    await blow.mend()
    for (const { process } of nodes) await balancer.untilReady(process.name, READY_TIMEOUT_MS)
    records.faults.push({ atMs, untilMs: Date.now(), what: kill, whom: blow.whom })
    records.note(`recovered from ${kill}`)
  }
  flow.releaseUpTo(jobs)
}

/** A service that is killed as soon as it is up serves nobody: it gets to take in what came before the next blow falls. */
async function untilCaughtUp(flow: Flow): Promise<void> {
  const deadlineMs = Date.now() + CATCH_UP_MS
  while (flow.backlog > 0 && Date.now() < deadlineMs) await systemClock.sleep(50)
}

/** Nothing goes wrong from here on. */
export function calmDown({ runtime, records }: World): void {
  runtime.setFaults(NO_RUNTIME_FAULTS)
  records.note('the faults are over')
}

/** All kinds before any comes twice, in an order of their own each time. */
function planOf({ engine }: World, kills: number, random: Prng): Kill[] {
  const deck = engine === 'postgres' ? ON_POSTGRES : ON_SQLITE
  const plan: Kill[] = []
  while (plan.length < kills) plan.push(...shuffled(deck, random))
  return plan.slice(0, kills)
}

interface Blow {
  whom: string
  mend: () => Promise<void>
}

async function strike(world: World, kill: Kill, random: Prng): Promise<Blow> {
  const { nodes, shared } = world
  if (kill === 'all_nodes') {
    return bodies(
      world,
      nodes.map(({ process }) => process.name),
    )
  }
  if (kill === 'any_node') return bodies(world, [random.pick(nodes).process.name])
  if (kill === 'postgres' || kill === 'redis') {
    const server = shared?.[kill]
    await server?.kill()
    return { whom: kill, mend: async () => server?.restart() }
  }
  return bodies(world, [await ambush(world, kill, random)])
}

/** The name of the node that was killed at the mark, or at no moment in particular when the mark was never passed. */
async function ambush({ marks, nodes, records }: World, mark: Mark, random: Prng): Promise<string> {
  const struck = marks.arm(mark)
  const over = new AbortController()
  const tooLate = systemClock.sleep(AMBUSH_MS, over.signal).then(() => {
    if (!marks.disarm()) return struck
    records.note(`nothing passed ${mark}`)
    return random.pick(nodes).process.name
  })
  const whom = await Promise.race([struck, tooLate])
  over.abort()
  return whom
}

function bodies({ nodes }: World, names: readonly string[]): Blow {
  const killed = nodes.filter(({ process }) => names.includes(process.name))
  for (const { process } of killed) process.kill()
  const mend = async () => {
    for (const { process } of killed) {
      await process.gone()
      await process.start()
    }
  }
  return { whom: names.join(' and '), mend }
}

/** A network that breaks, or an administrator who throws everybody out. */
async function cutConnections({ nodes, shared, records }: World, random: Prng): Promise<void> {
  const { process, database } = random.pick(nodes)
  if (!database || !shared) return
  const atMs = Date.now()
  if (random.chance(0.5)) {
    records.connectionsCut += database.cut()
    records.note(`cut ${process.name} off from postgres`)
  } else {
    const others = `select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'project-api'`
    records.connectionsCut += Number(await psql(shared.databaseUrl, others))
    records.note('terminated all sessions')
  }
  records.faults.push({ atMs, untilMs: Date.now(), what: 'cut', whom: 'postgres' })
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

function shuffled<T>(deck: readonly T[], random: Prng): T[] {
  return deck
    .map((card) => ({ card, at: random.fraction() }))
    .sort((a, b) => a.at - b.at)
    .map(({ card }) => card)
}
