import { DOCUMENTS } from '../outside/run-plans.ts'
import type { Prng } from '../time/prng.ts'
import type { ClientObservations, JobView } from './job-scenario.ts'

/** The texts of the answers by the ids of their questions; null: the graph goes on after a breakpoint. */
export type SentAnswers = Record<string, string> | null

/** A request for a run: the principal that sent it, and what it sent. */
export interface SentRequest {
  by: string
  /** The marker of the input that it sent. */
  marker?: string
  answers?: SentAnswers
}

/** Notes a request for a run, and returns the field of its body that names it. */
export function nameRequest(observed: ClientObservations, request: SentRequest): string {
  const id = `request ${observed.asked.size + 1}`
  observed.asked.set(id, request)
  return `"configurable":{"asked":"${id}"}`
}

const ANSWERS = [
  '"go on"',
  'false',
  '0',
  '""',
  'null',
  '{"approved":false,"note":null}',
  '[]',
  '12345678901234567890',
  '-0',
]

/** An answer that fits the questions of the job as the client sees them. */
export function answerTo({ interrupts }: JobView, prng: Prng): { body: string; sent: SentAnswers } {
  const ids = (interrupts ?? []).map(({ id }) => id)
  if (ids.length === 0) return { body: '{"input":null}', sent: null }
  const sent = Object.fromEntries(ids.map((id) => [id, prng.pick(ANSWERS)]))
  const byId = Object.entries(sent).map(([id, text]) => `"${id}":${text}`)
  const single = ids.length === 1 && prng.chance(0.7) ? Object.values(sent)[0] : undefined
  return { body: single === undefined ? `{"answers":{${byId}}}` : `{"input":${single}}`, sent }
}

/** The exact text of a new job's input, with values that careless code changes. */
export function inputOf(marker: string, { prng, observed }: { prng: Prng; observed: ClientObservations }): string {
  const text = `{"marker":"${marker}","document":${prng.pick(DOCUMENTS)}}`
  observed.inputs.set(marker, text)
  return text
}
