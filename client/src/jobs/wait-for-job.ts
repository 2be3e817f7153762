import { reasonOf } from '../http/abort.ts'
import { isOutage } from '../http/outage.ts'
import type { Job } from '../types.ts'
import { type ClientContext, pathOf, requestJob } from './job-requests.ts'

/** The pause between two reads while the stream is open. The reads are a backup for a lost event. */
const READ_EVERY_MS = 10_000
const READ_JITTER_MS = 5_000
/** Without a stream the first reads come sooner, because many jobs are short. */
const POLL_FIRST_MS = 1_000
const POLL_SLOWEST_MS = 5_000

export interface WaitOptions {
  until: (job: Job) => boolean
  /** True if the job was read before. The address is then right, so the wait outlasts every outage. */
  isKnown?: boolean
  signal?: AbortSignal | undefined
  /** Called with the job after each read. */
  onRead?: (job: Job) => void
}

/**
 * Resolves when the condition holds. Reads the job after each event, and every 10 to 15 s in case the stream is broken. So
 * a lost event or an outage only costs time.
 */
export async function waitForJob(
  context: ClientContext,
  id: string,
  { until, isKnown = false, signal, onRead }: WaitOptions,
): Promise<Job> {
  const { connection, events } = context
  const { clock, random } = connection
  let isDue = true
  let nap = new AbortController()
  const wake = () => {
    isDue = true
    nap.abort()
  }
  signal?.addEventListener('abort', wake, { once: true })
  const leave = events.listen({
    onOpen: wake,
    onEvent: (event) => {
      const isAboutJob = 'job_id' in event.data && event.data.job_id === id
      if (isAboutJob || event.type === 'reset') wake()
    },
  })
  try {
    for (let reads = 0; ; reads++) {
      isDue = false
      nap = new AbortController()
      const job = await requestJob(context, 'GET', pathOf(id), { signal }).catch((error: unknown) => {
        if (signal?.aborted || !isKnown || !isOutage(error)) throw error
      })
      if (job) {
        isKnown = true
        onRead?.(job)
        if (until(job)) return job
      }
      const pollMs = Math.min(POLL_FIRST_MS * 1.5 ** reads, POLL_SLOWEST_MS)
      const pauseMs = connection.streams ? READ_EVERY_MS + random() * READ_JITTER_MS : pollMs
      if (!isDue) await clock.sleep(pauseMs, nap.signal)
      if (signal?.aborted) throw reasonOf(signal)
    }
  } finally {
    signal?.removeEventListener('abort', wake)
    leave()
  }
}
