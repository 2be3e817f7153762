import type { IdGenerator } from '../../core/ids.ts'
import type { Transaction } from '../../db/database.ts'
import { insertExtraRuns, type JobRun } from '../job-store.ts'
import { appendTimeline } from './timeline-store.ts'

/** Notes further runs of locked jobs in their timelines, each once. Returns those that were not known before. */
export async function recordExtraRuns(
  tx: Transaction,
  runs: readonly JobRun[],
  { ids, atMs }: { ids: IdGenerator; atMs: number },
): Promise<JobRun[]> {
  if (runs.length === 0) return []
  const inserted = new Set(await insertExtraRuns(tx, runs))
  const added = runs.filter(({ run_id }) => inserted.delete(run_id))
  const entries = added.map(({ job_id, run_id }) => {
    const detail = JSON.stringify({ run_id })
    return { id: ids.next('tml'), job_id, at: atMs, kind: 'extra_run' as const, via: null, detail }
  })
  await appendTimeline(tx, entries)
  return added
}
