import type { HttpAnswer } from '../core/exchange.ts'
import { isJsonObject, type Json } from '../core/json.ts'
import { asStorableText } from '../core/text.ts'
import { wordsOf } from './read-answers.ts'
import { withoutTokens } from './redact-tokens.ts'
import type { RuntimeRefusal } from './runtime-types.ts'

/**
 * True if the answer says nothing about the run: the runtime fails, is overloaded, redirects, or does not accept the API
 * key.
 */
export function provesNothing(status: number): boolean {
  return status >= 500 || (status >= 300 && status < 400) || [401, 403, 408, 429].includes(status)
}

/** The runtime never sends web pages: a proxy or another server answered. */
export function isWebPage({ headers }: Pick<HttpAnswer, 'headers'>): boolean {
  return /^text\/html\b/i.test(headers.get('content-type') ?? '')
}

export function isSuccess({ status }: Pick<HttpAnswer, 'status'>): boolean {
  return status >= 200 && status < 300
}

/** False for the plain text of a gateway, with any status. */
export function hasJsonType({ headers }: Pick<HttpAnswer, 'headers'>): boolean {
  return /^application\/json\b/i.test(headers.get('content-type') ?? '')
}

/** The runtime has the paths that start a run, so a gateway or another server gave this answer. */
export function isNotTheRuntime({ status }: HttpAnswer): boolean {
  return status === 404 || status === 405 || status === 410
}

/** Matches the runtime's own text. An unknown thread is no refusal: it is created again before the next start. */
export function isUnknownGraph({ status, text }: HttpAnswer): boolean {
  return status === 404 && /\bno (?:assistant|graph)\b|\b(?:assistant|graph)\b.*\bnot found\b/is.test(text)
}

/**
 * The runtime knows no such run or thread, or the id is not valid. Matches the runtime's own text, because the 404 of a
 * proxy or of a wrong address proves nothing about the run.
 */
export function isUnknownRun({ status, text }: HttpAnswer): boolean {
  if (status === 404) return /\b(?:run|thread)\b/i.test(text)
  return (status === 400 || status === 422) && /uuid/i.test(text)
}

export function isBusy({ status, message }: RuntimeRefusal): boolean {
  return status === 422 && /already running|multitask|inflight|in-flight/i.test(message)
}

export function refusalOf(answer: HttpAnswer): RuntimeRefusal {
  return { status: answer.status, message: asStorableText(withoutTokens(messageIn(answer.text)), 500) }
}

/** A longer answer is not parsed: it may repeat the whole input. */
const MAX_PARSED_LENGTH = 256 * 1024

function messageIn(text: string): string {
  if (text.length > MAX_PARSED_LENGTH) return text.slice(0, MAX_PARSED_LENGTH)
  try {
    const body = JSON.parse(text) as { detail?: Json; message?: Json; error?: Json }
    return faultsIn(body.error) ?? wordsOf(body.detail ?? body.message ?? body.error) ?? text
  } catch {
    return text
  }
}

/** The faults that a schema found, as one text: `thread_id: Invalid uuid`. */
function faultsIn(error: Json | undefined): string | undefined {
  const issues = isJsonObject(error) && Array.isArray(error.issues) ? error.issues.filter(isJsonObject) : []
  const faults = issues.map(({ path, message }) => `${Array.isArray(path) ? path.join('/') : ''}: ${message}`)
  return faults.length > 0 ? faults.join(', ') : undefined
}
