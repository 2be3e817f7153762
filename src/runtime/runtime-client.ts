import type { Breaker } from '../core/async/breaker.ts'
import type { Clock } from '../core/clock.ts'
import { type Answer, exchange, UnreadableAnswer } from '../core/exchange.ts'
import { isJsonObject, type Json, type JsonObject, MAX_JSON_DEPTH } from '../core/json.ts'
import { type Meter, silentMeter } from '../core/metrics/meter.ts'
import { asStorableText } from '../core/text.ts'
import { readAnswer, readError, readRun, readState, UnacceptableAnswer, withoutTokens } from './read-answers.ts'
import {
  type Run,
  type RuntimeRefusal,
  RuntimeUnavailable,
  type StartRequest,
  type ThreadState,
} from './runtime-types.ts'

const MAX_ANSWER_BYTES = 32 * 1024 * 1024
const MAX_LISTED_RUNS = 100
/** A run repeats the input it was given, some levels further down than it came to us. */
const RUN_DEPTH = { maxDepth: MAX_JSON_DEPTH + 20 }

export interface RuntimeOptions {
  url: string
  apiKey: string | null
  timeoutMs: number
  fetch: typeof fetch
  clock: Clock
  breaker: Breaker
  meter?: Meter
}

export type StartOutcome = { started: Run } | { busy: true } | { refused: RuntimeRefusal }

/**
 * The agent runtime's dialect, and nothing of jobs. Each call is one exchange within its time; whatever says nothing
 * about the run in question (no network, 5xx, 401, 403, 429, no JSON) is a `RuntimeUnavailable`, and an answer that would
 * be the same next time, but cannot be taken (too large, not UTF-8, nested too deep), an `UnacceptableAnswer`.
 */
export class RuntimeClient {
  readonly #options: RuntimeOptions
  readonly #meter: Meter

  constructor(options: RuntimeOptions) {
    this.#options = options
    this.#meter = options.meter ?? silentMeter
  }

  /** No call takes longer. */
  get timeoutMs(): number {
    return this.#options.timeoutMs
  }

  /** Makes the thread unless it is there already. */
  async ensureThread(
    threadId: string,
    metadata: Record<string, Json>,
    signal?: AbortSignal,
  ): Promise<RuntimeRefusal | null> {
    const answer = await this.#call('POST', '/threads', signal, {
      thread_id: threadId,
      if_exists: 'do_nothing',
      metadata,
    })
    if (isSuccess(answer) || answer.status === 409) return null
    if (isElsewhere(answer)) throw new RuntimeUnavailable(`the runtime answered ${answer.status}`)
    return refusalOf(answer)
  }

  /**
   * `reject`: where a run of this thread is still alive, a second one is refused (busy) rather than queued. One runtime
   * says the same of a thread it does not know, so that busy alone does not prove a live run.
   */
  async startRun(request: StartRequest, signal?: AbortSignal): Promise<StartOutcome> {
    const { threadId, assistantId, payload, webhook, metadata } = request
    const answer = await this.#call('POST', `/threads/${encodeURIComponent(threadId)}/runs`, signal, {
      assistant_id: assistantId,
      ...('resume' in payload ? { command: { resume: payload.resume } } : { input: payload.input }),
      ...(webhook === null ? {} : { webhook }),
      metadata,
      multitask_strategy: 'reject',
      durability: 'sync',
    })
    if (isSuccess(answer)) return { started: readRun(readAnswer(answer.text, RUN_DEPTH)) }
    if (isElsewhere(answer) && !isUnknownGraph(answer)) {
      throw new RuntimeUnavailable(`the runtime answered ${answer.status}`)
    }
    const refused = refusalOf(answer)
    return answer.status === 409 || isBusy(refused) ? { busy: true } : { refused }
  }

  /** Newest first. */
  async listRuns(threadId: string, signal?: AbortSignal): Promise<Run[]> {
    return (await this.#list(threadId, signal)).map(readRun)
  }

  /** Null when the runtime does not know it. */
  async fetchRun(threadId: string, runId: string, signal?: AbortSignal): Promise<Run | null> {
    const path = `/threads/${encodeURIComponent(threadId)}/runs/${encodeURIComponent(runId)}`
    const answer = await this.#call('GET', path, signal)
    if (isUnknown(answer)) return null
    return readRun(readAnswer(this.#expectSuccess(answer).text, RUN_DEPTH))
  }

  /**
   * The state as that run left it. The thread's own state is its newest checkpoint, whoever wrote it; where that was
   * another run, the history is asked. Null when the run left nothing.
   *
   * A resumed run that pauses or fails in the very step it resumed writes no checkpoint: its question or error is found
   * on the one it came from.
   */
  async fetchState(threadId: string, runId: string, signal?: AbortSignal): Promise<ThreadState | null> {
    const thread = `/threads/${encodeURIComponent(threadId)}`
    const answer = await this.#call('GET', `${thread}/state`, signal)
    if (isUnknown(answer)) return null
    const newest = readState(readAnswer(this.#expectSuccess(answer).text))
    if (newest.runId === runId) return newest
    const wanted = { limit: 1, metadata: { run_id: runId } }
    const history = await this.#call('POST', `${thread}/history`, signal, wanted)
    if (isUnknown(history)) return null
    const found = readAnswer(this.#expectSuccess(history).text)
    const [first] = Array.isArray(found) ? found : []
    const state = first === undefined ? null : readState(first)
    if (state?.runId === runId) return state
    const [last] = await this.#list(threadId, signal)
    return last?.run_id === runId && resumedToItsEnd(last) ? newest : null
  }

  /** A run that has ended, or is not known, has nothing left to be told. */
  async cancelRun(threadId: string, runId: string, signal?: AbortSignal): Promise<void> {
    const path = `/threads/${encodeURIComponent(threadId)}/runs/${encodeURIComponent(runId)}/cancel?action=interrupt`
    const answer = await this.#call('POST', path, signal, {})
    if (!isUnknown(answer) && answer.status !== 409) this.#expectSuccess(answer)
  }

  /** For `doctor` and `/readyz`: does it answer, and does it let us in? */
  async ping(signal?: AbortSignal): Promise<void> {
    const answer = await this.#call('POST', '/threads/search', signal, { limit: 1 })
    this.#expectSuccess(answer)
  }

  async #call(method: 'GET' | 'POST', path: string, signal?: AbortSignal, body?: object): Promise<Answer> {
    const { breaker, clock } = this.#options
    if (!breaker.admit()) {
      this.#meter.count('runtime_calls_total', { outcome: 'skipped' })
      throw new RuntimeUnavailable('the runtime keeps failing and is left alone for a moment')
    }
    const sinceMs = clock.now()
    let outcome = 'answered'
    try {
      const answer = await this.#exchange(method, path, signal, body)
      breaker.succeeded()
      return answer
    } catch (error) {
      if (error instanceof UnacceptableAnswer) {
        breaker.succeeded()
        throw error
      }
      if (signal?.aborted) breaker.abandoned()
      else breaker.failed()
      outcome = error instanceof Error && error.cause !== undefined ? 'unreachable' : 'refused'
      throw error
    } finally {
      this.#meter.count('runtime_calls_total', { outcome })
      this.#meter.observe('runtime_call_duration_seconds', (clock.now() - sinceMs) / 1_000)
    }
  }

  async #exchange(method: 'GET' | 'POST', path: string, signal?: AbortSignal, body?: object): Promise<Answer> {
    const { url, apiKey, timeoutMs, fetch, clock } = this.#options
    let answer: Answer
    try {
      answer = await exchange({
        fetch,
        clock,
        url: `${url}${path}`,
        method,
        headers: {
          ...(apiKey === null ? {} : { 'x-api-key': apiKey }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        timeoutMs,
        maxBytes: MAX_ANSWER_BYTES,
        ...(signal ? { signal } : {}),
      })
    } catch (error) {
      if (error instanceof UnreadableAnswer && isSuccess(error) && isJson(error) && OUTPUT.test(path)) {
        throw new UnacceptableAnswer(`The output cannot be taken: ${error.message}`)
      }
      throw new RuntimeUnavailable(`the runtime cannot be reached: ${(error as Error).message}`, { cause: error })
    }
    if (saysNothing(answer.status)) throw new RuntimeUnavailable(`the runtime answered ${answer.status}`)
    if (isPage(answer)) throw new RuntimeUnavailable(`the runtime answered ${answer.status} with a web page`)
    return answer
  }

  /** Sorted here: the runtimes differ in their order. */
  async #list(threadId: string, signal?: AbortSignal): Promise<JsonObject[]> {
    const path = `/threads/${encodeURIComponent(threadId)}/runs?limit=${MAX_LISTED_RUNS}`
    const answer = await this.#call('GET', path, signal)
    if (isUnknown(answer)) return []
    const listed = readAnswer(this.#expectSuccess(answer).text, RUN_DEPTH)
    if (!Array.isArray(listed) || !listed.every(isJsonObject)) {
      throw new RuntimeUnavailable('the runtime answered something that is not a list of runs')
    }
    return listed.sort((a, b) => createdAtMs(b) - createdAtMs(a))
  }

  #expectSuccess(answer: Answer): Answer {
    if (isSuccess(answer)) return answer
    throw new RuntimeUnavailable(`the runtime answered ${answer.status}`)
  }
}

/** Not about the run: the runtime is broken, busy, elsewhere, or does not let us in. */
function saysNothing(status: number): boolean {
  return status >= 500 || (status >= 300 && status < 400) || [401, 403, 408, 429].includes(status)
}

/** The runtime has none: this is a proxy, or another server altogether. */
function isPage({ headers }: Pick<Answer, 'headers'>): boolean {
  return /^text\/html\b/i.test(headers.get('content-type') ?? '')
}

function isSuccess({ status }: Pick<Answer, 'status'>): boolean {
  return status >= 200 && status < 300
}

/** Not the text of a gateway, whatever its status. */
function isJson({ headers }: Pick<Answer, 'headers'>): boolean {
  return /^application\/json\b/i.test(headers.get('content-type') ?? '')
}

/** Only these answers hold what a graph has made. */
const OUTPUT = /\/(?:state|history)$/

/** The runtime has the paths we start runs with: what does not is a gateway without it, or another server. */
function isElsewhere({ status }: Answer): boolean {
  return status === 404 || status === 405 || status === 410
}

/**
 * In the runtime's own words. That a thread is not found is no refusal: it is made before every start, so the next one
 * finds it.
 */
function isUnknownGraph({ status, text }: Answer): boolean {
  return status === 404 && /\bno (?:assistant|graph)\b|\b(?:assistant|graph)\b.*\bnot found\b/is.test(text)
}

/**
 * No such run or thread, or an id that none can have. Only in the runtime's own words: the 404 of a proxy or of a wrong
 * address says nothing about the run.
 */
function isUnknown({ status, text }: Answer): boolean {
  if (status === 404) return /\b(?:run|thread)\b/i.test(text)
  return (status === 400 || status === 422) && /uuid/i.test(text)
}

function createdAtMs(run: JsonObject): number {
  const ms = typeof run.created_at === 'string' ? Date.parse(run.created_at) : Number.NaN
  return Number.isNaN(ms) ? 0 : ms
}

const ENDED_BY_ITSELF = new Set<Json | undefined>(['success', 'error', 'timeout'])

/** Not so for one that was cancelled: the question it left behind had been answered. */
function resumedToItsEnd({ kwargs, status }: JsonObject): boolean {
  const command = isJsonObject(kwargs) ? kwargs.command : undefined
  return isJsonObject(command) && 'resume' in command && ENDED_BY_ITSELF.has(status)
}

function isBusy({ status, message }: RuntimeRefusal): boolean {
  return status === 422 && /already running|multitask|inflight|in-flight/i.test(message)
}

function refusalOf(answer: Answer): RuntimeRefusal {
  return { status: answer.status, message: asStorableText(withoutTokens(messageIn(answer.text)), 500) }
}

function messageIn(text: string): string {
  try {
    const body = JSON.parse(text) as { detail?: Json; message?: Json; error?: Json }
    return faultsIn(body.error) ?? readError(body.detail ?? body.message ?? body.error) ?? text
  } catch {
    return text
  }
}

/** A schema's complaints, one by one: `thread_id: Invalid uuid`. */
function faultsIn(error: Json | undefined): string | undefined {
  const issues = isJsonObject(error) && Array.isArray(error.issues) ? error.issues.filter(isJsonObject) : []
  const faults = issues.map(({ path, message }) => `${Array.isArray(path) ? path.join('/') : ''}: ${message}`)
  return faults.length > 0 ? faults.join(', ') : undefined
}
