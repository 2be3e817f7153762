import type { Json, JsonObject } from '../core/json.ts'

/** The agent runtime's own words, as far as this service reads them. */
export type RunStatus = 'pending' | 'running' | 'success' | 'error' | 'timeout' | 'interrupted'

export interface Run {
  runId: string
  threadId: string
  /** One of `RunStatus`, or a word of a newer runtime. */
  status: string
  metadata: JsonObject
  traces: Traces
}

export interface Traces {
  traceId: string | null
  tracerTraceId: string | null
}

export interface ThreadState {
  values: JsonObject
  /** Nodes still to run; empty when the graph is done. */
  next: readonly string[]
  /** The run that wrote this checkpoint. */
  runId: string | null
  /** The first task's error, when one failed. */
  error: string | null
  /** What the graph asks of a human, when it paused. */
  interrupts: readonly Json[]
}

export interface StartRequest {
  threadId: string
  assistantId: string
  /** The graph's input, or the answer to its question when a pause is resumed. */
  payload: { input: Json } | { resume: Json }
  webhook: string | null
  metadata: JsonObject
}

/** The runtime said no, for good: asking again would get the same answer. */
export interface RuntimeRefusal {
  status: number
  message: string
}

/** Nothing was learned of the run: the runtime is down, slow, or does not let us in. Says nothing about the job. */
export class RuntimeUnavailable extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'RuntimeUnavailable'
  }
}
