import type { Breaker } from '../../core/async/breaker.ts'
import { type Loop, startLoop } from '../../core/async/loop.ts'
import { silentMeter } from '../../core/metrics/meter.ts'
import type { JobContext } from '../job-context.ts'
import { findPendingWork } from '../leases/pending-work.ts'
import { givePlaces, type LimitedType, limitedTypes, releaseUnlimited } from '../leases/places-store.ts'
import { beginTurns } from '../leases/turns.ts'
import type { JobWorker } from './job-worker.ts'

const EVERY_MS = 1_000

/**
 * Checks the jobs that no client reads: those whose check is due, one for each free slot, on every node. While the circuit
 * breaker probes a failing runtime, only one job is checked and the rest stay due. While it is open, and without a runtime,
 * the sweep still reminds owners of their questions and ends questions that were not answered in time. Without a runtime,
 * it also ends jobs at their deadlines.
 */
export function startSweep(context: JobContext, worker: JobWorker, breaker: Breaker): Loop {
  const { clock, log, meter = silentMeter } = context
  const types = limitedTypes(context.types)
  const places = new Places(context, types)
  const names = types.map(({ name }) => name)
  const findWork = () =>
    findPendingWork(context.db, { nowMs: clock.now(), calendarMs: clock.calendar(), limitedTypes: names })
  let turns: Awaited<ReturnType<typeof beginTurns>> = { areWanted: false, last: null, haveBegun: false }
  const loop = startLoop({
    clock,
    everyMs: EVERY_MS,
    run: async () => {
      await places.releaseUnlimited()
      let work = await findWork()
      turns = await beginTurns(context, turns.last, work)
      // A turn that began is due now, or waits for a place.
      if (turns.haveBegun) work = await findWork()
      const areGiven = await places.give(work.queuedTypes)
      const onlyQuestions = breaker.state === 'open'
      const limit = breaker.state === 'probing' ? 1 : Number.POSITIVE_INFINITY
      const areDue = onlyQuestions ? work.hasQuestions : work.hasDue || areGiven
      const taken = areDue ? await worker.takeDue(limit, { onlyQuestions }) : 0
      meter.count('sweep_rounds_total', { result: onlyQuestions ? 'skipped' : 'looked' })
      meter.count('sweep_jobs_taken_total', undefined, taken)
    },
    onError: (error) => {
      meter.count('sweep_rounds_total', { result: 'failed' })
      log.warn({ err: error }, 'sweep.failed')
    },
  })
  // When a job ends, its place becomes free for a waiting job, and the next turn of its conversation begins.
  const unlisten = context.db.listen((topic) => {
    if (topic === 'events' && (places.areWanted || turns.areWanted)) loop.wake()
  })
  return {
    wake: () => loop.wake(),
    stop: () => {
      unlisten()
      return loop.stop()
    },
  }
}

/** Gives free places to waiting jobs of the types that limit their active runs. */
class Places {
  readonly #context: JobContext
  readonly #types: readonly LimitedType[]
  /** For each type, the last owner that had its turn on this node. */
  readonly #lastOwners = new Map<string, string | null>()
  #isFirst = true
  #areWanted = false

  constructor(context: JobContext, types: readonly LimitedType[]) {
    this.#context = context
    this.#types = types
  }

  /** Whether jobs wait for a place. */
  get areWanted(): boolean {
    return this.#areWanted
  }

  /** In the first round, and in the next ones as long as locked jobs are left. */
  async releaseUnlimited(): Promise<void> {
    const { db, clock } = this.#context
    if (this.#isFirst) this.#isFirst = await releaseUnlimited(db, this.#types, clock.now())
  }

  /** `queued`: the types of which jobs wait. Returns whether a job may have got a place. */
  async give(queued: ReadonlySet<string>): Promise<boolean> {
    const { db, clock } = this.#context
    const types = this.#types.filter(({ name }) => queued.has(name))
    let areWanted = false
    for (const type of types) {
      const after = this.#lastOwners.get(type.name) ?? null
      const given = await givePlaces(db, type, { nowMs: clock.now(), after })
      this.#lastOwners.set(type.name, given.last)
      areWanted ||= given.areWanted
    }
    this.#areWanted = areWanted
    return types.length > 0
  }
}
