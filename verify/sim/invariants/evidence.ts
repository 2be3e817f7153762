import type { Database } from '../../../src/db/database.ts'
import { sql } from '../../../src/db/sql.ts'
import type { JobRow } from '../../../src/jobs/job-row.ts'
import type { ClientObservations } from '../clients/job-scenario.ts'
import type { StreamReader } from '../clients/stream-reader.ts'
import type { SeedPlan } from '../faults/plan.ts'
import type { CallbackDelivery } from '../outside/callbacks.ts'
import type { Network } from '../outside/network.ts'
import type { SimPushProvider } from '../outside/push-provider.ts'
import type { SimRuntime } from '../outside/runtime.ts'
import type { WebhookReceivers } from '../outside/webhook-receivers.ts'
import { readDeletedJobs, readTransitions, type Transition } from './change-triggers.ts'

/**
 * The knowledge of the simulation at the end: the stored rows, the truth of the runtime, and the answers that clients and
 * the runtime got.
 */
export interface Evidence {
  store: Database
  plan: SeedPlan
  runtime: SimRuntime
  network: Network
  /** When two processes called the runtime about one thread at once. */
  overlaps: readonly { thread: string; isLook: boolean; atMs: number }[]
  callbacks: CallbackDelivery
  provider: SimPushProvider
  receivers: WebhookReceivers
  observed: ClientObservations
  streams: readonly { reader: StreamReader; subject: string | null; jobId: string | null }[]
  crashes: number
  suspensions: number
  /** When the last suspension of a node ended; 0 without one. */
  suspendedUntilMs: number
  databaseFaults: number
  faultsStoppedAtMs: number
  /** When the loops of the nodes were slowed down. */
  calmEndedAtMs: number
  /** When the day ended in which the nodes' loops slept for hours; 0 before it. */
  slowUntilMs: number
  /** Whether the runtime refused all calls at that time. */
  wasRefused: (atMs: number) => boolean
  nowMs: number
  /** Without the erased ones, which have lost their documents and records. */
  jobs: readonly JobRow[]
  erased: readonly JobRow[]
  /** The transitions of the jobs that were neither deleted nor erased. */
  transitionsByJob: ReadonlyMap<string, readonly Transition[]>
  deleted: ReadonlySet<string>
  /** The jobs that were deleted or erased. */
  gone: ReadonlySet<string>
  violate: (invariant: string, what: string) => void
}

type Known = Omit<Evidence, 'jobs' | 'erased' | 'transitionsByJob' | 'deleted' | 'gone'>

export async function gather(known: Known): Promise<Evidence> {
  const all = await known.store.query<JobRow>(
    sql`select jobs.*, waits_on from jobs left join job_checks on job_id = id order by id`,
  )
  const jobs = all.filter(({ erased_at }) => erased_at === null)
  const erased = all.filter(({ erased_at }) => erased_at !== null)
  const deleted = await readDeletedJobs(known.store)
  const gone = new Set([...deleted, ...erased.map(({ id }) => id)])
  const transitions = (await readTransitions(known.store)).filter(({ job_id }) => !gone.has(job_id))
  const transitionsByJob = Map.groupBy(transitions, (transition) => transition.job_id)
  return { ...known, jobs, erased, transitionsByJob, deleted, gone }
}
