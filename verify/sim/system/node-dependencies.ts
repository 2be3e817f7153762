import type { Clock } from '../../../src/core/clock.ts'
import type { Log } from '../../../src/core/log.ts'
import type { Database } from '../../../src/db/database.ts'
import type { Dependencies } from '../../../src/services.ts'
import type { Network } from '../outside/network.ts'
import type { PushProvider } from '../outside/push-provider.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import { MortalDatabase } from './fault-injecting-database.ts'
import type { SimNode } from './node.ts'
import { type Life, never } from './process-instance.ts'
import { JOB_TYPES } from './sim-config.ts'

export interface Outside {
  time: VirtualTime
  trace: Trace
  network: Network
  provider: PushProvider
  prng: Prng
  store: Database
  node: SimNode
  life: Life
  /** How far this process's clock is off. */
  skewMs: number
  /** How many jobs it looks after at once; null: as many as it likes. */
  places: number | null
  /** By how much every sleep is too long at present. */
  stretch: () => number
}

/** All that one run of a process gets from outside; it ends with that run. */
export function surround(outside: Outside): Dependencies {
  const { time, network, provider, prng, store, node, life, places } = outside
  const clock = clockOf(outside)
  return {
    clock,
    random: prng.split(`process ${life.name}`),
    log: logOf(outside),
    fetch: network.fetchFor(node, life),
    db: new MortalDatabase({ store, life, time, faults: node.faults, isDown: () => node.databaseDown }),
    jobTypes: JOB_TYPES,
    pushSenders: [provider.senderFor(node, life, clock)],
    ...(places === null ? {} : { jobSlots: places }),
  }
}

function clockOf({ time, life, skewMs, stretch }: Outside): Clock {
  const { now, sleep } = time.clock
  return {
    now: () => now() + skewMs,
    sleep: async (ms, signal) => {
      if (!life.alive) return never()
      await sleep(ms * stretch(), signal)
      return life.awake()
    },
  }
}

/** Without anything the machine decides, such as how long a request took. */
function logOf({ trace, life }: Outside): Log {
  const write = (fields: object, event: string) => {
    if (event === 'request.completed' || !life.alive) return
    const { err, jobId } = fields as { err?: unknown; jobId?: string }
    const reason = err instanceof Error ? `: ${err.message}` : ''
    trace.note(life.name, `${event}${jobId === undefined ? '' : ` ${jobId}`}${reason}`)
  }
  return { debug: () => {}, info: write, warn: write, error: write }
}
