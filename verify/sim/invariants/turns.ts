import { readOverlappingTurns } from './change-triggers.ts'
import type { Evidence } from './evidence.ts'

/**
 * Each turn of a conversation is on the thread of the turn before, begins after its end, and has a run of its own. I1, I2
 * and I4 compare its output and tokens with those of that run.
 */
export async function checkTurns({ store, runtime, jobs, violate }: Evidence): Promise<void> {
  const byId = new Map(jobs.map((job) => [job.id, job]))
  for (const job of jobs.filter(({ continues }) => continues !== null)) {
    const before = byId.get(job.continues ?? '')
    if (before?.thread_id !== job.thread_id) violate('turns', `${job.id} is not on the thread of ${job.continues}`)
    const run = runtime.runs.get(job.run_id ?? '')
    if (run && run.metadata.job_id !== job.id)
      violate('turns', `${job.id} has the run ${job.run_id} of ${run.metadata.job_id}`)
  }
  for (const { job_id } of await readOverlappingTurns(store)) {
    violate('turns', `${job_id} was stored while a job on its thread was unfinished`)
  }
}
