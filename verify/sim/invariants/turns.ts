import { sql } from '../../../src/db/sql.ts'
import type { JobRow } from '../../../src/jobs/job-row.ts'
import { isOwn, type SimRun } from '../outside/runtime.ts'
import { readOverlappingTurns } from './change-triggers.ts'
import type { Evidence } from './evidence.ts'

/**
 * Each turn of a conversation is on the thread of the turn before, begins after its end, and has a run of its own. I1, I2
 * and I4 compare its output and tokens with those of that run.
 */
export async function checkTurns(evidence: Evidence): Promise<void> {
  const { store, runtime, jobs, violate } = evidence
  const byId = new Map(jobs.map((job) => [job.id, job]))
  for (const job of jobs.filter(({ continues }) => continues !== null)) {
    const before = byId.get(job.continues ?? '')
    if (before && before.thread_id !== job.thread_id)
      violate('turns', `${job.id} is not on the thread of ${job.continues}`)
    const run = runtime.runs.get(job.run_id ?? '')
    if (run && isOwn(run) && run.metadata.job_id !== job.id)
      violate('turns', `${job.id} has the run ${job.run_id} of ${run.metadata.job_id}`)
  }
  for (const { job_id } of await readOverlappingTurns(store)) {
    violate('turns', `${job_id} got a run while an earlier job on its thread was unfinished`)
  }
  await checkHistories(evidence)
}

/** The history of each turn has every turn before it, and no run that was not followed. */
async function checkHistories({ store, runtime, jobs, gone, violate }: Evidence): Promise<void> {
  const rows = await store.query<{ run_id: string; job_id: string; is_extra: number }>(
    sql`select run_id, job_id, is_extra from job_runs`,
  )
  const extra = new Set(rows.filter(({ is_extra }) => is_extra === 1).map(({ run_id }) => run_id))
  const followed = new Map(rows.filter(({ is_extra }) => is_extra === 0).map(({ run_id, job_id }) => [run_id, job_id]))
  const runsOf = Map.groupBy(followed.keys(), (runId) => followed.get(runId) ?? '')
  for (const job of jobs) {
    const run = runtime.runs.get(job.run_id ?? '')
    if (extra.has(job.run_id ?? ''))
      violate('one run', `${job.id} has the run ${job.run_id}, which is noted as a further one`)
    // A run that was cancelled before it started has no history.
    if (!run?.head) continue
    const history = runtime.historyOf(run)
    for (const { runId, metadata } of history) {
      const isOurs = metadata.job_id !== undefined && metadata.run_seq !== undefined
      if (isOurs && !followed.has(runId) && !gone.has(String(metadata.job_id)))
        violate('turns', `the history of ${job.id} has the run ${runId} of ${metadata.job_id}, which no job follows`)
    }
    for (const turn of turnsBefore(job, jobs)) {
      for (const runId of runsOf.get(turn.id) ?? []) {
        const earlier = runtime.runs.get(runId)
        if (earlier && hasWritten(earlier) && !history.has(earlier))
          violate('turns', `the history of ${job.id} lacks the run ${runId} of ${turn.id}`)
      }
    }
  }
}

function turnsBefore(job: JobRow, jobs: readonly JobRow[]): JobRow[] {
  if (job.continues === null) return []
  return jobs.filter(({ id, thread_id }) => thread_id === job.thread_id && id < job.id)
}

function hasWritten(run: SimRun): boolean {
  return run.head?.run === run
}
