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
import { readTransitions, type Transition } from './change-triggers.ts'

/** All that the simulation knows at the end: what is stored, what was true, and what clients and runtime were answered. */
export interface Evidence {
  store: Database
  plan: SeedPlan
  runtime: SimRuntime
  network: Network
  callbacks: CallbackDelivery
  provider: SimPushProvider
  observed: ClientObservations
  streams: readonly { reader: StreamReader; subject: string | null; jobId: string | null }[]
  crashes: number
  suspensions: number
  databaseFaults: number
  faultsStoppedAtMs: number
  nowMs: number
  jobs: readonly JobRow[]
  transitionsByJob: ReadonlyMap<string, readonly Transition[]>
  violate: (invariant: string, what: string) => void
}

export async function gather(known: Omit<Evidence, 'jobs' | 'transitionsByJob'>): Promise<Evidence> {
  const jobs = await known.store.query<JobRow>(sql`select * from jobs order by id`)
  const transitionsByJob = Map.groupBy(await readTransitions(known.store), (transition) => transition.job_id)
  return { ...known, jobs, transitionsByJob }
}

export function isFinal(status: string): boolean {
  return status === 'completed' || status === 'failed' || status === 'cancelled'
}
