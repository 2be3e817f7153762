import type { CallbackAuthenticity } from '../auth/callback-authenticity.ts'
import { Breaker } from '../core/async/breaker.ts'
import { silentMeter } from '../core/metrics/meter.ts'
import { noTracer, traceHeaders } from '../core/tracing.ts'
import type { Node } from '../db/nodes/node.ts'
import { RuntimeClient } from '../runtime/runtime-client.ts'
import { Jobs } from './actions/jobs.ts'
import { CallbackIntake } from './callbacks/callback-intake.ts'
import type { RuntimeIdentity } from './identity-store.ts'
import type { JobContext } from './job-context.ts'
import { identifyBy } from './runs/caller.ts'
import { JobWorker } from './worker/job-worker.ts'
import { Reconciler } from './worker/reconcile.ts'
import { startSweep } from './worker/sweep.ts'
import { type Interests, startWatch } from './worker/watch.ts'

const BREAKER = { threshold: 5, openMs: 2_000, maxOpenMs: 30_000 }

interface JobServicesOptions extends Omit<JobContext, 'runtime' | 'callbackUrl' | 'identify'> {
  fetch: typeof fetch
  runtime: { url: string; apiKey: string | null; timeoutMs: number } | null
  runtimeIdentity: RuntimeIdentity
  publicUrl: string | null
  maxUnfinishedJobs: number | null
  callbackAuthenticity: CallbackAuthenticity
  /** Holds the leases of this process. */
  node: Pick<Node, 'id' | 'isAlive' | 'holdsLeaseOf'>
  /** Whether this process runs the sweep; default: true. */
  sweeps?: boolean
  /** How many jobs this process works on at once. */
  slots?: number | undefined
  /** What the open streams of this process follow. Without it, no job is watched. */
  interests?: () => Interests
}

export type JobServices = ReturnType<typeof createJobServices>

/** Wires everything that starts, follows and ends jobs, and starts the sweep. */
export function createJobServices(options: JobServicesOptions) {
  const {
    fetch,
    runtime,
    runtimeIdentity,
    publicUrl,
    maxUnfinishedJobs,
    callbackAuthenticity,
    node,
    sweeps = true,
    slots,
    interests,
    ...shared
  } = options
  const { clock, meter = silentMeter, tracer = noTracer } = shared
  const runtimeBreaker = new Breaker({ clock, ...BREAKER })
  const jobContext: JobContext = {
    ...shared,
    runtime: runtime && new RuntimeClient({ ...runtime, fetch, clock, breaker: runtimeBreaker, meter, tracer }),
    identify: identifyBy(runtimeIdentity),
    callbackUrl: ({ id, type, start_attempts: attempt }) =>
      publicUrl === null
        ? null
        : callbackUrl(publicUrl, { id, type, attempt, context: tracer.current }, callbackAuthenticity),
  }
  const jobWorker = new JobWorker(jobContext, { node, runtimeTimeoutMs: runtime?.timeoutMs ?? 0, slots })
  jobWorker.onSlotsFree = () => sweep?.wake()
  const reconciler = new Reconciler(jobContext, jobWorker)
  const intake = new CallbackIntake(jobContext, jobWorker)
  const sweep = sweeps ? startSweep(jobContext, jobWorker, runtimeBreaker) : null
  const watch = interests && runtime ? startWatch(jobContext, jobWorker, runtimeBreaker, interests) : null
  return {
    jobContext,
    jobs: new Jobs(jobContext, jobWorker, {
      reconciler,
      maxUnfinishedJobs,
      wakeSweep: () => sweep?.wake(),
    }),
    jobWorker,
    reconciler,
    intake,
    runtimeBreaker,
    close: async () => {
      await intake.drain()
      await sweep?.stop()
      // A round of the watch may wait for checks, which only the worker can end.
      await Promise.all([watch?.stop(), jobWorker.close()])
    },
  }
}

function callbackUrl(
  publicUrl: string,
  { id, type, attempt, context }: { id: string; type: string; attempt: number; context: string | null },
  authenticity: CallbackAuthenticity,
): string {
  const url = new URL(`${publicUrl}/webhooks/${type === 'agent' ? 'agent' : `jobs/${type}`}`)
  url.searchParams.set('job_id', id)
  const token = authenticity.tokenFor(id)
  if (token !== null) url.searchParams.set('token', token)
  if (attempt > 1) url.searchParams.set('attempt', String(attempt))
  const { traceparent } = traceHeaders(context)
  if (traceparent !== undefined) url.searchParams.set('traceparent', traceparent)
  return url.href
}
