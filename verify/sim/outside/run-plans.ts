import type { Json, JsonObject } from '../../../src/core/json.ts'
import { parseExactJson } from '../../../src/sandbox/agent-runtime/exact-json.ts'
import type { Step, StepResult } from '../../../src/sandbox/agent-runtime/records.ts'
import type { Theme } from '../faults/plan.ts'
import type { Prng } from '../time/prng.ts'

/** How a run will end, unless it is cancelled before. */
export type Ending =
  | { kind: 'success'; outputText: string }
  /** `early`: it writes an output before it pauses. `interrupted`: it ends with that status instead of `success`. */
  | { kind: 'pause'; early: boolean; interrupted: boolean; asks: PauseKind }
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
  /** It stays `running` for ever, and cannot be cancelled. */
  | { kind: 'zombie' }

/** One question, two questions at once, or a static breakpoint without a question. */
export type PauseKind = 'one' | 'two' | 'nothing'

export interface SimRunPlan {
  pendingMs: number
  runningMs: number
  ending: Ending
  steps: readonly Step[]
  /** How long after its end the runtime deletes it; null: never. */
  forgottenAfterMs: number | null
}

/** Compact JSON that must be returned as the same text, with values that careless code would change. */
export const DOCUMENTS = [
  '{"title":"done","n":42}',
  '"plain words"',
  '[]',
  'false',
  '0',
  '""',
  '{"id":12345678901234567890,"share":0.1,"big":1e400,"cold":-0}',
  '{"text":"nul \\u0000, half \\ud83d, whole 😀"}',
  '{"a":{"b":[{"c":null}]},"note":"line\\nbreak"}',
  '{"link":"https://files.sim/report.pdf?token=theirs&page=1"}',
  '"see https://files.sim/r?page=1&token=theirs"',
]

/** The output that a graph writes before it pauses. */
export const DRAFT = '"a draft"'

export const ASSISTANTS = ['agent', 'report', 'review', 'archive', 'inquiry'] as const
const PAUSING = new Set(['agent', 'review', 'inquiry'])

/** Runs that go on after this end, or that have none. */
const REMEMBERED = new Set<Ending['kind']>(['pause', 'rolled_back', 'vanished', 'endless', 'zombie'])

const SPANS = {
  short: { min: 0, max: 2_000 },
  calm: { min: 2_000, max: 20_000 },
  medium: { min: 2_000, max: 40_000 },
  long: { min: 40_000, max: 280_000 },
  veryLong: { min: 20 * 60_000, max: 90 * 60_000 },
}

export interface RunTraits {
  assistant: string
  resumed: boolean
  hosted: boolean
  theme: Theme
  /** Share of runs that the runtime deletes after their end. */
  forgets: number
  /** Started after the time of faults. */
  calm: boolean
}

export function planRun(prng: Prng, traits: RunTraits): SimRunPlan {
  const ending = planEnding(prng, traits)
  const span = traits.calm ? prng.weighted({ short: 5, calm: 5 }) : prng.weighted({ short: 5, medium: 4, long: 1 })
  const { min, max } = SPANS[traits.assistant === 'archive' ? 'veryLong' : span]
  return {
    pendingMs: prng.chance(0.3) ? prng.int(0, 4_000) : prng.int(0, 50),
    runningMs: ending.kind === 'zombie' ? 0 : prng.int(min, max),
    ending,
    steps: stepsOf(ending, traits),
    forgottenAfterMs: traits.forgets > 0 && !REMEMBERED.has(ending.kind) ? forgetting(prng, traits.forgets) : null,
  }
}

/** When the run is deleted: together with its callback, shortly after it, or after most deliveries of the callback. */
function forgetting(prng: Prng, share: number): number | null {
  if (!prng.chance(share)) return null
  return prng.pick([0, prng.int(0, 1_000), prng.int(0, 60_000)])
}

function planEnding(prng: Prng, { assistant, resumed, hosted, theme, calm }: RunTraits): Ending {
  const kind = prng.weighted({
    success: 50,
    error: 12,
    timeout: 3,
    no_output: 5,
    pause: PAUSING.has(assistant) ? (resumed ? 12 : theme === 'pauses' || assistant === 'inquiry' ? 150 : 35) : 0,
    ...(calm
      ? {}
      : {
          stopped: resumed ? 30 : 3,
          rolled_back: hosted ? 2 : 0,
          vanished: 3,
          endless: theme === 'cancels' ? 60 : 6,
          zombie: 4,
        }),
  })
  if (kind === 'success') return { kind, outputText: outputOf(prng, assistant) }
  if (kind === 'error') {
    const message = prng.pick(['kaboom: upstream 500', 'no such tool', 'Ärger "x"'])
    return { kind, message, progress: prng.chance(0.5) }
  }
  if (kind === 'timeout') return { kind, progress: prng.chance(0.5) }
  if (kind === 'pause') {
    const asks = prng.weighted<PauseKind>({ one: 5, two: 2, nothing: 2 })
    return { kind, asks, early: prng.chance(0.4), interrupted: asks !== 'nothing' && prng.chance(0.25) }
  }
  return { kind }
}

/** An agent's output is a message, and a message is text. */
function outputOf(prng: Prng, assistant: string): string {
  return assistant === 'agent'
    ? prng.pick(['"I am done"', '"nul \\u0000"', '"https://files.sim/r?token=theirs"'])
    : prng.pick(DOCUMENTS)
}

function stepsOf(ending: Ending, { assistant, resumed }: RunTraits): Step[] {
  // A new turn finds the messages of the turns before it.
  const write = (name: string, outputText: string | null): Step => ({
    name,
    take: ({ messages }) => ({ values: valuesOf(assistant, outputText, resumed ? [] : messages) }),
  })
  const work = write('work', null)
  switch (ending.kind) {
    case 'success':
      return [write('work', ending.outputText)]
    case 'pause': {
      const draft = write('draft', ending.early ? DRAFT : null)
      const ask = step('ask', questionOf(ending))
      // Without its own checkpoint, a resumed run with the status `interrupted` cannot be distinguished from a cancelled
      // one.
      return ending.early || ending.interrupted || ending.asks !== 'one' ? [draft, ask] : [ask]
    }
    case 'error':
      return [...(ending.progress ? [work] : []), step('fail', { fail: ending.message })]
    case 'timeout':
      return [...(ending.progress ? [work] : []), step('fail', { fail: 'too slow', endsAs: 'timeout' })]
    default:
      return [work]
  }
}

function questionOf({ asks, interrupted }: Extract<Ending, { kind: 'pause' }>): StepResult {
  if (asks === 'nothing') return { stop: true }
  if (asks === 'two') return { asks: ['Publish it?', { question: 'To whom?' }] }
  return { ask: 'Go on?', ...(interrupted ? { endsAs: 'interrupted' } : {}) }
}

function step(name: string, result: StepResult): Step {
  return { name, take: () => result }
}

export const TOKENS = { input: 11, output: 7, total: 18 }
const USAGE = { input_tokens: TOKENS.input, output_tokens: TOKENS.output }

/** An earlier turn of the conversation, which was counted when it ended. */
const HISTORY = [
  { type: 'human', content: 'hello' },
  { type: 'ai', content: 'Hello!', usage_metadata: { input_tokens: 100, output_tokens: 50 } },
]

/** The graph's values with this output in its place; null leaves it out. */
export function valuesOf(assistant: string, outputText: string | null, history: Json = []): JsonObject {
  const output = outputText === null ? [] : [parseExactJson(outputText)]
  if (assistant === 'agent') {
    const answers = output.map((content) => ({ type: 'ai', content, usage_metadata: USAGE }))
    const before = Array.isArray(history) ? history : []
    return {
      messages: [...before, ...(outputText === null ? [] : HISTORY), { type: 'human', content: 'hi' }, ...answers],
    }
  }
  if (assistant === 'review') return Object.assign({ draft: 1 }, ...output.map((summary) => ({ result: { summary } })))
  return Object.assign({ input: 'x', usage: USAGE }, ...output.map((report) => ({ report })))
}

/** Whether the graph reports its tokens. */
export function countsTokens(assistant: string): boolean {
  return assistant !== 'review'
}
