import type { Database } from '../../../src/db/database.ts'
import { sql } from '../../../src/db/sql.ts'
import type { JobRow } from '../../../src/jobs/job-row.ts'
import type { Promises } from '../clients/job-scenario.ts'
import type { StreamReader } from '../clients/stream-reader.ts'
import type { SeedPlan } from '../faults/plan.ts'
import type { CallbackSender } from '../outside/callbacks.ts'
import type { Network } from '../outside/network.ts'
import type { PushProvider } from '../outside/push-provider.ts'
import type { SimRuntime } from '../outside/runtime.ts'
import { type Move, movesOf } from './change-triggers.ts'

/** All that the simulation knows at the end: what is stored, what was true, and what everybody was told. */
export interface Evidence {
  store: Database
  plan: SeedPlan
  runtime: SimRuntime
  network: Network
  callbacks: CallbackSender
  provider: PushProvider
  promises: Promises
  streams: readonly { reader: StreamReader; subject: string | null; jobId: string | null }[]
  crashes: number
  suspensions: number
  databaseFaults: number
  faultsStoppedAtMs: number
  nowMs: number
  jobs: readonly JobRow[]
  movesByJob: ReadonlyMap<string, readonly Move[]>
  violate: (invariant: string, what: string) => void
}

export async function gather(known: Omit<Evidence, 'jobs' | 'movesByJob'>): Promise<Evidence> {
  const jobs = await known.store.query<JobRow>(sql`select * from jobs order by id`)
  const movesByJob = Map.groupBy(await movesOf(known.store), (move) => move.job_id)
  return { ...known, jobs, movesByJob }
}

export function isFinal(status: string): boolean {
  return status === 'completed' || status === 'failed' || status === 'cancelled'
}
