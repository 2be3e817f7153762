import type { Breaker } from '../core/async/breaker.ts'
import type { Clock } from '../core/clock.ts'
import { exchange, type HttpAnswer, UnreadableAnswer } from '../core/exchange.ts'
import type { JsonPart } from '../core/json/json-part.ts'
import { writeJson } from '../core/json/json-text.ts'
import { type Wanted, wantItems } from '../core/json/wanted.ts'
import { type Json, MAX_JSON_DEPTH } from '../core/json.ts'
import { type Meter, silentMeter } from '../core/metrics/meter.ts'
import { isUuid } from '../core/uuid.ts'
import {
  hasJsonType,
  isBusy,
  isNotTheRuntime,
  isSuccess,
  isUnknownGraph,
  isUnknownRun,
  isWebPage,
  provesNothing,
  refusalOf,
} from './classify-answers.ts'
import {
  idIn,
  readAnswer,
  readDescription,
  readRun,
  readState,
  UnacceptableAnswer,
  WANTED_DESCRIPTION,
  WANTED_RUN,
  wantedState,
} from './read-answers.ts'
import {
  type RunDescription,
  type RuntimeRefusal,
  type RuntimeRun,
  RuntimeUnavailable,
  type StartRequest,
  type ThreadState,
} from './runtime-types.ts'

const MAX_ANSWER_BYTES = 32 * 1024 * 1024
const MAX_LISTED_RUNS = 100
/** A run contains its input, some levels deeper than the client sent it. */
const MAX_RUN_DEPTH = MAX_JSON_DEPTH + 20
/** Only these answers contain the output of a graph. */
const OUTPUT_PATH = /\/(?:state|history)$/

export interface RuntimeOptions {
  url: string
  apiKey: string | null
  timeoutMs: number
  fetch: typeof fetch
  clock: Clock
  breaker: Breaker
  meter?: Meter
}

export type StartOutcome = { started: RuntimeRun } | { busy: true } | { refused: RuntimeRefusal }

/**
 * The agent runtime's HTTP API; it knows nothing about jobs. Each call is one request with a timeout. An answer that
 * proves nothing about the run (no network, 5xx, 401, 403, 429, no JSON) throws `RuntimeUnavailable`. An answer that a
 * retry would not change and that cannot be stored (too large, not UTF-8, nested too deep) throws `UnacceptableAnswer`.
 */
export class RuntimeClient {
  readonly #options: RuntimeOptions
  readonly #meter: Meter

  constructor(options: RuntimeOptions) {
    this.#options = options
    this.#meter = options.meter ?? silentMeter
  }

  /** The longest that one call takes. */
  get timeoutMs(): number {
    return this.#options.timeoutMs
  }

  /** Creates the thread unless it exists. */
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
    if (isNotTheRuntime(answer)) throw new RuntimeUnavailable(`the runtime answered ${answer.status}`)
    return refusalOf(answer)
  }

  /**
   * With `reject`, the runtime refuses a second active run on a thread (busy) instead of queueing it. Some runtimes also
   * answer "busy" for a thread they do not know, so busy alone does not prove that a run is active.
   */
  async startRun(request: StartRequest, signal?: AbortSignal): Promise<StartOutcome> {
    const { threadId, assistantId, payload, webhook, metadata } = request
    const answer = await this.#call('POST', `${threadPath(threadId)}/runs`, signal, {
      assistant_id: assistantId,
      ...payload,
      ...(webhook === null ? {} : { webhook }),
      metadata,
      multitask_strategy: 'reject',
      durability: 'sync',
    })
    if (isSuccess(answer)) return { started: await readRunAnswer(answer) }
    if (isNotTheRuntime(answer) && !isUnknownGraph(answer)) {
      throw new RuntimeUnavailable(`the runtime answered ${answer.status}`)
    }
    const refused = refusalOf(answer)
    return answer.status === 409 || isBusy(refused) ? { busy: true } : { refused }
  }

  /** The graph of a run, and the callers that it or its thread names. Null when the runtime does not know the run. */
  async describeRun(threadId: string, runId: string): Promise<RunDescription | null> {
    const answer = await this.#call('GET', runPath(threadId, runId))
    if (isUnknownRun(answer)) return null
    const thread = await this.#call('GET', threadPath(threadId))
    if (isUnknownRun(thread)) return null
    const read = ({ text }: HttpAnswer) => readAnswer(text, { wanted: WANTED_DESCRIPTION, maxDepth: MAX_RUN_DEPTH })
    return readDescription(await read(this.#expectSuccess(answer)), await read(this.#expectSuccess(thread)))
  }

  /** Newest first. */
  async listRuns(threadId: string, signal?: AbortSignal): Promise<RuntimeRun[]> {
    return (await this.#list(threadId, signal)).map(readRun)
  }

  /** Null when the runtime does not know the run. */
  async fetchRun(threadId: string, runId: string, signal?: AbortSignal): Promise<RuntimeRun | null> {
    const answer = await this.#call('GET', runPath(threadId, runId), signal)
    if (isUnknownRun(answer)) return null
    return readRunAnswer(this.#expectSuccess(answer))
  }

  /**
   * The state that this run left. The thread's state is its newest checkpoint; if another run wrote it, the history has
   * the right one. Null when the run left no state.
   *
   * A resumed run that pauses or fails in its first step writes no checkpoint. Its question or error is then on the
   * checkpoint that it resumed from.
   *
   * `wantedValues` are the parts of the graph's values to find.
   */
  async fetchState(
    threadId: string,
    runId: string,
    wantedValues: Wanted,
    signal?: AbortSignal,
  ): Promise<ThreadState | null> {
    const newest = await this.fetchNewestState(threadId, wantedValues, signal)
    if (newest === null || newest.runId === runId) return newest
    const ofRun = { limit: 1, metadata: { run_id: runId } }
    const history = await this.#call('POST', `${threadPath(threadId)}/history`, signal, ofRun)
    if (isUnknownRun(history)) return null
    const wanted = wantItems(wantedState(wantedValues))
    const { items } = await readAnswer(this.#expectSuccess(history).text, { wanted })
    const [first] = items
    const state = first === undefined ? null : readState(first)
    if (state?.runId === runId) return state
    const [last] = await this.#list(threadId, signal)
    return last !== undefined && idIn(last, 'run_id') === runId && resumedToItsEnd(last) ? newest : null
  }

  /** The thread's newest checkpoint, whichever run wrote it. Null when the runtime does not know the thread. */
  async fetchNewestState(threadId: string, wantedValues: Wanted, signal?: AbortSignal): Promise<ThreadState | null> {
    const answer = await this.#call('GET', `${threadPath(threadId)}/state`, signal)
    if (isUnknownRun(answer)) return null
    return readState(await readAnswer(this.#expectSuccess(answer).text, { wanted: wantedState(wantedValues) }))
  }

  /** Succeeds also for a run that has ended or is not known. */
  async cancelRun(threadId: string, runId: string, signal?: AbortSignal): Promise<void> {
    const path = `${runPath(threadId, runId)}/cancel?action=interrupt`
    const answer = await this.#call('POST', path, signal, {})
    if (!isUnknownRun(answer) && answer.status !== 409) this.#expectSuccess(answer)
  }

  /** For `doctor` and `/readyz`: checks that the runtime answers and accepts the API key. */
  async ping(signal?: AbortSignal): Promise<void> {
    const answer = await this.#call('POST', '/threads/search', signal, { limit: 1 })
    this.#expectSuccess(answer)
  }

  async #call(method: 'GET' | 'POST', path: string, signal?: AbortSignal, body?: object): Promise<HttpAnswer> {
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

  async #exchange(method: 'GET' | 'POST', path: string, signal?: AbortSignal, body?: object): Promise<HttpAnswer> {
    const { url, apiKey, timeoutMs, fetch, clock } = this.#options
    let answer: HttpAnswer
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
        ...(body === undefined ? {} : { body: writeJson(body) }),
        timeoutMs,
        maxBytes: MAX_ANSWER_BYTES,
        ...(signal ? { signal } : {}),
      })
    } catch (error) {
      if (error instanceof UnreadableAnswer && isSuccess(error) && hasJsonType(error) && OUTPUT_PATH.test(path)) {
        throw new UnacceptableAnswer(`The output cannot be taken: ${error.message}`)
      }
      throw new RuntimeUnavailable(`the runtime cannot be reached: ${(error as Error).message}`, { cause: error })
    }
    if (provesNothing(answer.status)) throw new RuntimeUnavailable(`the runtime answered ${answer.status}`)
    if (isWebPage(answer)) throw new RuntimeUnavailable(`the runtime answered ${answer.status} with a web page`)
    return answer
  }

  /** Newest first. Sorted here, because runtimes differ in their order. */
  async #list(threadId: string, signal?: AbortSignal): Promise<JsonPart[]> {
    const path = `${threadPath(threadId)}/runs?limit=${MAX_LISTED_RUNS}`
    const answer = await this.#call('GET', path, signal)
    if (isUnknownRun(answer)) return []
    const options = { wanted: wantItems(WANTED_RUN), maxDepth: MAX_RUN_DEPTH }
    const listed = await readAnswer(this.#expectSuccess(answer).text, options)
    if (listed.kind !== 'array' || !listed.items.every(({ kind }) => kind === 'object')) {
      throw new RuntimeUnavailable('the runtime answered something that is not a list of runs')
    }
    return listed.items.toSorted((a, b) => createdAtMs(b) - createdAtMs(a))
  }

  #expectSuccess(answer: HttpAnswer): HttpAnswer {
    if (isSuccess(answer)) return answer
    throw new RuntimeUnavailable(`the runtime answered ${answer.status}`)
  }
}

async function readRunAnswer({ text }: HttpAnswer): Promise<RuntimeRun> {
  return readRun(await readAnswer(text, { wanted: WANTED_RUN, maxDepth: MAX_RUN_DEPTH }))
}

/** Only an id of the right form becomes part of a path: `..` would reach other paths, with our API key. */
function threadPath(threadId: string): string {
  return `/threads/${checkedId(threadId)}`
}

function runPath(threadId: string, runId: string): string {
  return `${threadPath(threadId)}/runs/${checkedId(runId)}`
}

function checkedId(id: string): string {
  if (!isUuid(id)) throw new RuntimeUnavailable('the id of the run or thread is not a UUID')
  return id.toLowerCase()
}

function createdAtMs(run: JsonPart): number {
  const ms = Date.parse(idIn(run, 'created_at') ?? '')
  return Number.isNaN(ms) ? 0 : ms
}

const ENDED_BY_ITSELF = ['success', 'error', 'timeout']

/** A cancelled run does not count: the question on the checkpoint it resumed from is answered already. */
function resumedToItsEnd(run: JsonPart): boolean {
  // A run that continues after a breakpoint has no command, and null as its input.
  const hasResumed = run.at('kwargs', 'command', 'resume') !== undefined || run.at('kwargs', 'input')?.kind === 'null'
  return hasResumed && ENDED_BY_ITSELF.includes(idIn(run, 'status') ?? '')
}
