import { isJsonObject, type Json, type JsonObject } from '../../../src/core/json.ts'
import { call } from '../workload/http-call.ts'

const MAX_THREADS = 100_000

/** A run as the runtime stores it. */
export interface TrueRun {
  runId: string
  jobId: string
  runSeq: number
  status: string
  endedAtMs: number
}

/** How the job of a run must have ended. */
export interface TrueEnd {
  status: 'completed' | 'failed' | 'cancelled' | 'unfinished'
  output: Json
}

/** All threads of the runtime. */
export async function readThreads(runtimeUrl: string): Promise<string[]> {
  const threads = await ask(`${runtimeUrl}/threads/search`, { limit: MAX_THREADS })
  return asList(threads).map((thread) => String(thread.thread_id))
}

/** Oldest first. */
export async function readRuns(runtimeUrl: string, threadId: string): Promise<TrueRun[]> {
  const runs = asList(await ask(`${runtimeUrl}/threads/${threadId}/runs?limit=1000`))
  return runs
    .map((run) => ({ run, metadata: isJsonObject(run.metadata) ? run.metadata : {} }))
    .map(({ run, metadata }) => ({
      runId: String(run.run_id),
      jobId: String(metadata.job_id),
      runSeq: Number(metadata.run_seq),
      status: String(run.status),
      endedAtMs: Date.parse(String(run.updated_at)),
    }))
    .sort((a, b) => a.runSeq - b.runSeq)
}

/** Does not use the service's code, because it would then contain the same mistakes. */
export async function readEnd(
  runtimeUrl: string,
  job: { type: string; thread_id: string },
  last: TrueRun,
): Promise<TrueEnd> {
  if (last.status === 'error') return { status: 'failed', output: null }
  if (last.status === 'interrupted') return { status: 'cancelled', output: null }
  if (last.status !== 'success') return { status: 'unfinished', output: null }
  const state = await ask(`${runtimeUrl}/threads/${job.thread_id}/state`)
  if (!isJsonObject(state) || !isJsonObject(state.values) || !Array.isArray(state.next) || state.next.length > 0) {
    return { status: 'unfinished', output: null }
  }
  return { status: 'completed', output: outputIn(state.values, job.type) }
}

function outputIn(values: JsonObject, type: string): Json {
  if (type === 'report') return values.report ?? null
  if (type === 'summary') return isJsonObject(values.result) ? (values.result.summary ?? null) : null
  const messages = Array.isArray(values.messages) ? values.messages.filter(isJsonObject) : []
  return messages.findLast((message) => message.type === 'ai')?.content ?? null
}

async function ask(url: string, body?: object): Promise<Json> {
  const { status, text } = await call(url, body === undefined ? {} : { method: 'POST', body })
  if (status !== 200) throw new Error(`The runtime answered ${status} for ${url}: ${text}`)
  return JSON.parse(text) as Json
}

function asList(value: Json): JsonObject[] {
  return Array.isArray(value) ? value.filter(isJsonObject) : []
}
