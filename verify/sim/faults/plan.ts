import type { Prng } from '../time/prng.ts'

export const NODE_NAMES = ['A', 'B'] as const
export type NodeName = (typeof NODE_NAMES)[number]

/** The points in a process where an armed fault triggers. */
export const FAULT_POINTS = [
  'read',
  'lease',
  'write',
  'written',
  'tx.begin',
  'tx.commit',
  'tx.committed',
  'fetch',
  'fetched',
  'send',
  'sent',
] as const
/** `cursor.moved`: after the commit of a transaction that moved the cursor of webhooks. No plan has it. */
export type FaultPoint = (typeof FAULT_POINTS)[number] | 'cursor.moved'

export type FaultEffect =
  | { kind: 'crash' }
  /** The operation is refused and has no effect. */
  | { kind: 'unavailable' }
  /** The operation has its effect, but its answer is lost. */
  | { kind: 'unknown' }
  | { kind: 'stall'; ms: number }
  /** The whole process stops, as with SIGSTOP. */
  | { kind: 'suspend'; ms: number }

export type Incident =
  | { kind: 'arm'; node: NodeName; point: FaultPoint; effect: FaultEffect }
  | { kind: 'kill'; node: NodeName }
  | { kind: 'restart'; node: NodeName }
  | { kind: 'suspend'; node: NodeName; ms: number }
  | { kind: 'database_down'; node: NodeName; ms: number }
  | { kind: 'runtime_down'; ms: number; hangs: boolean }
  | { kind: 'runtime_restart' }
  | { kind: 'identity_down'; ms: number }
  | { kind: 'push_refused'; ms: number }
  /** The database's clock is wrong by `byMs` for `ms`. */
  | { kind: 'clock_step'; byMs: number; ms: number }
  | { kind: 'forgery' }
  | { kind: 'replay' }
  | { kind: 'bad_token' }

export interface FaultRates {
  /** The share of callbacks with each fault. */
  callbacks: {
    drop: number
    double: number
    late: number
    veryLate: number
    corrupt: number
    early: number
    withoutJob: number
  }
  /** The share of runtime calls with each fault. */
  calls: { error: number; reset: number; lost: number; hang: number; garbage: number; stale: number; slow: number }
  /** The share of starts that are held back, and of those whose connection breaks although they are handled later. */
  starts: { held: number; broken: number }
  /** The share of pushes that fail or are slow. */
  pushes: number
}

/** Most seeds have a mix of faults. The others repeat situations that need several faults at once. */
export type Theme = 'anything' | 'crowds' | 'handovers' | 'pauses' | 'cancels' | 'foreign runs'

export interface SeedPlan {
  theme: Theme
  faultsMs: number
  /** How long no node is up after the time of faults; 0 in most seeds. */
  blackoutMs: number
  faultRates: FaultRates
  incidents: { atMs: number; incident: Incident }[]
  /** A node that no fault stops; null in most seeds. */
  steadyNode: NodeName | null
  /** The error of each node's clock. */
  skewMs: Record<NodeName, number>
  /** Whether the runtime is the hosted one or the JS server. */
  hosted: boolean
  refusesWebhooks: boolean
  jobs: number
  foreignRuns: number
  users: number
  /** How many jobs a node processes at once; null: the default. */
  slots: number | null
  /** Share of runs that the runtime deletes soon after their end. */
  forgets: number
  /** Share of the service's runs that a client follows, as if started elsewhere, when they are created. */
  contested: number
  /** Share of questions that another client of the runtime answers. */
  elsewhere: number
  /** Share of jobs whose conversation continues after them. */
  continued: number
  /** Share of jobs whose conversation continues while they are unfinished. */
  hurried: number
  /** How long a call of the runtime takes while no fault is active. */
  callMs: { min: number; max: number }
  calm: CalmPlan
  /** How long the runtime refuses all calls once the faults have stopped, while its callbacks arrive; 0 in most seeds. */
  refusedMs: number
}

/** The time after the faults, in which clients start more jobs and watch them. */
export interface CalmPlan {
  jobs: number
  /** Share of callbacks that are lost. */
  loss: number
  /** One of the jobs runs for up to an hour and a half, and no client reads it. */
  hasLongRun: boolean
}

export const NO_FAULTS: FaultRates = {
  callbacks: { drop: 0, double: 0, late: 0, veryLate: 0, corrupt: 0, early: 0, withoutJob: 0 },
  calls: { error: 0, reset: 0, lost: 0, hang: 0, garbage: 0, stale: 0, slow: 0 },
  starts: { held: 0, broken: 0 },
  pushes: 0,
}

/**
 * The faults of a seed. Each family of faults is either in the plan or not, so that one family does not always hide
 * another.
 */
export function planSeed(prng: Prng): SeedPlan {
  const has = (probability: number) => prng.chance(probability)
  const apart = prng.split('places and memory')
  const theme = prng.weighted<Theme>({
    anything: 50,
    crowds: 10,
    handovers: 12,
    pauses: 10,
    cancels: 8,
    'foreign runs': 10,
  })
  const starts = planStarts(prng.split('starts'))
  const talksMs = starts.broken > 0 ? LONG_TALK_MS : 0
  const faultsMs = prng.int(20, theme === 'handovers' ? 90 : 70) * 1_000 + talksMs
  const contested = isNarrow(theme) || !prng.split('contested').chance(0.15) ? 0 : 0.3
  return withClockStep(prng.split('clock'), {
    theme,
    faultsMs,
    blackoutMs: has(0.12) ? prng.pick([prng.int(60_000, 1_200_000), prng.int(1_200_000, 30 * 3_600_000)]) : 0,
    faultRates: { ...planFaultRates(prng, theme, contested), starts },
    incidents: planIncidents(prng, theme, faultsMs),
    steadyNode: null,
    // Up to half an hour: no guarantee depends on a node's clock.
    skewMs: { A: 0, B: has(0.5) ? prng.int(-1_000, 1_000) * 1_860 : 0 },
    hosted: has(0.5),
    refusesWebhooks: has(0.08),
    jobs: theme === 'crowds' ? prng.int(4, 8) : prng.int(1, 5),
    foreignRuns: theme === 'foreign runs' ? prng.int(2, 4) : has(0.3) ? 1 : 0,
    users: prng.int(1, 2),
    slots: theme === 'crowds' ? apart.int(1, 2) : null,
    forgets: isNarrow(theme) || !apart.chance(0.3) ? 0 : 0.5,
    contested,
    elsewhere: prng.split('elsewhere').chance(0.3) ? 0.5 : 0,
    continued: starts.broken > 0 ? 0.9 : 0.5,
    hurried: prng.split('hurried turns').chance(0.3) ? 0.6 : 0,
    ...planCalm(prng.split('calm')),
  })
}

const STEADY_NODE: NodeName = 'A'

/**
 * Sometimes the database's clock is stepped, for seconds or for minutes. One node runs all the time: a step that no node
 * sees cannot be told from a pause of all nodes.
 */
function withClockStep(prng: Prng, plan: SeedPlan): SeedPlan {
  if (plan.blackoutMs + plan.refusedMs > 0 || !prng.chance(0.12)) return plan
  const sizeMs = prng.pick([prng.int(2_000, 60_000), prng.int(60_000, 3 * 3_600_000)])
  const byMs = prng.chance(0.5) ? sizeMs : -sizeMs
  const ms = prng.chance(0.5) ? prng.int(1_000, 20_000) : prng.int(61_000, 150_000)
  const step: Incident = { kind: 'clock_step', byMs, ms }
  const incidents = plan.incidents.filter(({ incident }) => !('node' in incident && incident.node === STEADY_NODE))
  const steadyNode = STEADY_NODE
  return { ...plan, steadyNode, incidents: [...incidents, { atMs: prng.int(1_000, plan.faultsMs), incident: step }] }
}

const CALL_MS = {
  quick: { min: 2, max: 60 },
  slow: { min: 300, max: 1_600 },
  /** Two calls take longer than a reader waits. */
  verySlow: { min: 1_510, max: 1_700 },
}

function planCalm(prng: Prng): Pick<SeedPlan, 'callMs' | 'calm' | 'refusedMs'> {
  return {
    callMs: CALL_MS[prng.weighted({ quick: 60, slow: 20, verySlow: 20 })],
    calm: { jobs: prng.int(1, 3), loss: prng.chance(0.75) ? 0.8 : 0, hasLongRun: prng.chance(0.12) },
    // A job whose runtime cannot be asked is given up a day after its deadline.
    refusedMs: prng.chance(0.06) ? 27 * 3_600_000 : 0,
  }
}

function planFaultRates(prng: Prng, theme: Theme, contested: number): Omit<FaultRates, 'starts'> {
  const has = (probability: number) => prng.chance(probability)
  const callbacks = has(0.85)
    ? { drop: 0.3, double: 0.2, late: theme === 'pauses' ? 0.5 : 0.2, veryLate: 0.06, corrupt: 0.06, early: 0.05 }
    : NO_FAULTS.callbacks
  const withoutJob = !isNarrow(theme) && prng.split('names').chance(0.3) ? 0.8 : 0
  const level = theme === 'handovers' ? 2 : has(0.7) ? prng.pick([0.5, 1, 2]) : 0
  const calls = {
    error: 0.06 * level,
    reset: 0.02 * level,
    lost: 0.03 * level,
    hang: 0.03 * level,
    garbage: 0.02 * level,
    stale: prng.split('lag').pick([0.05, 0.4]) * level,
    // A slow call is still in flight when another node takes over the job.
    slow: theme === 'handovers' ? 0.5 : has(0.5) ? 0.1 : 0,
  }
  // Or it is still in flight when the client cancels, or when the run ends.
  if (theme === 'crowds') calls.slow = 0.75
  // The client that follows a run must be faster than the answer to its start.
  else if (withoutJob > 0 || contested > 0) calls.slow = 0.5
  return { callbacks: { ...callbacks, withoutJob }, calls, pushes: has(0.6) ? 0.3 : 0 }
}

/** A late run shows its effect in the turns after it. */
const LONG_TALK_MS = 120_000

function planStarts(prng: Prng): FaultRates['starts'] {
  if (!prng.chance(0.35)) return NO_FAULTS.starts
  return prng.pick([
    { held: 0.3, broken: 0 },
    { held: 0.1, broken: 0.4 },
    { held: 0, broken: 0.7 },
  ])
}

/** These themes need several rare faults at once, and so leave out others. */
function isNarrow(theme: Theme): boolean {
  return theme === 'handovers' || theme === 'pauses'
}

function planIncidents(prng: Prng, theme: Theme, faultsMs: number): SeedPlan['incidents'] {
  const stalls = theme === 'handovers' ? prng.int(3, 7) : theme === 'pauses' ? prng.int(0, 3) : 0
  const node = () => prng.pick(NODE_NAMES)
  const some = (probability: number, max: number) => (prng.chance(probability) ? prng.int(1, max) : 0)
  const make: [number, () => Incident][] = [
    [
      some(0.6, 4),
      () => ({ kind: 'arm', node: node(), point: prng.pick(FAULT_POINTS.slice(1)), effect: { kind: 'crash' } }),
    ],
    [some(0.2, 2), () => ({ kind: 'kill', node: node() })],
    [some(0.2, 1), () => ({ kind: 'restart', node: node() })],
    [some(0.15, 2), () => ({ kind: 'suspend', node: node(), ms: prng.int(1_000, 60_000) })],
    [some(0.5, 5), () => ({ kind: 'arm', node: node(), ...databaseFault(prng) })],
    [stalls, () => ({ kind: 'arm', node: node(), ...longStall(prng) })],
    [theme === 'handovers' ? prng.int(0, 2) : some(0.1, 1), () => ({ kind: 'arm', node: node(), ...longPause(prng) })],
    [some(0.15, 1), () => ({ kind: 'database_down', node: node(), ms: prng.int(500, 15_000) })],
    [some(0.25, 2), () => ({ kind: 'runtime_down', ms: prng.int(1_000, 40_000), hangs: prng.chance(0.4) })],
    [some(0.12, 1), () => ({ kind: 'runtime_restart' })],
    [some(0.2, 1), () => ({ kind: 'identity_down', ms: prng.int(1_000, 30_000) })],
    [some(0.15, 1), () => ({ kind: 'push_refused', ms: prng.int(5_000, 60_000) })],
    [some(0.7, 5), () => ({ kind: 'forgery' })],
    [some(0.2, 2), () => ({ kind: 'replay' })],
    [some(0.3, 2), () => ({ kind: 'bad_token' })],
  ]
  return make.flatMap(([count, incident]) =>
    Array.from({ length: count }, () => ({ atMs: prng.int(0, faultsMs), incident: incident() })),
  )
}

/** The longest stall of a lease or a heartbeat. */
export const MAX_SHORT_STALL_MS = 2_000

function databaseFault(prng: Prng): { point: FaultPoint; effect: FaultEffect } {
  const kind = prng.pick(['unavailable', 'unknown', 'stall'] as const)
  if (kind === 'unavailable') {
    return { point: prng.pick(['read', 'lease', 'write', 'tx.begin', 'tx.commit'] as const), effect: { kind } }
  }
  if (kind === 'unknown') return { point: prng.pick(['written', 'tx.committed'] as const), effect: { kind } }
  if (prng.chance(0.5)) return longStall(prng)
  return {
    point: prng.pick(['lease', 'write', 'tx.begin'] as const),
    effect: { kind, ms: prng.int(50, MAX_SHORT_STALL_MS) },
  }
}

function longPause(prng: Prng): { point: FaultPoint; effect: FaultEffect } {
  const point = prng.pick(['written', 'fetched', 'sent', 'tx.committed'] as const)
  return { point, effect: { kind: 'suspend', ms: prng.int(20_000, 70_000) } }
}

/** A little longer than a lease: another node has taken over the job of the stalled node, or is about to. */
function longStall(prng: Prng): { point: FaultPoint; effect: FaultEffect } {
  const ms = prng.chance(0.5) ? prng.int(23_000, 26_000) : prng.int(24_000, 45_000)
  return { point: prng.pick(['write', 'tx.begin', 'tx.begin'] as const), effect: { kind: 'stall', ms } }
}
