import { useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore } from 'react'
import type { ApiClient } from '../client.ts'
import type { JobHandle } from '../jobs/job-handle.ts'
import type { StartOptions } from '../jobs/job-requests.ts'
import type { ApiEvent, ConfigurableOf, InputOf, Job, JobFilter, JobSummary, TypeName } from '../types.ts'
import { type StoreKind, sharedStore } from './store.ts'
import { type JobState, type JobsState, jobStore, jobsStore, type LiveState, liveStore } from './stores.ts'

/** The state of a shared store. On a server, in the first render of a page and without a key, it is the initial state. */
function useShared<State>(api: object, key: string | null, kindOf: () => StoreKind<State>): State {
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key stands for everything that the kind is made of.
  const { subscribe, get, initial } = useMemo(() => sharedStore(api, key, kindOf()), [api, key])
  return useSyncExternalStore(subscribe, get, () => initial)
}

/** A job, up to date until it has ended. Components that show the same job share its reads. */
export function useJob<Types, Name extends TypeName<Types> = TypeName<Types>>(
  api: ApiClient<Types>,
  id: string | null | undefined,
): JobState<Job<Types, Name>> {
  const state = useShared(api, id ? `job ${id}` : null, () => jobStore(api.context, id ?? ''))
  return state as unknown as JobState<Job<Types, Name>>
}

/** The live output of a job's run. */
export function useLive<Types>(api: ApiClient<Types>, id: string | null | undefined): LiveState {
  return useShared(api, id ? `live ${id}` : null, () => liveStore(api.context, id ?? ''))
}

/** The newest jobs that fit the filter, without input and output, kept up to date. */
export function useJobs<Types>(api: ApiClient<Types>, filter: JobFilter = {}): JobsState<JobSummary<Types>> {
  const state = useShared(api, `jobs ${JSON.stringify(filter)}`, () => jobsStore(api.context, filter))
  return state as unknown as JobsState<JobSummary<Types>>
}

export interface StartState<Types, Name extends TypeName<Types>> {
  /** Starts a job. Rejects like `api.jobs.start`; `error` has the same error. */
  start(
    input: InputOf<Types, Name>,
    options?: StartOptions<ConfigurableOf<Types, Name>>,
  ): Promise<JobHandle<Types, Name>>
  /** The job that was started last. */
  job: JobHandle<Types, Name> | undefined
  /** Like `isPending`, of the newest call. */
  error: Error | undefined
  isPending: boolean
}

export function useStartJob<Types, Name extends TypeName<Types>>(
  api: ApiClient<Types>,
  type: Name,
): StartState<Types, Name> {
  const [state, setState] = useState<Omit<StartState<Types, Name>, 'start'>>({
    job: undefined,
    error: undefined,
    isPending: false,
  })
  const calls = useRef(0)
  const start = useCallback(
    async (input: InputOf<Types, Name>, options?: StartOptions<ConfigurableOf<Types, Name>>) => {
      const call = ++calls.current
      // The newest call alone sets the state: an earlier one may end later.
      const show = (change: Partial<typeof state>) => {
        if (call === calls.current) setState((before) => ({ ...before, ...change }))
      }
      show({ error: undefined, isPending: true })
      try {
        const job = await api.jobs.start(type, input, options)
        show({ job, isPending: false })
        return job
      } catch (error) {
        show({ error: error as Error, isPending: false })
        throw error
      }
    },
    [api, type],
  )
  return { start, ...state }
}

/**
 * Calls the function for each event of the caller, while the component is mounted. If the service refuses the stream,
 * `onError` is called, and the stream is opened again after a pause.
 */
export function useEvents<Types>(
  api: ApiClient<Types>,
  onEvent: (event: ApiEvent<Types>) => void,
  onError?: (error: unknown) => void,
): void {
  const latest = useRef({ onEvent, onError })
  useEffect(() => {
    latest.current = { onEvent, onError }
  })
  useEffect(
    () =>
      api.context.events.listen({
        onEvent: (event) => latest.current.onEvent(event as ApiEvent<Types>),
        onError: (error) => latest.current.onError?.(error),
      }),
    [api],
  )
}
