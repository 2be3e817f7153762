import { type Loop, startLoop } from '../../core/async/loop.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import { type Random, uuidFrom } from '../../core/random.ts'
import type { Database } from '../database.ts'
import { beat, NODE_LIFE_MS, noteStep, removeNode } from './node-store.ts'
import { type ClockReading, ServiceClock, STEP_MS, serviceTimeAt } from './service-clock.ts'

export const NODE_HEARTBEAT_MS = 2_500
/** The node gives up its leases this long before other nodes may take them. */
const MARGIN_MS = 1_000
/** The latest heartbeat of a node that runs is not older. */
export const NODE_FRESH_MS = NODE_HEARTBEAT_MS + 1_000

/** A starting node waits at most this often for another node to note a step. */
const MAX_WAITS = 10

/** The size of a step is taken from an answer that came within this time. */
const PRECISE_MS = 250
const MAX_IMPRECISE = 5

/** An older node notes a step in fewer heartbeats. */
const ELDER_BEATS = MAX_IMPRECISE + 1

type Reading = ClockReading & Awaited<ReturnType<typeof beat>>

/** Why a reading differs from the node's own time: the database's clock was stepped, or this node alone is wrong. */
type Cause = 'step' | 'own clock' | 'unknown yet'

interface NodeParts {
  id: string
  /** The clock of this machine. */
  own: Clock
  clock: ServiceClock
  db: Database
  log: Log
  startedAtElapsedMs: number
}

/**
 * This process among the nodes that share the database. Its heartbeat holds its leases, keeps its clock in step with the
 * other nodes', and notes the steps of the database's clock. `close` frees the leases at once.
 */
export class Node {
  readonly id: string
  readonly clock: ServiceClock
  readonly #own: Clock
  readonly #db: Database
  readonly #log: Log
  readonly #loop: Loop
  #aliveSinceMs: number
  #wroteAtElapsedMs: number
  #writeFailure: unknown = null
  #suspendedMs: number
  #impreciseReadings = 0
  /** The last noted step that this node did not follow at once. */
  #doubtedVersion = 0
  /** The heartbeats of an older node since this one first saw a small difference. */
  #elderBeats: { latestMs: number; count: number } | null = null

  private constructor(parts: NodeParts) {
    const { id, own, clock, db, log, startedAtElapsedMs } = parts
    this.id = id
    this.clock = clock
    this.#own = own
    this.#suspendedMs = own.suspendedMs?.() ?? 0
    this.#db = db
    this.#log = log
    this.#aliveSinceMs = clock.now()
    this.#wroteAtElapsedMs = startedAtElapsedMs
    this.#loop = startLoop({
      clock,
      everyMs: NODE_HEARTBEAT_MS,
      run: () => this.#beat(),
      onError: (error) => {
        this.#writeFailure = error
        log.warn({ err: error }, 'heartbeat.failed')
      },
    })
  }

  /** Rejects when the database cannot be reached. */
  static async start(context: {
    db: Database
    clock: Clock
    random: Random
    log: Log
    id?: string | undefined
  }): Promise<Node> {
    const { db, clock: own, random, log, id = uuidFrom(random) } = context
    // Until its clock is set, the node holds no lease.
    const readClock = () => readPrecisely(db, own, id)
    let reading = await readClock()
    let othersRun = true
    // Meanwhile, another node that runs notes a step of the database's clock.
    for (let waits = 0; mayMissStep(reading) && othersRun && waits < MAX_WAITS; waits++) {
      await own.sleep(NODE_FRESH_MS)
      const next = await readClock()
      othersRun = next.othersBeatAtMs !== reading.othersBeatAtMs
      reading = next
    }
    const clock = new ServiceClock(own, reading)
    // The database's clock was set back while no node ran.
    const ranUntilMs = Math.max(reading.ranUntilMs, reading.othersBeatAtMs ?? 0)
    if (ranUntilMs > clock.now() + STEP_MS) {
      const step = clock.stepTo(reading, ranUntilMs)
      const isNoted = await noteStep(db, step)
      // Another node that starts was first.
      clock.follow(isNoted ? { ...reading, step } : await readClock(), { mayJump: true })
      log.warn({ stepMs: Math.round(reading.databaseMs - ranUntilMs), offsetMs: clock.offsetMs }, 'clock.stepped')
    }
    const startedAtElapsedMs = own.elapsed()
    await beat(db, { id, nowMs: clock.now() })
    return new Node({ id, own, clock, db, log, startedAtElapsedMs })
  }

  /** False if the last heartbeat is so old that other nodes may have taken the leases of this node. */
  get isAlive(): boolean {
    return this.lastWriteAgeMs < NODE_LIFE_MS - MARGIN_MS
  }

  /** How long ago the node began to write its latest heartbeat that succeeded. */
  get lastWriteAgeMs(): number {
    return this.clock.elapsed() - this.#wroteAtElapsedMs
  }

  /** Why the latest heartbeat failed; null if none has failed since one was written. */
  get writeFailure(): unknown {
    return this.#writeFailure
  }

  /** Whether this node is sure to hold a lease that it took then: its heartbeats have not been too late since. */
  holdsLeaseOf(takenAtMs: number): boolean {
    return this.isAlive && this.#aliveSinceMs <= takenAtMs
  }

  async close(): Promise<void> {
    await this.#loop.stop()
    // If the database is unavailable, the row stays until it expires.
    await removeNode(this.#db, { id: this.id, nowMs: this.clock.now() }).catch(() => {})
  }

  async #beat(): Promise<void> {
    const reading = await read(this.#db, this.clock, { id: this.id, nowMs: this.clock.now() })
    const wasAlive = this.isAlive
    this.#wroteAtElapsedMs = reading.askedAtElapsedMs
    this.#writeFailure = null
    const isKept = await this.#keepTime(reading)
    if (!wasAlive) this.#aliveSinceMs = this.clock.now()
    // Otherwise the next heartbeat is due already, because the database was slow or another node has just noted a step.
    if (!isKept || this.clock.elapsed() - reading.askedAtElapsedMs >= NODE_HEARTBEAT_MS) this.#loop.wake()
  }

  /**
   * Follows the clock that all nodes share. If the database's clock was stepped, the service's time goes on, and the step
   * is noted for all nodes. False: this must be tried again.
   */
  async #keepTime(reading: Reading): Promise<boolean> {
    const { clock } = this
    const differenceMs = clock.differenceOf(reading)
    const wasSuspended = this.#wasSuspendedFor(differenceMs)
    if (Math.abs(differenceMs) <= STEP_MS) {
      this.#elderBeats = null
      this.#follow(reading)
      return true
    }
    const isSmall = Math.abs(differenceMs) <= NODE_LIFE_MS
    const cause = wasSuspended ? 'own clock' : isSmall ? this.#judgeSmall(reading) : judgeLarge(reading, clock.now())
    if (cause === 'unknown yet') return true
    if (cause === 'own clock') {
      if (reading.step.version === clock.version) this.#log.warn({ byMs: Math.round(differenceMs) }, 'clock.corrected')
      this.#elderBeats = null
      this.#follow(reading, { mayJump: true })
      return true
    }
    // A slow answer does not tell exactly when the database read its clock. If all are slow, one of them must do.
    const isPrecise = clock.elapsed() - reading.askedAtElapsedMs <= PRECISE_MS
    this.#impreciseReadings = isPrecise ? 0 : this.#impreciseReadings + 1
    if (!isPrecise && this.#impreciseReadings < MAX_IMPRECISE) return false
    const step = clock.stepTo(reading)
    if (!(await noteStep(this.#db, step))) return false
    this.#follow({ ...reading, step })
    return true
  }

  /**
   * Nodes can disagree by seconds: a node that starts right after a step cannot tell it from the age of the others'
   * heartbeats, and a node that was stopped approached a wrong clock for longer. So the first note of a step is right for
   * all nodes, and the node that joined first makes it, or finds that there was no step. The clock may already be right
   * again, which that node notes with its next heartbeat.
   */
  #judgeSmall(reading: Reading): Cause {
    const { step, elderBeatAtMs } = reading
    if (step.version > this.clock.version) {
      const isDoubtful = this.#doubtedVersion !== step.version && this.clock.fitsWithoutStep(reading)
      this.#doubtedVersion = step.version
      return isDoubtful ? 'unknown yet' : 'own clock'
    }
    if (elderBeatAtMs === null) return 'step'
    this.#elderBeats ??= { latestMs: elderBeatAtMs, count: 0 }
    if (elderBeatAtMs !== this.#elderBeats.latestMs) {
      this.#elderBeats = { latestMs: elderBeatAtMs, count: this.#elderBeats.count + 1 }
    }
    return this.#elderBeats.count < ELDER_BEATS ? 'unknown yet' : 'own clock'
  }

  /** Whether this machine was suspended for about this long since the last heartbeat. */
  #wasSuspendedFor(ms: number): boolean {
    const suspendedMs = this.#own.suspendedMs?.() ?? 0
    const sinceBeatMs = suspendedMs - this.#suspendedMs
    this.#suspendedMs = suspendedMs
    return sinceBeatMs > STEP_MS && Math.abs(sinceBeatMs - ms) <= 2 * STEP_MS
  }

  #follow(reading: Reading, options?: { mayJump: boolean }): void {
    const { clock } = this
    const isNew = reading.step.version !== clock.version
    const beforeMs = clock.offsetMs
    clock.follow(reading, options)
    const { offsetMs } = clock
    if (isNew) this.#log.warn({ stepMs: beforeMs - offsetMs, offsetMs }, 'clock.stepped')
  }
}

async function read(db: Database, clock: Clock, node: { id: string; nowMs: number | null }): Promise<Reading> {
  const askedAtElapsedMs = clock.elapsed()
  return { askedAtElapsedMs, ...(await beat(db, node)) }
}

/** For a node without a clock yet: a slow answer would put its clock behind those of the other nodes. */
async function readPrecisely(db: Database, own: Clock, id: string): Promise<Reading> {
  for (let tries = 1; ; tries++) {
    const reading = await read(db, own, { id, nowMs: null })
    if (own.elapsed() - reading.askedAtElapsedMs <= PRECISE_MS || tries >= MAX_IMPRECISE) return reading
  }
}

/** At its start a node cannot tell nodes that stopped long ago from a step of the database's clock that is not noted yet. */
function mayMissStep({ databaseMs, step, othersBeatAtMs }: Reading): boolean {
  if (othersBeatAtMs === null) return false
  const ageMs = serviceTimeAt(databaseMs, step) - othersBeatAtMs
  return ageMs > NODE_LIFE_MS || ageMs < -STEP_MS
}

/**
 * The clock of this node alone is behind if another node agrees with the reading, because the machine was suspended. By
 * this node's time, the heartbeat of the other one is in the future.
 */
function judgeLarge({ databaseMs, step, othersBeatAtMs }: Reading, ownMs: number): Cause {
  if (othersBeatAtMs === null) return 'step'
  const ageMs = serviceTimeAt(databaseMs, step) - othersBeatAtMs
  const isBehind = ownMs < othersBeatAtMs - STEP_MS && ageMs >= -STEP_MS && ageMs <= NODE_FRESH_MS
  return isBehind ? 'own clock' : 'step'
}
