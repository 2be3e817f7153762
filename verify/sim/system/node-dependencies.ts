import type { Clock } from '../../../src/core/clock.ts'
import type { Log } from '../../../src/core/log.ts'
import type { Database } from '../../../src/db/database.ts'
import { NODE_FRESH_MS, NODE_HEARTBEAT_MS } from '../../../src/db/nodes/node.ts'
import type { Dependencies } from '../../../src/services.ts'
import type { Network } from '../outside/network.ts'
import type { SimPushProvider } from '../outside/push-provider.ts'
import type { WebhookReceivers } from '../outside/webhook-receivers.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import { FaultInjectingDatabase } from './fault-injecting-database.ts'
import type { SimNode } from './node.ts'
import { never, type ProcessInstance } from './process-instance.ts'
import { JOB_TYPES } from './sim-config.ts'

/** A node's row expires after four heartbeats. */
const MAX_HEARTBEAT_STRETCH = 3

export interface NodeEnvironment {
  time: VirtualTime
  trace: Trace
  network: Network
  provider: SimPushProvider
  receivers: WebhookReceivers
  prng: Prng
  store: Database
  node: SimNode
  instance: ProcessInstance
  /** The error of this process's clock. */
  skewMs: number
  /** How many jobs it processes at once; null: the default. */
  slots: number | null
  /** The factor by which every sleep is too long now. */
  stretch: () => number
  /** Called when a transaction takes its locks in a wrong order. */
  onWrongOrder: (what: string) => void
}

/** The dependencies of one process instance. They stop working when it ends. */
export function dependenciesOf(environment: NodeEnvironment): Dependencies {
  const { time, network, provider, receivers, prng, store, node, instance, slots, onWrongOrder } = environment
  const clock = clockOf(environment)
  return {
    clock,
    random: prng.split(`process ${instance.name}`),
    log: logOf(environment),
    fetch: network.fetchFor(node, instance),
    db: new FaultInjectingDatabase({
      store,
      instance,
      time,
      faults: node.faults,
      isDown: () => node.databaseDown,
      isLocked: lockedJobs(environment),
      onWrongOrder,
    }),
    jobTypes: JOB_TYPES,
    pushSenders: [provider.senderFor(node, instance, clock)],
    webhookPoster: receivers.posterFor(node, instance),
    ...(slots === null ? {} : { jobSlots: slots }),
  }
}

/** In some seeds, callbacks often find their job locked by another transaction. */
function lockedJobs({ prng, trace, instance }: NodeEnvironment): (jobId: string) => boolean {
  if (!prng.split('locked jobs').chance(0.3)) return () => false
  const random = prng.split(`locked jobs ${instance.name}`)
  return (jobId) => {
    const isLocked = random.chance(0.4)
    if (isLocked) trace.fault('job_locked', jobId)
    return isLocked
  }
}

function clockOf({ time, instance, skewMs, stretch }: NodeEnvironment): Clock {
  const { now, sleep } = time.clock
  return {
    now: () => now() + skewMs,
    calendar: () => now() + skewMs,
    elapsed: now,
    sleep: async (ms, signal) => {
      if (!instance.alive) return never()
      await sleep(ms * stretchOf(ms, stretch()), signal)
      return instance.untilAwake()
    },
  }
}

/** From this stretch on, heartbeats are so rare that leases expire. */
export const LOSES_LEASES = 1_000

/** Limits the stretch of heartbeats: if they were too rare, held leases would expire. */
function stretchOf(ms: number, stretch: number): number {
  // The pause of a start that is in doubt about the database's clock.
  if (ms === NODE_FRESH_MS) return 1
  return ms === NODE_HEARTBEAT_MS && stretch < LOSES_LEASES ? Math.min(stretch, MAX_HEARTBEAT_STRETCH) : stretch
}

/** Leaves out fields that depend on the machine, such as the duration of a request. */
function logOf({ trace, instance }: NodeEnvironment): Log {
  const write = (fields: object, event: string) => {
    if (event === 'request.completed' || !instance.alive) return
    const { err, jobId } = fields as { err?: unknown; jobId?: string }
    const reason = err instanceof Error ? `: ${err.message}` : ''
    trace.note(instance.name, `${event}${jobId === undefined ? '' : ` ${jobId}`}${reason}`)
  }
  return { debug: () => {}, info: write, warn: write, error: write }
}
