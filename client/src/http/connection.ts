import { ApiError, isTemporary, NotProjectApi, parseJson, readError } from '../errors.ts'
import { LinkedAbort, reasonOf } from './abort.ts'
import { type Clock, systemClock } from './clock.ts'
import { type CredentialOptions, Credentials } from './credentials.ts'

export interface ConnectionOptions extends CredentialOptions {
  /** The address of the service, for example `https://api.example.com`. */
  url: string
  /** Replaces the global `fetch`, for example with `fetch` of `expo/fetch` in React Native. */
  fetch?: typeof fetch
  /** False if your `fetch` returns only complete bodies: the client then polls. Detected for the global `fetch`. */
  streaming?: boolean
  /**
   * True: streams stay open while the page is hidden. Default: they are closed after two seconds and resume when it is shown,
   * because over HTTP/1.1 all tabs of a browser share six connections.
   */
  streamsWhileHidden?: boolean
  /** The timeout of one attempt of a request. */
  timeoutMs?: number
  /** How often a request is repeated. */
  retries?: number
  /** Replaces `JSON.parse` for answers, for example to keep numbers that JavaScript cannot hold. Must throw on bad JSON. */
  parse?: (text: string) => unknown
  /** For tests. */
  clock?: Clock
  random?: () => number
}

export type Query = Record<string, string | number | boolean | null | undefined>

export interface RequestOptions {
  query?: Query
  /** Sent as JSON. */
  body?: unknown
  headers?: Record<string, string>
  signal?: AbortSignal | undefined
}

export interface Answer<Body> {
  body: Body
  headers?: Headers
}

export interface Failure {
  error: unknown
  /** 0 for the first. */
  attempt: number
}

interface SendOptions<Body> extends RequestOptions {
  /** Called after a failure. Returns the answer if an earlier attempt succeeded and only its answer was lost. */
  recover?: (failure: Failure) => Promise<Answer<Body> | undefined>
}

const DEFAULT_TIMEOUT_MS = 20_000
const DEFAULT_RETRIES = 4
/** The client waits no longer than one rate-limit window. For a longer pause it throws; the error has the time to retry. */
const MAX_RETRY_AFTER_MS = 65_000
const FIRST_PAUSE_MS = 500
const LONGEST_PAUSE_MS = 8_000
const JITTER_MS = 1_000

/** Speaks to one service: credentials, retries, timeouts and errors are the same for every request. */
export class Connection {
  readonly clock: Clock
  readonly random: () => number
  /** False after the first body that could not be read as it arrives. */
  streams: boolean
  /** Whether a hidden page closes its streams. */
  readonly hides: boolean
  readonly #base: string
  readonly #fetch: typeof fetch
  readonly #parse: ((text: string) => unknown) | undefined
  readonly #credentials: Credentials
  readonly #timeoutMs: number
  readonly #retries: number

  constructor(options: ConnectionOptions) {
    // Checked as text: the `URL` of React Native is incomplete.
    if (!/^https?:\/\/[^\s?#]+$/i.test(options.url)) {
      throw new TypeError(`url must begin with http:// or https:// and have no query: ${options.url}`)
    }
    this.#base = options.url.replace(/\/+$/, '')
    const given = options.fetch
    // Browsers demand that `fetch` is called without `this`.
    this.#fetch = given ? (input, init) => given(input, init) : (input, init) => fetch(input, init)
    this.#parse = options.parse
    this.#credentials = new Credentials(options)
    this.#timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS
    this.#retries = options.retries ?? DEFAULT_RETRIES
    this.clock = options.clock ?? systemClock
    this.random = options.random ?? Math.random
    this.hides = options.streamsWhileHidden !== true
    // The `fetch` of older React Native resolves only when the whole body has arrived, so a stream would never begin.
    this.streams = options.streaming ?? (given !== undefined || 'body' in Response.prototype)
  }

  /** Repeats the request while that may help. Rejects with an `ApiError`, or with the signal's reason. */
  async send<Body>(method: string, path: string, options: SendOptions<Body> = {}): Promise<Answer<Body>> {
    const { signal, recover } = options
    // Without a key, a retry after a lost answer would create a second object.
    const headers = { ...(method === 'POST' && idempotency()), ...options.headers }
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#attempt<Body>(method, path, { ...options, headers })
      } catch (error) {
        if (signal?.aborted) throw reasonOf(signal)
        const found = await recover?.({ error, attempt })
        if (found) return found
        const pauseMs = this.#pauseAfter(error, attempt)
        if (pauseMs === null) throw error
        await this.clock.sleep(pauseMs, signal)
        if (signal?.aborted) throw reasonOf(signal)
      }
    }
  }

  /** One attempt. Resolves with status and headers, as soon as they arrive with a 2xx status. */
  async open(path: string, { query, headers = {} }: RequestOptions, abort: LinkedAbort): Promise<Response> {
    const response = await this.#exchange(this.#urlOf(path, query), { headers }, abort)
    if (!response.ok) throw readError(response, await this.#textOf(response, abort))
    return response
  }

  async #attempt<Body>(method: string, path: string, { query, body, headers, signal }: RequestOptions) {
    const abort = new LinkedAbort(signal)
    const init = {
      method,
      headers: { accept: 'application/json', ...(body !== undefined && JSON_TYPE), ...headers },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    }
    const limit = { clock: this.clock, ms: this.#timeoutMs, message: `No answer within ${this.#timeoutMs / 1_000} s` }
    try {
      return await abort.within(limit, async (): Promise<Answer<Body>> => {
        const response = await this.#exchange(this.#urlOf(path, query), init, abort)
        const text = await this.#textOf(response, abort)
        if (!response.ok) throw readError(response, text)
        return { body: readBody(response, text, this.#parse) as Body, headers: response.headers }
      })
    } finally {
      abort.unlink()
    }
  }

  /** Milliseconds until the next attempt; null: give up. At least `Retry-After`, with jitter. */
  #pauseAfter(error: unknown, attempt: number): number | null {
    if (attempt >= this.#retries || !(isTemporary(error) || isInFlight(error))) return null
    if (error.retryAfter === null) {
      return Math.min(FIRST_PAUSE_MS * 2 ** attempt, LONGEST_PAUSE_MS) * (0.5 + this.random() / 2)
    }
    const askedMs = error.retryAfter * 1_000
    return askedMs > MAX_RETRY_AFTER_MS ? null : askedMs + this.random() * JITTER_MS
  }

  /** One request. If the service refuses the token, one more with a fresh token. */
  async #exchange(url: string, init: RequestInit, abort: LinkedAbort): Promise<Response> {
    const token = await abort.race(this.#credentials.token())
    const response = await this.#fetchOnce(url, init, { token, abort })
    if (response.status !== 401) return response
    const fresh = await abort.race(this.#credentials.refresh(token))
    if (fresh === null) return response
    discard(response)
    return this.#fetchOnce(url, init, { token: fresh, abort })
  }

  #fetchOnce(url: string, init: RequestInit, { token, abort }: { token: string | null; abort: LinkedAbort }) {
    const headers = { ...(init.headers as Record<string, string>), ...this.#credentials.headers(token) }
    const request = { ...init, headers, signal: abort.signal, cache: 'no-store' } as const
    return this.#guard(url, abort, () => this.#fetch(url, request))
  }

  /** Reads only JSON: the body of another server may never end. */
  #textOf(response: Response, abort: LinkedAbort): Promise<string> | string {
    if (isJson(response)) return this.#guard(response.url, abort, () => response.text())
    discard(response)
    return ''
  }

  async #guard<T>(url: string, abort: LinkedAbort, work: () => Promise<T>): Promise<T> {
    try {
      return await abort.race(work())
    } catch (error) {
      if (abort.signal.aborted) throw abort.reason
      throw new ApiError({ code: 'network_error', message: `${url} cannot be reached`, cause: error })
    }
  }

  #urlOf(path: string, query: Query = {}): string {
    const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null)
    const search = given.map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(String(value))}`)
    return `${this.#base}${path}${search.length === 0 ? '' : `?${search.join('&')}`}`
  }
}

const JSON_TYPE = { 'content-type': 'application/json' }

/** True if the first request with the same Idempotency-Key is still running. No other conflict has a `Retry-After`. */
function isInFlight(error: unknown): error is ApiError {
  return error instanceof ApiError && error.code === 'conflict' && error.retryAfter !== null
}

function isJson({ headers }: Response): boolean {
  return /\bjson\b/i.test(headers.get('content-type') ?? '')
}

function discard({ body }: Response): void {
  void body?.cancel?.().catch(() => {})
}

function readBody(response: Response, text: string, parse?: (text: string) => unknown): unknown {
  const { status, url } = response
  if (status === 204) return null
  const body = isJson(response) ? parseJson(text, parse) : undefined
  if (typeof body === 'object' && body !== null) return body
  throw new NotProjectApi({ url, status, problem: 'the body is not JSON' })
}

/** What the service accepts. `fetch` fails on other characters as if the network were down. */
const KEY_SHAPE = /^[\x21-\x7e]{1,255}$/

/** The header that makes a repeated creation safe. A key of your own survives a restart of your program. */
export function idempotency(key: string = randomKey()): Record<string, string> {
  if (!KEY_SHAPE.test(key)) {
    throw new TypeError('idempotencyKey must be 1 to 255 visible ASCII characters, without spaces')
  }
  return { 'idempotency-key': key }
}

/** React Native and pages without https have no `crypto.randomUUID`. */
function randomKey(): string {
  const bytes = new Uint8Array(16)
  if (typeof globalThis.crypto?.getRandomValues === 'function') crypto.getRandomValues(bytes)
  else for (let n = 0; n < bytes.length; n++) bytes[n] = Math.random() * 256
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
}
