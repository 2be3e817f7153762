import type { Breaker } from '../../core/async/breaker.ts'
import { type Loop, startLoop } from '../../core/async/loop.ts'
import { silentMeter } from '../../core/metrics/meter.ts'
import type { JobContext } from '../job-context.ts'
import type { JobWorker } from './job-worker.ts'

const EVERY_MS = 1_000
const BATCH = 20

/**
 * Checks the jobs that no client reads: those whose check is due, a bounded number at a time, on every node. While the
 * circuit breaker probes a failing runtime, only one job is checked and the rest stay due. Without a runtime, the sweep
 * still ends jobs at their deadlines.
 */
export function startSweep(context: JobContext, worker: JobWorker, breaker: Breaker): Loop {
  const { clock, log, meter = silentMeter } = context
  const loop = startLoop({
    clock,
    everyMs: EVERY_MS,
    run: async () => {
      if (breaker.state === 'open') return meter.count('sweep_rounds_total', { result: 'skipped' })
      const taken = await worker.takeDue(breaker.state === 'probing' ? 1 : BATCH)
      meter.count('sweep_rounds_total', { result: 'looked' })
      meter.count('sweep_jobs_taken_total', undefined, taken)
      if (taken === BATCH) loop.wake()
    },
    onError: (error) => {
      meter.count('sweep_rounds_total', { result: 'failed' })
      log.warn({ err: error }, 'sweep.failed')
    },
  })
  return loop
}
