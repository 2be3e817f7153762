import { isJsonObject, type Json, type JsonObject } from '../../core/json.ts'
import type { NewId } from './ids.ts'
import type { Run } from './records.ts'

/** `update` is merged into the values, `values` replaces them. A pause or failure may end the run by another status. */
export type StepResult =
  | { update: JsonObject }
  | { values: JsonObject }
  | { ask: Json; endsAs?: 'interrupted' }
  /** Several questions at once, as of nodes that run side by side. */
  | { asks: readonly Json[] }
  /** A static breakpoint: it pauses before the step, and asks nothing. */
  | { stop: true }
  | { fail: string; endsAs?: 'timeout' }

/** One node of a graph. `answers` are the answers to this step's questions so far. */
export interface Step {
  name: string
  take(values: JsonObject, answers: readonly Json[], newId: NewId): StepResult
}

export interface RunPlan {
  /** Null: the run goes on where its thread stopped. */
  steps: readonly Step[] | null
  /** Null: the default holds. */
  runningMs: number | null
}

const QUESTION: Json = { question: 'Publish it?' }

/** A graph for each way a run can end. The tests of the real runtime use the same graphs. */
const GRAPHS: Record<string, readonly Step[]> = {
  agent: [{ name: 'answer', take: answer }],
  report: [{ name: 'write', take: writeReport }],
  ok: [{ name: 'write', take: writeReport }],
  summary: [
    { name: 'summarise', take: ({ prompt }) => ({ update: { result: { summary: `In short: ${textOf(prompt)}` } } }) },
  ],
  throw: [
    { name: 'begin', take: () => ({ update: { draft: 'half a report' } }) },
    { name: 'fail', take: () => ({ fail: 'kaboom: upstream 500' }) },
  ],
  pause: [
    askFor(QUESTION),
    {
      name: 'write',
      take: ({ title, draft }) => ({ update: { report: { title: titleOf(title), answer: draft ?? null } } }),
    },
  ],
  ask_twice: [
    {
      name: 'ask',
      take: (_values, answers) => {
        if (answers.length === 0) return { ask: QUESTION }
        if (answers.length === 1) return { ask: { question: 'Are you sure?' } }
        return { update: { report: { title: 'Asked twice', answers: [...answers] } } }
      },
    },
  ],
  ask_throw: [
    {
      name: 'ask',
      take: (_values, answers) => (answers.length === 0 ? { ask: QUESTION } : { fail: 'kaboom: after the answer' }),
    },
  ],
  sleep: [
    { name: 'wait', take: () => ({ update: {} }) },
    { name: 'write', take: writeReport },
  ],
  late_key: [{ name: 'write', take: writeReport }, askFor(QUESTION)],
  ask_both: [
    {
      name: 'ask',
      take: (_values, answers) =>
        answers.length === 0
          ? { asks: [QUESTION, { question: 'Under which name?' }] }
          : { update: { report: { title: 'Asked both', answers: [...answers] } } },
    },
  ],
  breakpoint: [
    { name: 'begin', take: () => ({ update: { draft: 'half a report' } }) },
    { name: 'write', take: (values, answers) => (answers.length === 0 ? { stop: true } : writeReport(values)) },
  ],
}

export const GRAPH_IDS: readonly string[] = Object.keys(GRAPHS)

/** The graph's steps. `input.sandbox` (`duration_ms`, `pause`, `fail`) adds steps before them. */
export function planRun({ graphId, work }: Pick<Run, 'graphId' | 'work'>): RunPlan {
  if ('command' in work || work.input === null) return { steps: null, runningMs: null }
  const input = isJsonObject(work.input) ? work.input : {}
  const wish = isJsonObject(input.sandbox) ? input.sandbox : {}
  const { duration_ms, pause, fail } = wish
  const napMs = graphId === 'sleep' ? (input.ms ?? 1_000) : undefined
  const runningMs = [duration_ms, napMs].find((ms) => typeof ms === 'number' && ms >= 0)
  return {
    steps: [
      ...(pause === undefined ? [] : [askFor(typeof pause === 'string' ? { question: pause } : pause, 'sandbox_ask')]),
      ...(fail === undefined ? [] : [{ name: 'sandbox_fail', take: () => ({ fail: textOf(fail) }) }]),
      ...(GRAPHS[graphId] ?? []),
    ],
    runningMs: typeof runningMs === 'number' ? runningMs : null,
  }
}

/** Merges an input into the values of a thread. Messages are appended to its conversation. */
export function applyInput(values: JsonObject, input: JsonObject, newId: NewId): JsonObject {
  const { sandbox, messages, ...fields } = input
  if (messages === undefined) return { ...values, ...fields }
  const given = (Array.isArray(messages) ? messages : [messages]).filter(isJsonObject)
  const added = given.map((message) => ({
    content: message.content ?? '',
    additional_kwargs: {},
    response_metadata: {},
    id: message.id ?? newId(),
    type: typeOf(message),
  }))
  return { ...values, ...fields, messages: [...messagesIn(values), ...added] }
}

function askFor(question: Json, name = 'ask'): Step {
  return {
    name,
    take: (_values, answers) => (answers.length === 0 ? { ask: question } : { update: { draft: answers[0] ?? null } }),
  }
}

function writeReport({ title, n }: JsonObject): StepResult {
  return { update: { report: { title: titleOf(title), n: n ?? 0 } } }
}

function answer(values: JsonObject, _answers: readonly Json[], newId: NewId): StepResult {
  const messages = messagesIn(values)
  const asked = messages.findLast((message) => message.type === 'human')?.content ?? values.prompt
  const content = `You said: ${textOf(asked)}`
  const [input_tokens, output_tokens] = [countWords(textOf(asked)), countWords(content)]
  const reply = {
    content,
    usage_metadata: { input_tokens, output_tokens, total_tokens: input_tokens + output_tokens },
    tool_calls: [],
    invalid_tool_calls: [],
    additional_kwargs: {},
    response_metadata: {},
    id: newId(),
    type: 'ai',
  }
  return { update: { messages: [...messages, reply] } }
}

function messagesIn({ messages }: JsonObject): JsonObject[] {
  return Array.isArray(messages) ? messages.filter(isJsonObject) : []
}

function typeOf({ role, type }: JsonObject): string {
  if (role === 'assistant' || type === 'ai') return 'ai'
  return role === 'system' || type === 'system' ? 'system' : 'human'
}

function titleOf(title: Json | undefined): Json {
  return title ?? 'Untitled'
}

function textOf(value: Json | undefined): string {
  if (value === undefined || value === null) return 'nothing'
  return typeof value === 'string' ? value : JSON.stringify(value)
}

function countWords(text: string): number {
  return text.split(/\s+/).length
}
