import type { Breaker } from '../../core/async/breaker.ts'
import { type Loop, startLoop } from '../../core/async/loop.ts'
import type { JobContext } from '../job-context.ts'
import { findForStreams } from '../job-store.ts'
import type { JobWorker } from './job-worker.ts'

const EVERY_MS = 2_000
/** With a round every two seconds, a job that a client watches is checked at least every five seconds. */
const MAX_AGE_MS = 3_000
/** If a round takes longer, for example because the runtime is slow, clients may watch other jobs meanwhile. */
const MAX_ROUND_MS = 5_000

/** The jobs and the owners whose streams are open. */
export interface Interests {
  jobIds: ReadonlySet<string>
  subjects: ReadonlySet<string>
}

/**
 * Checks the jobs that clients watch on a stream, so that the stream shows the end within seconds even if the callback is
 * lost.
 */
export function startWatch(context: JobContext, worker: JobWorker, breaker: Breaker, interests: () => Interests): Loop {
  const { db, clock, log } = context
  return startLoop({
    clock,
    everyMs: EVERY_MS,
    run: async (signal) => {
      const { jobIds, subjects } = interests()
      if (breaker.state === 'open' || jobIds.size + subjects.size === 0) return
      const startedMs = clock.now()
      const checkedBeforeMs = startedMs - MAX_AGE_MS
      const ids = await findForStreams(db, { jobIds: [...jobIds], subjects: [...subjects], checkedBeforeMs })
      // After the runtime was down, one check asks whether it is back. Without it, a node that nothing else checks jobs on
      // would never ask.
      const checked = breaker.state === 'probing' ? ids.slice(0, 1) : ids
      for (const id of checked) {
        await worker.checkForStream(id, signal)
        // The next round begins with the jobs that were checked least recently.
        if (signal.aborted || clock.now() - startedMs >= MAX_ROUND_MS) return
      }
    },
    onError: (error) => log.warn({ err: error }, 'watch.failed'),
  })
}
