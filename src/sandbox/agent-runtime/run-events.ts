import { isJsonObject, type JsonObject } from '../../core/json.ts'
import { messagesIn } from './agent-graph.ts'
import type { Run, RunEvent, StepResult } from './records.ts'

/** A step that a run will take, and the values before it. */
export interface PlannedStep {
  name: string
  before: JsonObject
  result: StepResult
}

/** The stream modes that a client may ask for, by the event they cause. */
const MODES: Readonly<Record<string, string>> = { messages: 'messages-tuple', updates: 'updates', custom: 'custom' }

/** The events of a run, in order. Answers are streamed word by word, as the real runtime streams the tokens of a model. */
export function eventsOf(run: Run, steps: readonly PlannedStep[]): RunEvent[] {
  const all: RunEvent[] = [
    { event: 'metadata', data: { run_id: run.runId, attempt: 1 } },
    ...steps.flatMap((step, index) => eventsOfStep(run, step, index + 1)),
  ]
  return all.filter(({ event }) => MODES[event] === undefined || run.streamModes.includes(MODES[event]))
}

function eventsOfStep(run: Run, { name, before, result }: PlannedStep, step: number): RunEvent[] {
  if ('fail' in result) return [{ event: 'error', data: { error: 'Error', message: result.fail } }]
  if ('stop' in result) return []
  if ('ask' in result || 'asks' in result) {
    const questions = 'ask' in result ? [result.ask] : result.asks
    return [{ event: 'updates', data: { __interrupt__: questions.map((value) => ({ value })) } }]
  }
  const update = 'values' in result ? result.values : result.update
  const { progress = [], reasoning = '' } = result
  const written = messagesIn(update).slice(messagesIn(before).length)
  const metadata = {
    ...run.metadata,
    thread_id: run.threadId,
    run_id: run.runId,
    langgraph_step: step,
    langgraph_node: name,
    langgraph_path: ['__pregel_pull', name],
  }
  return [
    ...progress.map((data) => ({ event: 'custom', data }) as const),
    ...written.flatMap((message) => pieces(message, reasoning)).map((piece) => messageEvent(piece, metadata)),
    { event: 'updates', data: { [name]: written.length > 0 ? { messages: written } : update } },
  ]
}

function messageEvent(piece: JsonObject, metadata: JsonObject): RunEvent {
  return { event: 'messages', data: [piece, metadata] }
}

/** Splits an assistant's message into pieces. Every other message is one piece. */
function pieces(message: JsonObject, reasoning: string): JsonObject[] {
  if (message.type !== 'ai') return [message]
  const empty = {
    content: '',
    tool_calls: [],
    additional_kwargs: {},
    invalid_tool_calls: [],
    tool_call_chunks: [],
    response_metadata: {},
    id: message.id ?? null,
    type: 'ai',
  }
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls.filter(isJsonObject) : []
  return [
    ...wordsOf(reasoning).map((word) => ({ ...empty, additional_kwargs: { reasoning_content: word } })),
    ...calls
      .flatMap((call, index) => callPieces(call, index))
      .map((chunk) => ({ ...empty, tool_call_chunks: [chunk] })),
    ...wordsOf(String(message.content)).map((content) => ({ ...empty, content })),
  ]
}

/** A tool call in pieces: first the name, then the arguments in two halves. */
function callPieces({ id = null, name = null, args = {} }: JsonObject, index: number): JsonObject[] {
  const text = JSON.stringify(args)
  const half = Math.ceil(text.length / 2)
  const rest = { index, type: 'tool_call_chunk' }
  return [
    { ...rest, id, name, args: '' },
    { ...rest, args: text.slice(0, half) },
    { ...rest, args: text.slice(half) },
  ]
}

/** Each word with the space after it. */
function wordsOf(text: string): string[] {
  return text.match(/\S+\s*|\s+/g) ?? []
}
