import { toRfc3339 } from '../../core/clock.ts'
import { isJsonObject, type Json, type JsonObject } from '../../core/json.ts'
import { assistantIdOf } from './ids.ts'
import type { Checkpoint, Run, Task, Thread } from './records.ts'

/** Renders the runtime's responses with exactly the keys of the real runtime. The contract tests compare the two. */
export function renderThread(thread: Thread): JsonObject {
  return {
    thread_id: thread.threadId,
    created_at: toRfc3339(thread.createdAtMs),
    updated_at: toRfc3339(thread.updatedAtMs),
    metadata: thread.metadata,
    status: thread.status,
    config: Object.keys(thread.configurable).length === 0 ? {} : { configurable: thread.configurable },
    ...(thread.values === undefined ? {} : { values: thread.values, interrupts: thread.interrupts ?? {} }),
  }
}

export function renderRun(run: Run): JsonObject {
  const assistantId = assistantIdOf(run.graphId)
  return {
    run_id: run.runId,
    thread_id: run.threadId,
    assistant_id: assistantId,
    metadata: run.metadata,
    status: run.status,
    kwargs: {
      ...run.work,
      config: {
        configurable: {
          ...run.configurable,
          ...(run.checkpointId === null ? {} : { checkpoint_id: run.checkpointId }),
          run_id: run.runId,
          thread_id: run.threadId,
          graph_id: run.graphId,
          assistant_id: assistantId,
        },
        metadata: run.metadata,
      },
      context: {},
      stream_mode: [...run.streamModes],
      ...(run.webhook === null ? {} : { webhook: run.webhook }),
      temporary: false,
      subgraphs: run.subgraphs,
      resumable: run.resumable,
    },
    multitask_strategy: run.multitaskStrategy,
    created_at: toRfc3339(run.createdAtMs),
    updated_at: toRfc3339(run.updatedAtMs),
  }
}

/** The state of a thread is its newest checkpoint, or an empty state when no run has written one. */
export function renderState(thread: Thread): JsonObject {
  const newest = thread.checkpoints.at(-1)
  if (newest) return { ...renderCheckpoint(newest), ...(newest.retried ? { next: [] } : {}) }
  return { values: {}, next: [], tasks: [], created_at: null, checkpoint: null, parent_checkpoint: null }
}

export function renderCheckpoint(checkpoint: Checkpoint): JsonObject {
  const { id, parentId, threadId, run, step, values, task, createdAtMs } = checkpoint
  const place = (checkpointId: string): JsonObject => ({ ...placeOf(threadId, checkpointId), checkpoint_map: null })
  return {
    values,
    next: tasksOf(task).map(({ name }) => name),
    tasks: tasksOf(task).map(renderTask),
    metadata: {
      ...(run ? writtenBy(run) : { source: 'update' }),
      thread_id: threadId,
      step,
      parents: {},
    },
    created_at: toRfc3339(createdAtMs),
    checkpoint: place(id),
    parent_checkpoint: parentId === null ? null : place(parentId),
  }
}

export function placeOf(threadId: string, checkpointId: string): JsonObject {
  return { thread_id: threadId, checkpoint_id: checkpointId, checkpoint_ns: '' }
}

function writtenBy(run: Run): JsonObject {
  return {
    ...run.configurable,
    ...run.metadata,
    ls_integration: 'langgraph',
    run_attempt: 1,
    langgraph_version: '0.0.0',
    langgraph_plan: 'developer',
    langgraph_host: 'self-hosted',
    run_id: run.runId,
    source: 'loop',
  }
}

/** Nodes that ask in parallel are separate tasks. */
function tasksOf(task: Task | null): Task[] {
  if (task === null) return []
  if (task.interrupts.length < 2) return [task]
  return task.interrupts.map((interrupt, n) => ({ ...task, name: `${task.name}_${n + 1}`, interrupts: [interrupt] }))
}

function renderTask({ id, name, error, interrupts }: Task): JsonObject {
  const rest = { path: ['__pregel_pull', name], checkpoint: null, state: null, result: null }
  return { id, name, error, interrupts, ...rest }
}

/** The run with its result. The JS server wraps messages and sends an error as text; the hosted runtime does neither. */
export function renderCallback(run: Run, options: { hosted: boolean; sentAtMs: number }): JsonObject {
  const { values, error } = run
  return {
    ...renderRun(run),
    run_started_at: toRfc3339(run.startedAtMs ?? run.createdAtMs),
    run_ended_at: toRfc3339(run.endedAtMs ?? options.sentAtMs),
    webhook_sent_at: toRfc3339(options.sentAtMs),
    ...(values === undefined ? {} : { values: options.hosted ? values : withWrappedMessages(values) }),
    ...(error === null ? {} : { error: options.hosted ? { error: 'Error', message: error } : error }),
  }
}

const CLASSES: Record<string, string> = { ai: 'AIMessage', human: 'HumanMessage', system: 'SystemMessage' }

function withWrappedMessages(values: JsonObject): JsonObject {
  if (!Array.isArray(values.messages)) return values
  return { ...values, messages: values.messages.map(wrap) }
}

function wrap(message: Json): Json {
  if (!isJsonObject(message)) return message
  const { type, ...kwargs } = message
  return {
    lc: 1,
    type: 'constructor',
    id: ['langchain_core', 'messages', CLASSES[String(type)] ?? 'ChatMessage'],
    kwargs,
  }
}
