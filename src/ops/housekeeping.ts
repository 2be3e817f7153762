import { type Loop, startLoop } from '../core/async/loop.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'

const EVERY_MS = 10 * 60_000
/** A process that restarts every few minutes also deletes. */
const FIRST_AFTER_MS = 30_000

export interface HousekeepingTask {
  /** Named in the log when the task fails. */
  name: string
  trim(signal: AbortSignal, nowMs: number): Promise<void>
}

/** Deletes expired rows soon after the start and then every ten minutes, one task after the other. A task that fails does not stop the next one. */
export function startHousekeeping(
  tasks: readonly HousekeepingTask[],
  { clock, log }: { clock: Clock; log: Log },
): Loop {
  const warn = (error: unknown, task?: string) => log.warn({ err: error, task }, 'housekeeping.failed')
  return startLoop({
    clock,
    everyMs: EVERY_MS,
    firstAfterMs: FIRST_AFTER_MS,
    run: async (signal) => {
      const nowMs = clock.now()
      for (const { name, trim } of tasks) await trim(signal, nowMs).catch((error: unknown) => warn(error, name))
    },
    onError: warn,
  })
}

/** Repeats a deletion until it reports that no expired rows are left. */
export async function trimInBatches(signal: AbortSignal, deleteBatch: () => Promise<boolean>): Promise<void> {
  // On SQLite a batch never waits. Yielding lets requests run before the next batch.
  while (!signal.aborted && (await deleteBatch())) await new Promise(setImmediate)
}
