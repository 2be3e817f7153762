import { systemClock } from '../../core/clock.ts'
import { reasonOf } from '../../core/errors.ts'
import { exchange, type HttpAnswer } from '../../core/exchange.ts'
import { keepNumberText } from '../../core/json/json-text.ts'
import { isJsonObject, type JsonObject } from '../../core/json.ts'
import { CommandError, type CommandLine, EXIT } from '../io.ts'

/** Longer than any handler of the service takes. */
const TIMEOUT_MS = 60_000
/** A stream has a heartbeat every 15 s. */
const SILENCE_MS = 60_000
const MAX_BYTES = 256 * 1024 * 1024
const PAGE = 100

type Query = Readonly<Record<string, string | undefined>>

interface Request {
  method?: 'GET' | 'POST' | 'DELETE'
  query?: Query
  body?: object
}

/** A page of a list. The service may end a page early. */
interface Page<Item> {
  data: Item[]
  next_cursor: string | null
}

/**
 * A service as the command line uses it: by its HTTP API, with a key. Every failure is a `CommandError` with the message of
 * the service. Numbers in answers keep their digits, so answers are printed with `writeJson`.
 */
export class ServiceClient {
  readonly url: string
  readonly #key: string
  readonly #stopping: AbortSignal

  constructor({ url, key }: { url: string; key: string }, { stopping }: Pick<CommandLine, 'stopping'>) {
    this.url = url.replace(/\/+$/, '')
    this.#key = key
    this.#stopping = stopping
  }

  /** The body of a successful answer; null if it has none. */
  async call<Body>(path: string, request: Request = {}): Promise<Body> {
    const answer = await this.#exchange(path, request)
    if (answer.status < 200 || answer.status > 299) throw this.#refusal(answer.status, answer.text)
    const body = answer.text === '' ? null : parse(answer.text)
    if (body === undefined) throw this.#isOther(answer.status)
    return body as Body
  }

  /** All items of a list, page by page. */
  async *list<Item>(path: string, query: Query = {}): AsyncGenerator<Item> {
    let cursor: string | undefined
    do {
      const page: Page<Item> = await this.call(path, { query: { limit: `${PAGE}`, ...query, cursor } })
      if (!Array.isArray(page?.data)) throw this.#isOther(200)
      yield* page.data
      cursor = page.next_cursor ?? undefined
    } while (cursor !== undefined)
  }

  /** Whether the key is valid here. False if nothing listens, or another program, or a service that does not know the key. */
  async accepts(): Promise<boolean> {
    const answer = await this.#exchange('/v1/job-types').catch((error: unknown) => {
      if (this.#stopping.aborted) throw error
      return null
    })
    // A service that is busy or starting has answered with an envelope, too.
    return answer !== null && answer.status !== 401 && (answer.status === 200 || messageIn(answer.text) !== null)
  }

  /** The pieces of a long answer as they arrive. The text is incomplete unless the iteration ends without an error. */
  async *stream(path: string, headers: Record<string, string> = {}): AsyncGenerator<string> {
    const silent = new AbortController()
    const signal = AbortSignal.any([this.#stopping, silent.signal])
    const abort = () => silent.abort(new Error(`nothing arrived for ${SILENCE_MS} ms`))
    const timer = setTimeout(abort, SILENCE_MS)
    try {
      const sent = { 'x-api-key': this.#key, ...headers }
      const response = await fetch(this.#address(path), { headers: sent, redirect: 'manual', signal })
      if (response.status !== 200) throw this.#refusal(response.status, await response.text())
      const decoder = new TextDecoder()
      for await (const chunk of response.body ?? []) {
        timer.refresh()
        yield decoder.decode(chunk, { stream: true })
      }
    } catch (error) {
      throw error instanceof CommandError ? error : this.#unreachable(error)
    } finally {
      clearTimeout(timer)
    }
  }

  #exchange(path: string, { method = 'GET', query, body }: Request = {}): Promise<HttpAnswer> {
    return exchange({
      fetch,
      clock: systemClock,
      url: this.#address(path, query),
      method,
      headers: { 'x-api-key': this.#key, ...(body && { 'content-type': 'application/json' }) },
      ...(body && { body: JSON.stringify(body) }),
      timeoutMs: TIMEOUT_MS,
      maxBytes: MAX_BYTES,
      signal: this.#stopping,
    }).catch((error: unknown) => {
      throw this.#unreachable(error)
    })
  }

  #address(path: string, query: Query = {}): string {
    const given = Object.entries(query).filter((entry): entry is [string, string] => entry[1] !== undefined)
    return `${this.url}${path}${given.length > 0 ? `?${new URLSearchParams(given)}` : ''}`
  }

  #refusal(status: number, text: string): CommandError {
    const message = messageIn(text)
    if (message === null) return this.#isOther(status)
    if (status === 401) return new CommandError(`${this.url} refuses the key: ${message}`)
    return new CommandError(message, status >= 500 || status === 429 ? EXIT.unavailable : EXIT.failed)
  }

  #isOther(status: number): CommandError {
    return new CommandError(`${this.url} answered ${status}, not as this service does`, EXIT.unavailable)
  }

  #unreachable(cause: unknown): CommandError {
    if (this.#stopping.aborted) return new CommandError('Interrupted')
    const reason = reasonOf(cause instanceof TypeError ? (cause.cause ?? cause) : cause)
    return new CommandError(`${this.url} cannot be reached: ${reason}`, EXIT.unavailable, { cause })
  }
}

/** The message of an error in either envelope; null if the text is no error of this service. */
function messageIn(text: string): string | null {
  const body = parse(text)
  const error = isJsonObject(body) ? (body.error ?? body.detail) : null
  return isJsonObject(error) && typeof error.message === 'string' ? error.message : null
}

function parse(text: string): JsonObject | undefined {
  try {
    return JSON.parse(text, keepOddNumbers) as JsonObject
  } catch {
    return undefined
  }
}

/** Most numbers are written as JavaScript would write them. */
function keepOddNumbers(key: string, value: unknown, context?: { source: string }): unknown {
  return String(value) === context?.source ? value : keepNumberText(key, value, context)
}
