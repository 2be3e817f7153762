import { toRfc3339 } from '../../../src/core/clock.ts'
import type { Json, JsonObject } from '../../../src/core/json.ts'
import type { RunPlan } from './runtime-graphs.ts'

export type RunStatus = 'pending' | 'running' | 'success' | 'error' | 'timeout' | 'interrupted'

/** The truth about one run. */
export interface SimRun {
  runId: string
  threadId: string
  assistant: string
  metadata: JsonObject
  work: { input: Json } | { command: JsonObject }
  webhook: string | null
  status: RunStatus
  plan: RunPlan
  /** Its row is gone. */
  deleted: boolean
  /** It ended as it says, and then its row went. */
  forgotten: boolean
  /** Nobody works on it any more. */
  zombie: boolean
  paused: boolean
  createdAtMs: number
  startedAtMs: number | null
  endedAtMs: number | null
  /** Of its end, as JSON text; null when it left none. */
  values: string | null
  outputText: string | null
  /** The output as its values show it, which a pause may do as well. */
  shownText: string | null
  error: string | null
  cancelHeardAtMs: number | null
}

/** What a run left on its thread. */
export interface Checkpoint {
  runId: string
  values: string
  next: string[]
  error: string | null
  interrupts: Json[]
}

export interface SimThread {
  threadId: string
  metadata: JsonObject
  runs: SimRun[]
  checkpoints: Checkpoint[]
}

export function isLive(run: SimRun): boolean {
  return !run.deleted && (run.status === 'pending' || run.status === 'running')
}

export function renderRun(run: SimRun, status: string = run.status): string {
  return JSON.stringify({
    run_id: run.runId,
    thread_id: run.threadId,
    assistant_id: run.assistant,
    metadata: run.metadata,
    status,
    kwargs: { ...run.work, ...(run.webhook === null ? {} : { webhook: run.webhook }) },
    multitask_strategy: 'reject',
    created_at: toRfc3339(run.createdAtMs),
    updated_at: toRfc3339(run.endedAtMs ?? run.createdAtMs),
  })
}

export function renderState(thread: SimThread): string {
  const newest = thread.checkpoints.at(-1)
  return newest ? renderCheckpoint(thread, newest) : '{"values":{},"next":[],"tasks":[],"checkpoint":null}'
}

export function renderCheckpoint(thread: SimThread, { runId, values, next, error, interrupts }: Checkpoint): string {
  const failure = error === null ? null : JSON.stringify({ error: 'Error', message: error })
  const tasks = next.map((name) => ({ id: 'task', name, error: failure, interrupts }))
  const rest = {
    next,
    tasks,
    metadata: { ...thread.metadata, run_id: runId },
    checkpoint: { thread_id: thread.threadId },
  }
  return `{"values":${values},${JSON.stringify(rest).slice(1)}`
}

/** The end of a run as it is posted; `status` stands in for what the row cannot say. */
export function renderCallback(
  run: SimRun,
  { status, hosted, values, nonce }: { status: string; hosted: boolean; values: string | null; nonce: string },
): string {
  const head = renderRun(run, status).slice(0, -1)
  const rest = {
    run_started_at: toRfc3339(run.startedAtMs ?? run.createdAtMs),
    run_ended_at: toRfc3339(run.endedAtMs ?? run.createdAtMs),
    nonce,
    ...(run.error === null ? {} : { error: hosted ? { error: 'Error', message: run.error } : run.error }),
  }
  const tail = JSON.stringify(rest).slice(1)
  return values === null ? `${head},${tail}` : `${head},"values":${values},${tail}`
}
