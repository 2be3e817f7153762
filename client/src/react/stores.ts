import { ApiError, mayPass } from '../errors.ts'
import type { ClientContext } from '../jobs/job-requests.ts'
import { followLive } from '../jobs/live.ts'
import { addLivePart, EMPTY_TRANSCRIPT, type LiveTranscript } from '../jobs/live-transcript.ts'
import { waitForJob } from '../jobs/wait-for-job.ts'
import { type List, listOf } from '../resources/pages.ts'
import { hasEnded, type Job, type JobFilter, type JobSummary } from '../types.ts'
import type { StoreKind } from './store.ts'

export interface JobState<Found> {
  job: Found | undefined
  error: Error | undefined
  isLoading: boolean
}

export interface LiveState extends LiveTranscript {
  error: Error | undefined
}

export interface JobsState<Item> {
  jobs: readonly Item[]
  hasMore: boolean
  error: Error | undefined
  isLoading: boolean
}

/** The pause after all retries of a request have failed. A device that was offline recovers by itself. */
const PAUSE_AFTER_ERROR_MS = 15_000
/** Many events at once cause one reload. */
const RELOAD_EVERY_MS = 300

/** Repeats the work until it ends, the component unmounts, or a permanent error occurs. */
async function persist(
  { connection }: ClientContext,
  signal: AbortSignal,
  { work, onError }: { work: () => Promise<void>; onError: (error: Error) => void },
): Promise<void> {
  while (!signal.aborted) {
    try {
      return await work()
    } catch (error) {
      if (signal.aborted) return
      onError(error instanceof Error ? error : new ApiError({ code: 'network_error', message: String(error) }))
      // A user whose session is over may sign in again.
      if (!mayPass(error) && (error as ApiError).code !== 'unauthorized') return
      await connection.clock.sleep(PAUSE_AFTER_ERROR_MS, signal)
    }
  }
}

/** One job, kept up to date until it has ended. */
export function jobStore(context: ClientContext, id: string): StoreKind<JobState<Job>> {
  return {
    // Without an id there is nothing to load.
    initial: { job: undefined, error: undefined, isLoading: id !== '' },
    run: (store, signal) =>
      persist(context, signal, {
        work: async () => {
          const onRead = (job: Job) => store.set({ job, error: undefined, isLoading: false })
          await waitForJob(context, id, { until: ({ status }) => hasEnded(status), onRead, signal })
        },
        onError: (error) => store.set({ error, isLoading: false }),
      }),
  }
}

/** The output of a job as it appears, over all its runs. */
export function liveStore(context: ClientContext, id: string): StoreKind<LiveState> {
  return {
    initial: { ...EMPTY_TRANSCRIPT, error: undefined },
    run: (store, signal) => {
      let after: string | null = null
      let pausedRun: string | null | undefined
      const work = async () => {
        while (!signal.aborted) {
          for await (const part of followLive(context, id, { after, signal })) {
            after = part.cursor
            store.set({ ...addLivePart(store.get(), part), error: undefined })
          }
          if (hasEnded(store.get().status ?? 'processing')) return
          // Compares the run, not only the status: an answer and the next question may come between two reads.
          const until = ({ status, run_id }: Job) => status !== 'awaiting_input' || run_id !== pausedRun
          const { status, run_id } = await waitForJob(context, id, { until, signal })
          pausedRun = run_id
          if (status !== 'awaiting_input') store.set({ status: null })
        }
      }
      return persist(context, signal, { work, onError: (error) => store.set({ error }) })
    },
  }
}

/** The newest jobs, read again after every event about a job. */
export function jobsStore(context: ClientContext, filter: JobFilter): StoreKind<JobsState<JobSummary>> {
  const { connection, events } = context
  const list: List<JobSummary> = listOf(connection, '/jobs', { ...filter, fields: 'summary' } as JobFilter)
  return {
    initial: { jobs: [], hasMore: false, error: undefined, isLoading: true },
    run: async (store, signal) => {
      let wake = () => {}
      let isDue = true
      const reload = () => {
        isDue = true
        wake()
      }
      const leave = events.listen({
        onOpen: reload,
        onEvent: ({ type }) => (type === 'reset' || type.startsWith('job.')) && reload(),
      })
      signal.addEventListener('abort', reload, { once: true })
      const work = async () => {
        while (!signal.aborted) {
          isDue = false
          const { data, has_more } = await list.page(null, { signal })
          store.set({ jobs: data, hasMore: has_more, error: undefined, isLoading: false })
          await connection.clock.sleep(RELOAD_EVERY_MS, signal)
          if (!isDue && !signal.aborted) {
            await new Promise<void>((resolve) => {
              wake = resolve
            })
          }
        }
      }
      await persist(context, signal, { work, onError: (error) => store.set({ error, isLoading: false }) })
      leave()
    },
  }
}
