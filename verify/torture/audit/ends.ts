import { isDeepStrictEqual } from 'node:util'
import type { Database } from '../../../src/db/database.ts'
import { sql } from '../../../src/db/sql.ts'
import type { TortureCluster } from '../cluster/cluster.ts'
import type { ShownJob, Submission, Workload } from '../workload/workload.ts'
import { readEnd, readRuns, readThreads, type TrueRun } from './runtime-truth.ts'
import { ViolationCount } from './violation-count.ts'

const AT_ONCE = 25
const SLOWEST = 10

export interface EndsAudit {
  violations: ViolationCount[]
  /** From the end of the run on the runtime to the end of the job in the database. */
  storedMs: number[]
  /** The jobs that took longest. */
  slowest: { jobId: string; storedMs: number }[]
  /** From the end of the run on the runtime to the client's read that showed it. */
  seenMs: number[]
  settledBy: string[]
}

/** Checks every job, as its owner sees it, against its runs on the runtime. */
export async function auditEnds(cluster: TortureCluster, workload: Workload, db: Database): Promise<EndsAudit> {
  const lost = new ViolationCount('accepted jobs lost')
  const unexpected = new ViolationCount('unexpected jobs')
  const notEnded = new ViolationCount('jobs not ended')
  const wrong = new ViolationCount('wrong ends')
  const secondRuns = new ViolationCount('second runs')
  const audit: EndsAudit = {
    violations: [lost, unexpected, notEnded, wrong, secondRuns],
    storedMs: [],
    slowest: [],
    seenMs: [],
    settledBy: [],
  }
  const rows = await db.query<{ id: string; run_seq: number }>(sql`select id, run_seq from jobs`)
  const runSeqs = new Map(rows.map(({ id, run_seq }) => [id, run_seq]))
  const asked = new Set(workload.submissions.map(({ jobId }) => jobId))
  unexpected.addAll(rows.filter(({ id }) => !asked.has(id)).map(({ id }) => id))
  const threads = new Set(await readThreads(cluster.runtime.url))

  const auditOne = async (submission: Submission): Promise<void> => {
    const { jobId, owner } = submission
    if (jobId === null) return
    const runSeq = runSeqs.get(jobId)
    const { body: job } = await workload.client.requestUntilAnswered<ShownJob>(`/jobs/${jobId}`, {
      token: workload.tokenOf(owner),
    })
    if (runSeq === undefined || job.id !== jobId) return lost.add(jobId)
    const known = threads.delete(job.thread_id)
    const runs = known ? await readRuns(cluster.runtime.url, job.thread_id) : []
    if (runs.length > runSeq) secondRuns.add(`${jobId} has ${runs.length} runs, and was started ${runSeq} times`)
    if (job.finished_at === null) return notEnded.add(`${jobId} is ${job.status}`)
    audit.settledBy.push(job.settled_by ?? 'none')
    const last = runs.at(-1)
    const fault = await faultOf(cluster, { job, last, submission })
    if (fault !== null) wrong.add(`${jobId}: ${fault}`)
    if (!last) return
    const storedMs = Math.max(0, Date.parse(job.finished_at) - last.endedAtMs)
    audit.storedMs.push(storedMs)
    audit.slowest.push({ jobId, storedMs })
    if (submission.seenEndAtMs !== null) audit.seenMs.push(Math.max(0, submission.seenEndAtMs - last.endedAtMs))
  }
  const queue = [...workload.submissions]
  const work = async () => {
    for (let next = queue.pop(); next; next = queue.pop()) await auditOne(next)
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work))
  audit.slowest = audit.slowest.sort((a, b) => b.storedMs - a.storedMs).slice(0, SLOWEST)
  // The start of a first turn that is repeated leaves its thread. No run may be on it.
  for (const thread of threads) {
    const runs = await readRuns(cluster.runtime.url, thread)
    if (runs.length > 0) secondRuns.add(`thread ${thread} with ${runs.length} runs belongs to no job`)
  }
  return audit
}

async function faultOf(
  { runtime }: TortureCluster,
  { job, last, submission }: { job: ShownJob; last: TrueRun | undefined; submission: Submission },
): Promise<string | null> {
  if (!last) return job.status === 'cancelled' && submission.cancelled ? null : `it is ${job.status} and has no run`
  if (job.run_id !== last.runId) return `it follows run ${job.run_id}, and its run is ${last.runId}`
  const truth = await readEnd(runtime.url, job, last)
  if (job.status !== truth.status) return `it is ${job.status}, its run is ${truth.status} (${last.status})`
  if (!isDeepStrictEqual(job.output, truth.output)) {
    return `its output is ${JSON.stringify(job.output)}, its run's ${JSON.stringify(truth.output)}`
  }
  if (truth.status === 'failed' && job.error?.code !== 'run_failed') return `its error is ${JSON.stringify(job.error)}`
  return null
}
