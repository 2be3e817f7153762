import { isJsonObject, type Json, type JsonObject } from '../../core/json.ts'
import { agentSteps, messagesIn, textOf } from './agent-graph.ts'
import type { NewId } from './ids.ts'
import type { Run, Step, StepResult } from './records.ts'

export interface RunPlan {
  /** Null: the run continues where its thread stopped. */
  steps: readonly Step[] | null
  /** Null: the default applies. */
  runningMs: number | null
}

const QUESTION: Json = { question: 'Publish it?' }

/** A graph for each kind of end of a run. The tests of the real runtime use the same graphs. */
const GRAPHS: Record<string, readonly Step[]> = {
  agent: agentSteps({}),
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
  /** Answers with what it knows of its caller. */
  whoami: [{ name: 'answer', take: tellCaller }],
  /** The same after a question. */
  whoami_asked: [askFor(QUESTION), { name: 'answer', take: tellCaller }],
  breakpoint: [
    { name: 'begin', take: () => ({ update: { draft: 'half a report' } }) },
    { name: 'write', take: (values, answers) => (answers.length === 0 ? { stop: true } : writeReport(values)) },
  ],
}

export const GRAPH_IDS: readonly string[] = Object.keys(GRAPHS)

/**
 * The graph's steps. `input.sandbox` adds steps before them (`pause`, `fail`, `progress`: a list of what to stream as
 * custom events), sets how long the run takes (`duration_ms`), and chooses what the agent says.
 */
export function planRun({ graphId, work }: Pick<Run, 'graphId' | 'work'>): RunPlan {
  if ('command' in work || work.input === null) return { steps: null, runningMs: null }
  const input = isJsonObject(work.input) ? work.input : {}
  const wish = isJsonObject(input.sandbox) ? input.sandbox : {}
  const { duration_ms, pause, fail, progress } = wish
  const napMs = graphId === 'sleep' ? (input.ms ?? 1_000) : undefined
  const runningMs = [duration_ms, napMs].find((ms) => typeof ms === 'number' && ms >= 0)
  return {
    steps: [
      ...(pause === undefined ? [] : [askFor(typeof pause === 'string' ? { question: pause } : pause, 'sandbox_ask')]),
      ...(fail === undefined ? [] : [{ name: 'sandbox_fail', take: () => ({ fail: textOf(fail) }) }]),
      ...(Array.isArray(progress) ? [{ name: 'sandbox_work', take: () => ({ update: {}, progress }) }] : []),
      ...(graphId === 'agent' ? agentSteps(wish) : (GRAPHS[graphId] ?? [])),
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

function tellCaller(_values: JsonObject, _answers: readonly Json[], _newId: NewId, config: JsonObject): StepResult {
  const { caller = null, user_id = null, language = null } = config
  return { update: { report: { caller, user_id, language } } }
}

function typeOf({ role, type }: JsonObject): string {
  if (role === 'assistant' || type === 'ai') return 'ai'
  return role === 'system' || type === 'system' ? 'system' : 'human'
}

function titleOf(title: Json | undefined): Json {
  return title ?? 'Untitled'
}
