import type { Json, JsonObject } from '../../../src/core/json.ts'
import type { Step, StepResult } from '../../../src/sandbox/agent-runtime/graphs.ts'
import type { Theme } from '../faults/plan.ts'
import type { Prng } from '../time/prng.ts'

/** How a run will end, unless it is cancelled before. */
export type Ending =
  | { kind: 'success'; outputText: string }
  /** `early`: it writes an output before it pauses. `interrupted`: it ends with that status instead of `success`. */
  | { kind: 'pause'; early: boolean; interrupted: boolean }
  | { kind: 'no_output' }
  /** `progress`: it completes a step first, and so leaves a checkpoint of its own even when it was resumed. */
  | { kind: 'error'; message: string; progress: boolean }
  | { kind: 'timeout'; progress: boolean }
  /** It is cancelled by another client of the runtime. */
  | { kind: 'stopped' }
  /** It is cancelled there with rollback: it is deleted, and its callback says `rollback`. */
  | { kind: 'rolled_back' }
  /** It is deleted without a callback. */
  | { kind: 'vanished' }
  /** It runs until it is cancelled. */
  | { kind: 'endless' }
  /** It says `running` for ever, and cannot be cancelled. */
  | { kind: 'zombie' }

export interface SimRunPlan {
  pendingMs: number
  runningMs: number
  ending: Ending
  steps: readonly Step[]
  /** How long after its end the runtime deletes it; null: never. */
  forgottenAfterMs: number | null
}

/** Compact JSON that reads back as the same text, with values that careless code loses. */
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

export const ASSISTANTS = ['agent', 'report', 'review'] as const
const PAUSING = new Set(['agent', 'review'])

/** Runs that go on after this end, or that have none. */
const REMEMBERED = new Set<Ending['kind']>(['pause', 'rolled_back', 'vanished', 'endless', 'zombie'])

const SPANS = {
  short: { min: 0, max: 2_000 },
  medium: { min: 2_000, max: 40_000 },
  long: { min: 40_000, max: 280_000 },
}

export interface RunTraits {
  assistant: string
  resumed: boolean
  hosted: boolean
  theme: Theme
  /** Share of runs that the runtime deletes after their end. */
  forgets: number
}

export function planRun(prng: Prng, traits: RunTraits): SimRunPlan {
  const ending = planEnding(prng, traits)
  const { min, max } = SPANS[prng.weighted({ short: 5, medium: 4, long: 1 })]
  return {
    pendingMs: prng.chance(0.3) ? prng.int(0, 4_000) : prng.int(0, 50),
    runningMs: ending.kind === 'zombie' ? 0 : prng.int(min, max),
    ending,
    steps: stepsOf(ending, traits.assistant),
    forgottenAfterMs: traits.forgets > 0 && !REMEMBERED.has(ending.kind) ? forgetting(prng, traits.forgets) : null,
  }
}

/** Together with its callback, just after it, or once most receivers have it. */
function forgetting(prng: Prng, share: number): number | null {
  if (!prng.chance(share)) return null
  return prng.pick([0, prng.int(0, 1_000), prng.int(0, 60_000)])
}

function planEnding(prng: Prng, { assistant, resumed, hosted, theme }: RunTraits): Ending {
  const kind = prng.weighted({
    success: 50,
    error: 12,
    timeout: 3,
    no_output: 5,
    pause: PAUSING.has(assistant) ? (resumed ? 12 : theme === 'pauses' ? 150 : 35) : 0,
    stopped: resumed ? 10 : 3,
    rolled_back: hosted ? 2 : 0,
    vanished: 3,
    endless: theme === 'cancels' ? 60 : 6,
    zombie: 4,
  })
  if (kind === 'success') return { kind, outputText: outputOf(prng, assistant) }
  if (kind === 'error') {
    const message = prng.pick(['kaboom: upstream 500', 'no such tool', 'Ärger "x"'])
    return { kind, message, progress: prng.chance(0.5) }
  }
  if (kind === 'timeout') return { kind, progress: prng.chance(0.5) }
  if (kind === 'pause') return { kind, early: prng.chance(0.4), interrupted: prng.chance(0.25) }
  return { kind }
}

/** An agent's output is a message, and a message is text. */
function outputOf(prng: Prng, assistant: string): string {
  return assistant === 'agent'
    ? prng.pick(['"I am done"', '"nul \\u0000"', '"https://files.sim/r?token=theirs"'])
    : prng.pick(OUTPUTS)
}

function stepsOf(ending: Ending, assistant: string): Step[] {
  const work = step('work', { values: valuesOf(assistant, null) })
  switch (ending.kind) {
    case 'success':
      return [step('work', { values: valuesOf(assistant, ending.outputText) })]
    case 'pause': {
      const draft = step('draft', { values: valuesOf(assistant, ending.early ? '"a draft"' : null) })
      const ask = step('ask', { ask: 'Go on?', ...(ending.interrupted ? { endsAs: 'interrupted' } : {}) })
      // Without a checkpoint of its own, a resumed run that says `interrupted` cannot be reportedEnds from a cancelled one.
      return ending.early || ending.interrupted ? [draft, ask] : [ask]
    }
    case 'error':
      return [...(ending.progress ? [work] : []), step('fail', { fail: ending.message })]
    case 'timeout':
      return [...(ending.progress ? [work] : []), step('fail', { fail: 'too slow', endsAs: 'timeout' })]
    default:
      return [work]
  }
}

function step(name: string, result: StepResult): Step {
  return { name, take: () => result }
}

export const TOKENS = { input: 11, output: 7, total: 18 }
const USAGE = { input_tokens: TOKENS.input, output_tokens: TOKENS.output }

/** The graph's values with this output in its place; null leaves it out. */
export function valuesOf(assistant: string, outputText: string | null): JsonObject {
  const output = outputText === null ? [] : [parseExactly(outputText)]
  if (assistant === 'agent') {
    const answers = output.map((content) => ({ type: 'ai', content, usage_metadata: USAGE }))
    return { messages: [{ type: 'human', content: 'hi' }, ...answers] }
  }
  if (assistant === 'review') return Object.assign({ draft: 1 }, ...output.map((summary) => ({ result: { summary } })))
  return Object.assign({ input: 'x', usage: USAGE }, ...output.map((report) => ({ report })))
}

// Not by the service's own parser: a bug in it must not change what the runtime says.
const { rawJSON } = JSON as unknown as { rawJSON(text: string): Json }

/** Numbers keep their digits. */
function parseExactly(text: string): Json {
  const keepDigits = (_key: string, value: Json, { source }: { source: string }) =>
    typeof value === 'number' ? rawJSON(source) : value
  return JSON.parse(text, keepDigits as never) as Json
}

/** Whether the graph says how many tokens it took. */
export function countsTokens(assistant: string): boolean {
  return assistant !== 'review'
}
