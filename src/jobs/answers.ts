import { createHash, type Hash } from 'node:crypto'
import { ApiError } from '../core/errors.ts'
import type { JsonPart } from '../core/json/json-part.ts'
import { scanJson } from '../core/json/json-scan.ts'
import { canonicalPieces, JsonText, writeJson } from '../core/json/json-text.ts'
import { WHOLE, wantFields, wantItems } from '../core/json/wanted.ts'
import type { ThreadState } from '../runtime/runtime-types.ts'
import type { DocumentSchema } from './schemas/document-schema.ts'

/** A client's answer: to a single question, or to several, in an object with the ids of the questions. */
export type GivenAnswer = { input: JsonText } | { answers: JsonText }

/** An answer that fits the questions, ready for the runtime. */
interface Answer {
  /** The JSON text of the runtime's `command`; `null` continues after a breakpoint. */
  command: string
  /** Fingerprints of the questions that it answers. Empty for a breakpoint, null if they were closed elsewhere. */
  questions: string[] | null
  /** The answers by the ids of their questions, as JSON text. The answer to a question without an id has an empty key. */
  given: string
}

/** Without the id of its question, the runtime takes such an answer for none. */
function isDropped({ text }: JsonText): boolean {
  return ['false', '""', 'null'].includes(text) || (/^[-\d]/.test(text) && Number(text) === 0)
}

const WANTED_QUESTIONS = wantItems(wantFields({ id: WHOLE, interrupt_id: WHOLE }))

/**
 * Matches an answer to the open questions, a JSON list. The answer is sent with the id of its question. Older runtimes
 * give no ids; then a single question gets the plain answer.
 */
export async function fitAnswer(
  given: GivenAnswer,
  interrupts: string | null,
  schema: DocumentSchema | null = null,
): Promise<Answer> {
  const { items: questions } = (await scanJson(interrupts ?? '[]', { wanted: WANTED_QUESTIONS })).root
  const ids = questions.map(idOf)
  if ('answers' in given) {
    const answers = await answersOf(given.answers, ids)
    if (questions.length === 0) return continuation(interrupts)
    for (const [id, answer] of Object.entries(answers)) {
      checkFits(schema, answer, `body/answers/${id}`)
      // Each check may take its whole time, so other requests get a turn between two of them.
      await new Promise(setImmediate)
    }
    return { command: byId(answers), questions: await fingerprintsOf(questions), given: writeJson(answers) }
  }
  const { input } = given
  const [id] = ids
  if (questions.length > 1) {
    throw invalid(
      `body/input answers one question, and the job asks ${questions.length}: use "answers" with ${list(ids)}`,
    )
  }
  if (id === undefined) {
    if (input.text !== 'null')
      throw invalid('body/input must be null: the job asks no question, it only waits to be continued')
    return continuation(interrupts)
  }
  if (id === null && isDropped(input)) {
    throw invalid(`body/input must not be ${input.text}: the question has no id, and the runtime drops such an answer`)
  }
  checkFits(schema, input, 'body/input')
  return {
    command: id === null ? writeJson({ resume: input }) : byId({ [id]: input }),
    questions: await fingerprintsOf(questions),
    given: writeJson({ [id ?? '']: input }),
  }
}

/** For a job that asks nothing and only waits to be continued. */
function continuation(interrupts: string | null): Answer {
  return { command: 'null', questions: interrupts === null ? null : [], given: '{}' }
}

/** The fingerprints of the questions of a paused job. Null if they were closed elsewhere. */
export async function questionsOf(interrupts: string | null): Promise<string[] | null> {
  if (interrupts === null) return null
  return fingerprintsOf((await scanJson(interrupts, { wanted: WANTED_QUESTIONS })).root.items)
}

/**
 * Whether the questions, or the breakpoint, are still open in the state of the thread. After they were closed elsewhere
 * (null), the thread can be continued as long as it has no other question.
 */
export function isStillOpen(questions: readonly string[] | null, { interrupts, next }: ThreadState): boolean {
  if (questions === null) return interrupts.length === 0
  if (questions.length === 0) return next.length > 0 && interrupts.length === 0
  const open = new Set(interrupts.map(fingerprintOf))
  return questions.every((question) => open.has(question))
}

/** The answers by the ids of their questions. There must be one for each question, and no other. */
async function answersOf({ text }: JsonText, ids: readonly (string | null)[]): Promise<Record<string, JsonText>> {
  const asked = ids.filter((id) => id !== null)
  const { root } = await scanJson(text, { wanted: wantFields(Object.fromEntries(asked.map((id) => [id, WHOLE]))) })
  const isAll = root.members === root.fields.size
  const missing = ids.filter((id) => id === null || root.at(id) === undefined)
  const fault = missing.length > 0 || !isAll ? faultOfIds({ text, asked, missing }) : null
  if (fault !== null) throw invalid(fault)
  return Object.fromEntries(asked.map((id) => [id, new JsonText(root.at(id)?.text ?? 'null')]))
}

/** Parsing a longer text only to name its keys would take too long. */
const MAX_NAMED_LENGTH = 64 * 1024

/** Null if an id is only repeated: the last answer counts. */
function faultOfIds(found: {
  text: string
  asked: readonly string[]
  missing: readonly (string | null)[]
}): string | null {
  const { text, asked, missing } = found
  const given = text.length > MAX_NAMED_LENGTH ? null : Object.keys(JSON.parse(text) as object)
  const unknown = given?.filter((id) => !asked.includes(id))
  const faults = [
    ...(unknown === undefined ? ['must have the ids of the open questions and no others'] : []),
    ...(unknown?.length ? [`must not have ${list(unknown)}, which the job does not ask`] : []),
    ...(missing.length > 0 ? [`must have ${list(missing)}`] : []),
  ]
  return faults.length === 0 ? null : `body/answers ${faults.join(', and ')}`
}

function checkFits(schema: DocumentSchema | null, answer: JsonText, place: string): void {
  const fault = schema?.faultOf(answer, place)
  if (fault) throw invalid(fault)
}

function byId(answers: Record<string, JsonText>): string {
  return writeJson({ resume: answers })
}

const MAX_LISTED = 10

function list(ids: readonly (string | null)[]): string {
  const shown = ids.slice(0, MAX_LISTED)
  const names = shown.map((id) => (id === null ? 'a question without an id' : JSON.stringify(id.slice(0, 100))))
  return ids.length > MAX_LISTED ? `${names.join(', ')} and ${ids.length - MAX_LISTED} more` : names.join(', ')
}

function idOf(question: JsonPart): string | null {
  const id = question.at('id')
  const used = id === undefined || id.kind === 'null' ? question.at('interrupt_id') : id
  return used?.kind === 'string' ? (JSON.parse(used.text) as string) : null
}

/** The runtime gives the second question of one step the id of the first, so the id alone does not name a question. */
export function fingerprintOf(question: JsonText): string {
  const hash = createHash('sha256')
  for (const piece of canonicalPieces(question)) hash.update(piece)
  return inShort(hash)
}

/** Questions may be many megabytes, so other requests get turns meanwhile. */
async function fingerprintsOf(questions: readonly JsonPart[]): Promise<string[]> {
  const fingerprints: string[] = []
  for (const { text } of questions) {
    const hash = createHash('sha256')
    for (const piece of canonicalPieces(new JsonText(text))) {
      hash.update(piece)
      await new Promise(setImmediate)
    }
    fingerprints.push(inShort(hash))
  }
  return fingerprints
}

function inShort(hash: Hash): string {
  return hash.digest('base64url').slice(0, 22)
}

function invalid(message: string): ApiError {
  return new ApiError('invalid_request', message)
}
