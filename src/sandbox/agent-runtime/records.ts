import type { Json, JsonObject } from '../../core/json.ts'
import type { NewId } from './ids.ts'

/** Threads, runs and checkpoints, as the sandbox runtime stores them. */
export interface Thread {
  threadId: string
  metadata: JsonObject
  status: 'idle' | 'busy' | 'interrupted' | 'error'
  /** Undefined until a run has ended, and after one that was cancelled. */
  values: JsonObject | undefined
  interrupts: JsonObject | undefined
  createdAtMs: number
  updatedAtMs: number
  /** Of all branches, newest last. */
  checkpoints: Checkpoint[]
  runs: Run[]
  /** The configuration of its runs so far. Later runs see it, too. */
  configurable: JsonObject
  /** The checkpoint that a run named last. Later runs that name none begin there, too. */
  pin: string | null
}

/** The next step of a graph, and the answers given to the questions of that step. */
export interface Position {
  steps: readonly Step[]
  index: number
  answers: readonly Json[]
  runningMs: number | null
}

/** Data that a step streams in addition to its messages. */
interface Streamed {
  progress?: readonly Json[]
  /** The model's reasoning, streamed before its message. */
  reasoning?: string
}

/** `update` is merged into the values, `values` replaces them. A pause or failure may end the run with another status. */
export type StepResult =
  | ({ update: JsonObject } & Streamed)
  | ({ values: JsonObject } & Streamed)
  | { ask: Json; endsAs?: 'interrupted' }
  /** Several questions at once, as from nodes that run in parallel. */
  | { asks: readonly Json[] }
  /** A static breakpoint: the graph pauses before the step without a question. */
  | { stop: true }
  | { fail: string; endsAs?: 'timeout' }

/** One node of a graph. `answers` are the answers to this step's questions so far. */
export interface Step {
  name: string
  take(values: JsonObject, answers: readonly Json[], newId: NewId, configurable: JsonObject): StepResult
}

export type RunStatus = 'pending' | 'running' | 'success' | 'error' | 'timeout' | 'interrupted' | 'rollback'

export interface Run {
  runId: string
  threadId: string
  graphId: string
  metadata: JsonObject
  status: RunStatus
  /** The input, or the command that resumes. */
  work: { input: Json } | { command: JsonObject }
  configurable: JsonObject
  /** The checkpoint that it begins at; null: the newest one. */
  checkpointId: string | null
  /** The checkpoint that it is at: the one it begins at, then the last one that it wrote. */
  head: Checkpoint | undefined
  position: Position | null
  webhook: string | null
  multitaskStrategy: string
  /** What it streams. */
  streamModes: readonly string[]
  resumable: boolean
  /** Whether the output of subgraphs is streamed. The graphs of the sandbox have none. */
  subgraphs: boolean
  /** What it has streamed so far. */
  events: RunEvent[]
  /** Called after each new event. */
  followers: Set<() => void>
  createdAtMs: number
  updatedAtMs: number
  startedAtMs: number | null
  endedAtMs: number | null
  values: JsonObject | undefined
  error: string | null
  /** The run ended with a question. */
  paused: boolean
  /** The runtime no longer knows the run. */
  removed: boolean
  /** Aborted when no work is done on the run any more: it ended, or a simulated crash stopped it. */
  stop: AbortController
  ended: PromiseWithResolvers<void>
}

/** One event of a run's stream. Its id is its position in the stream. */
export interface RunEvent {
  event: 'metadata' | 'custom' | 'messages' | 'updates' | 'error'
  data: Json
}

export interface Checkpoint {
  id: string
  parentId: string | null
  threadId: string
  /** Null: a client changed the state by hand. */
  run: Run | null
  step: number
  values: JsonObject
  task: Task | null
  /** Where the graph continues from here; null after a failure. */
  position: Position | null
  createdAtMs: number
  /**
   * A resumed run executed the task but did not finish it. The thread's state then no longer lists the task under `next`.
   */
  retried: boolean
}

export interface Task {
  id: string
  name: string
  error: string | null
  interrupts: JsonObject[]
}

export interface RunRequest {
  graphId: string
  work: Run['work']
  configurable: JsonObject
  /** Default: that of the run before it. */
  checkpointId?: string | null
  webhook: string | null
  metadata: JsonObject
  multitaskStrategy: string
  streamModes?: readonly string[]
  resumable?: boolean
  subgraphs?: boolean
  afterMs: number
}

export function isLive({ status }: Run): boolean {
  return status === 'pending' || status === 'running'
}
