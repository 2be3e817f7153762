import type { JsonPart } from '../core/json/json-part.ts'
import type { JsonText } from '../core/json/json-text.ts'
import type { Json, JsonObject } from '../core/json.ts'

/** The parts of a run that this service reads. */
export interface RuntimeRun {
  runId: string
  threadId: string
  /** `pending`, `running`, `success`, `error`, `timeout`, `interrupted`, or a status of a newer runtime. */
  status: string
  metadata: JsonObject
  /** The checkpoint that it began at. Null: it named none, and neither did a run before it on its thread. */
  checkpointId: string | null
  traces: Traces
}

/** The description of a run, for a client that wants to follow it. */
export interface RunDescription {
  /** The ids of its assistant and its graph. */
  graphs: readonly string[]
  /** The callers that the metadata of the run or its thread name. */
  owners: readonly string[]
  /** The metadata of the run. */
  metadata: JsonObject
}

export interface Traces {
  traceId: string | null
  tracerTraceId: string | null
}

export interface ThreadState {
  /** Null when the thread has none. */
  values: JsonPart | null
  /** The nodes that have not run yet. Also empty when all of them have run, and their step is not finished. */
  next: readonly string[]
  /** The graph has nothing left to do: no step is open, finished or not. */
  isDone: boolean
  checkpointId: string | null
  /** The run that wrote this checkpoint. */
  runId: string | null
  /** The error of the first task that failed. */
  error: string | null
  /** The questions of a graph that paused for a human. */
  interrupts: readonly JsonText[]
  /** The trace ids among the values. */
  traces: Traces
}

export interface StartRequest {
  threadId: string
  assistantId: string
  /** The graph's input, or the command with the answers to its questions. After a breakpoint, the input is null. */
  payload: { input: JsonText } | { command: JsonText }
  webhook: string | null
  metadata: JsonObject
  /** What the graph finds in `config.configurable`. The runtime keeps it for the next runs of the thread. */
  configurable?: { readonly [key: string]: Json | JsonText }
  /** The checkpoint that the run begins at. Absent: the newest one. */
  checkpointId?: string | null
  /** The kinds of events that the run streams. They cannot be changed later. Absent or empty: none. */
  streamModes?: readonly StreamMode[]
}

export type StreamMode = 'messages-tuple' | 'updates' | 'custom'

/** The runtime refused the request. A retry would get the same answer. */
export interface RuntimeRefusal {
  status: number
  message: string
}
