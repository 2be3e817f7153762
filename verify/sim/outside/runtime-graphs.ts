import type { Theme } from '../faults/plan.ts'
import type { Prng } from '../time/prng.ts'

/** How a run will end, if nobody cancels it. */
export type Ending =
  | { kind: 'success'; outputText: string }
  /** `early`: its output is there although it pauses. `interrupted`: by the status of that name. */
  | { kind: 'pause'; early: boolean; interrupted: boolean }
  | { kind: 'no_output' }
  | { kind: 'error'; message: string }
  | { kind: 'timeout' }
  /** Somebody stops it on the runtime itself. */
  | { kind: 'stopped' }
  /** Cancelled there with rollback: its row is deleted, and the callback says so. */
  | { kind: 'rolled_back' }
  /** It vanishes without a word. */
  | { kind: 'vanished' }
  /** It runs until it is cancelled. */
  | { kind: 'endless' }
  /** It says `running` for ever, and hears nothing. */
  | { kind: 'zombie' }

export interface RunPlan {
  pendingMs: number
  runningMs: number
  ending: Ending
  /** How long after its end the runtime no longer knows it; null: it remembers. */
  forgottenAfterMs: number | null
}

/** Compact JSON that reads back as the same text, among it what careless code loses. */
const OUTPUTS = [
  '{"title":"done","n":42}',
  '"plain words"',
  '[]',
  'false',
  '0',
  '""',
  '{"id":12345678901234567890,"share":0.1,"big":1e400}',
  '{"text":"nul \\u0000, half \\ud83d, whole 😀"}',
  '{"a":{"b":[{"c":null}]},"note":"line\\nbreak"}',
  '{"link":"https://files.sim/report.pdf?token=theirs&page=1"}',
  '"see https://files.sim/r?page=1&token=theirs"',
]

const PAUSING = new Set(['agent', 'review'])

/** Those with more to come, or none to forget. */
const REMEMBERED = new Set<Ending['kind']>(['pause', 'rolled_back', 'vanished', 'endless', 'zombie'])

const SPANS = {
  short: { min: 0, max: 2_000 },
  medium: { min: 2_000, max: 40_000 },
  long: { min: 40_000, max: 280_000 },
}

export function planRun(prng: Prng, graph: Graph): RunPlan {
  const ending = planEnding(prng, graph)
  const { min, max } = SPANS[prng.weighted({ short: 5, medium: 4, long: 1 })]
  return {
    pendingMs: prng.chance(0.3) ? prng.int(0, 4_000) : prng.int(0, 50),
    runningMs: prng.int(min, max),
    ending,
    forgottenAfterMs: graph.forgets > 0 && !REMEMBERED.has(ending.kind) ? forgetting(prng, graph.forgets) : null,
  }
}

/** As soon as it has told of its end, or before, or once most have heard. */
function forgetting(prng: Prng, share: number): number | null {
  if (!prng.chance(share)) return null
  return prng.pick([0, prng.int(0, 1_000), prng.int(0, 60_000)])
}

export interface Graph {
  assistant: string
  resumed: boolean
  theme: Theme
  /** Share of runs the runtime forgets. */
  forgets: number
}

function planEnding(prng: Prng, { assistant, resumed, theme }: Graph): Ending {
  const kind = prng.weighted({
    success: 50,
    error: 12,
    timeout: 3,
    no_output: 5,
    pause: PAUSING.has(assistant) ? (resumed ? 12 : theme === 'pauses' ? 150 : 35) : 0,
    stopped: resumed ? 10 : 3,
    rolled_back: 2,
    vanished: 3,
    endless: theme === 'cancels' ? 60 : 6,
    zombie: 4,
  })
  if (kind === 'success') return { kind, outputText: outputOf(prng, assistant) }
  if (kind === 'error') return { kind, message: prng.pick(['kaboom: upstream 500', 'no such tool', 'Ärger "x"']) }
  if (kind === 'pause') return { kind, early: prng.chance(0.4), interrupted: prng.chance(0.25) }
  return { kind }
}

/** An agent's output is a message, and a message is text. */
function outputOf(prng: Prng, assistant: string): string {
  return assistant === 'agent'
    ? prng.pick(['"I am done"', '"nul \\u0000"', '"https://files.sim/r?token=theirs"'])
    : prng.pick(OUTPUTS)
}

export const TOKENS = { input: 11, output: 7, total: 18 }
const usageText = JSON.stringify({ input_tokens: TOKENS.input, output_tokens: TOKENS.output })

/** The graph's values with that output in its place; null leaves it out. `wrapped` is how one runtime posts messages. */
export function valuesText(assistant: string, outputText: string | null, wrapped: boolean): string {
  if (assistant === 'agent') return `{"messages":[${messagesText(outputText, wrapped).join(',')}]}`
  if (assistant === 'review') return `{"draft":1${outputText === null ? '' : `,"result":{"summary":${outputText}}`}}`
  return `{"input":"x"${outputText === null ? '' : `,"report":${outputText}`},"usage":${usageText}}`
}

function messagesText(outputText: string | null, wrapped: boolean): string[] {
  const human = wrapped
    ? '{"lc":1,"type":"constructor","id":["langchain_core","messages","HumanMessage"],"kwargs":{"content":"hi"}}'
    : '{"type":"human","content":"hi"}'
  if (outputText === null) return [human]
  const fields = `"content":${outputText},"usage_metadata":${usageText}`
  const answer = wrapped
    ? `{"lc":1,"type":"constructor","id":["langchain_core","messages","AIMessage"],"kwargs":{${fields}}}`
    : `{"type":"ai",${fields}}`
  return [human, answer]
}

/** Whether the graph says how many tokens it took. */
export function countsTokens(assistant: string): boolean {
  return assistant !== 'review'
}
