import type { Breaker } from '../core/async/breaker.ts'
import type { Clock } from '../core/clock.ts'
import { exchange, type HttpAnswer, UnreadableAnswer } from '../core/exchange.ts'
import type { JsonPart } from '../core/json/json-part.ts'
import { writeJson } from '../core/json/json-text.ts'
import { type Wanted, wantItems } from '../core/json/wanted.ts'
import { type Json, type JsonObject, MAX_JSON_DEPTH } from '../core/json.ts'
import { type Meter, silentMeter } from '../core/metrics/meter.ts'
import { NO_SPAN, noTracer, type Span, type Tracer, traceHeaders } from '../core/tracing.ts'
import { isUuid } from '../core/uuid.ts'
import { RuntimeUnavailable } from './check-errors.ts'
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
  NO_VALUES,
  readAnswer,
  readDescription,
  readRun,
  readState,
  readThread,
  THREAD_FIELDS,
  UnacceptableAnswer,
  WANTED_DESCRIPTION,
  WANTED_RUN,
  WANTED_THREAD,
  wantedState,
} from './read-answers.ts'
import { followRunStream, type RunStreamEvent } from './run-stream.ts'
import type { RunDescription, RuntimeRefusal, RuntimeRun, StartRequest, ThreadState } from './runtime-types.ts'

/** How long a start waits for its answer. A start that is given up may still take effect. */
export const START_TIMEOUT_MS = 60_000
const MAX_ANSWER_BYTES = 32 * 1024 * 1024
const RUNS_PER_PAGE = 100
/** A thread with more runs than this is not searched, because the wanted run might be beyond the limit. */
const MAX_LISTED_RUNS = 1_000
/** Each of them costs a call. */
const MAX_RUNS_BEFORE = 10
/** A run contains its input, some levels deeper than the client sent it. */
const MAX_RUN_DEPTH = MAX_JSON_DEPTH + 20
/** Only these answers contain the output of a graph. */
const OUTPUT_PATH = /\/(?:state|history)$/

interface RuntimeOptions {
  url: string
  apiKey: string | null
  timeoutMs: number
  fetch: typeof fetch
  clock: Clock
  breaker: Breaker
  meter?: Meter
  tracer?: Tracer
}

type StartOutcome = { started: RuntimeRun } | { busy: true } | { refused: RuntimeRefusal }

/**
 * The agent runtime's HTTP API; it knows nothing about jobs. Each call is one request with a timeout. An answer that
 * proves nothing about the run (no network, 5xx, 401, 403, 429, no JSON) throws `RuntimeUnavailable`. An answer that a
 * retry would not change and that cannot be stored (too large, not UTF-8, nested too deep) throws `UnacceptableAnswer`.
 */
export class RuntimeClient {
  readonly #options: RuntimeOptions
  readonly #meter: Meter

  constructor(options: RuntimeOptions) {
    this.#options = { ...options }
    this.#meter = options.meter ?? silentMeter
  }

  /** Later calls send this key. */
  useApiKey(apiKey: string | null): void {
    this.#options.apiKey = apiKey
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
    if (isNotTheRuntime(answer)) throw new RuntimeUnavailable('answered', { status: answer.status })
    return refusalOf(answer)
  }

  /**
   * With `reject`, the runtime refuses a second active run on a thread (busy) instead of queueing it. Some runtimes also
   * answer "busy" for a thread they do not know, so busy alone does not prove that a run is active.
   */
  async startRun(request: StartRequest, signal?: AbortSignal): Promise<StartOutcome> {
    const { threadId, assistantId, payload, webhook, metadata, configurable, checkpointId = null } = request
    const { streamModes = [] } = request
    const body = {
      assistant_id: assistantId,
      ...payload,
      ...(webhook === null ? {} : { webhook }),
      metadata,
      ...(configurable === undefined ? {} : { config: { configurable } }),
      ...(checkpointId === null ? {} : { checkpoint: { checkpoint_id: checkpointId } }),
      // Without `stream_subgraphs`, the Python server leaves out the messages of sub-agents.
      ...(streamModes.length > 0 && { stream_mode: streamModes, stream_resumable: true, stream_subgraphs: true }),
      multitask_strategy: 'reject',
      durability: 'sync',
    }
    const answer = await this.#call('POST', `${threadPath(threadId)}/runs`, signal, body, START_TIMEOUT_MS)
    if (isSuccess(answer)) return { started: await readRunAnswer(answer) }
    if (isNotTheRuntime(answer) && !isUnknownGraph(answer)) {
      throw new RuntimeUnavailable('answered', { status: answer.status })
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
   * checkpoint that it resumed from: the newest one, or on a thread with branches that of `runsBefore`, newest first.
   *
   * `wantedValues` are the parts of the graph's values to find.
   */
  async fetchState(
    threadId: string,
    runId: string,
    wantedValues: Wanted,
    { signal, runsBefore }: { signal?: AbortSignal | undefined; runsBefore?: readonly string[] | undefined } = {},
  ): Promise<ThreadState | null> {
    const newest = await this.fetchNewestState(threadId, wantedValues, signal)
    if (newest === null || newest.runId === runId) return newest
    const state = await this.#fetchStateOf(threadId, runId, wantedValues, signal)
    if (state !== null) return state
    const runs = await this.#list(threadId, signal)
    const own = runs.find((run) => idIn(run, 'run_id') === runId)
    if (own === undefined || !resumedToItsEnd(own)) return null
    // Without a run that names its checkpoint, the thread has no branches yet.
    const hasBranches = runsBefore !== undefined && runs.some((run) => readRun(run).checkpointId !== null)
    if (own === runs[0] && !hasBranches) return newest
    for (const before of runsBefore?.slice(0, MAX_RUNS_BEFORE) ?? []) {
      const left = await this.#fetchStateOf(threadId, before, wantedValues, signal)
      if (left !== null) return left
    }
    return null
  }

  /** The newest checkpoint that this run wrote. Null when the runtime knows none. */
  async #fetchStateOf(
    threadId: string,
    runId: string,
    wantedValues: Wanted,
    signal: AbortSignal | undefined,
  ): Promise<ThreadState | null> {
    const ofRun = { limit: 1, metadata: { run_id: runId } }
    const history = await this.#call('POST', `${threadPath(threadId)}/history`, signal, ofRun)
    if (isUnknownRun(history)) return null
    const wanted = wantItems(wantedState(wantedValues))
    const { items } = await readAnswer(this.#expectSuccess(history).text, { wanted })
    const [first] = items
    const state = first === undefined ? null : readState(first)
    return state?.runId === runId ? state : null
  }

  /** The thread's newest checkpoint, whichever run wrote it. Null when the runtime does not know the thread. */
  async fetchNewestState(threadId: string, wantedValues: Wanted, signal?: AbortSignal): Promise<ThreadState | null> {
    const answer = await this.#call('GET', `${threadPath(threadId)}/state`, signal)
    if (isUnknownRun(answer)) return null
    return readState(await readAnswer(this.#expectSuccess(answer).text, { wanted: wantedState(wantedValues) }))
  }

  /**
   * The newest checkpoint that this run wrote. Null when the runtime knows none. `isSettled`: it shows how the run ended,
   * so that a lagging replica has no newer one.
   */
  async fetchCheckpoint(
    threadId: string,
    runId: string,
    signal?: AbortSignal,
  ): Promise<{ id: string; isSettled: boolean } | null> {
    const state = await this.#fetchStateOf(threadId, runId, NO_VALUES, signal)
    if (!state || state.checkpointId === null) return null
    const isSettled = state.isDone || state.interrupts.length > 0 || state.error !== null
    return { id: state.checkpointId, isSettled }
  }

  /** Some threads with this metadata. A runtime that does not know `select` answers with their values, too. */
  async searchThreads(
    metadata: JsonObject,
    page: { limit: number; offset: number },
    signal?: AbortSignal,
  ): Promise<{ threadId: string; metadata: JsonObject }[]> {
    const answer = await this.#call('POST', '/threads/search', signal, { metadata, ...page, select: THREAD_FIELDS })
    const options = { wanted: wantItems(WANTED_THREAD), maxDepth: MAX_RUN_DEPTH }
    const found = await readAnswer(this.#expectSuccess(answer).text, options)
    if (found.kind !== 'array') throw new RuntimeUnavailable('not_a_list')
    return found.items.map(readThread)
  }

  /** Succeeds also for a thread that is not known. */
  async deleteThread(threadId: string, signal?: AbortSignal): Promise<void> {
    const answer = await this.#call('DELETE', threadPath(threadId), signal)
    if (!isUnknownRun(answer)) this.#expectSuccess(answer)
  }

  /** Succeeds also for a run that has ended or is not known. */
  async cancelRun(threadId: string, runId: string, signal?: AbortSignal): Promise<void> {
    const path = `${runPath(threadId, runId)}/cancel?action=interrupt`
    const answer = await this.#call('POST', path, signal, {})
    if (!isUnknownRun(answer) && answer.status !== 409) this.#expectSuccess(answer)
  }

  /**
   * The events of a run after the one with this id, as they arrive; `-1` replays the run from its start. A run created
   * without `streamModes` has none. Throws `RuntimeUnavailable`; that says nothing about other calls of the runtime.
   */
  async *streamRun(
    threadId: string,
    runId: string,
    { after, signal }: { after: string; signal: AbortSignal },
  ): AsyncGenerator<readonly RunStreamEvent[]> {
    const { url, apiKey, timeoutMs, fetch, clock, breaker } = this.#options
    if (breaker.state !== 'closed') throw new RuntimeUnavailable('circuit_open')
    yield* followRunStream({
      fetch,
      clock,
      url: `${url}${runPath(threadId, runId)}/stream`,
      headers: apiKey === null ? {} : { 'x-api-key': apiKey },
      after,
      acceptTimeoutMs: timeoutMs,
      signal,
    })
  }

  /** For `doctor` and `/readyz`: checks that the runtime answers and accepts the API key. */
  async ping(signal?: AbortSignal): Promise<void> {
    const answer = await this.#call('POST', '/threads/search', signal, { limit: 1 })
    this.#expectSuccess(answer)
  }

  async #call(
    method: 'GET' | 'POST' | 'DELETE',
    path: string,
    signal?: AbortSignal,
    body?: object,
    timeoutMs = this.#options.timeoutMs,
  ): Promise<HttpAnswer> {
    const { breaker, clock } = this.#options
    if (!breaker.admit()) {
      this.#meter.count('runtime_calls_total', { outcome: 'skipped' })
      throw new RuntimeUnavailable('circuit_open')
    }
    const sinceMs = clock.now()
    let outcome = 'answered'
    const span = this.#startSpan(method, path)
    const watched = this.#watchSlowCall(timeoutMs)
    try {
      const answer = await this.#exchange({ method, path, span, timeoutMs }, signal, body)
      if (!watched.isSlow) breaker.succeeded()
      span.set({ 'http.response.status_code': answer.status })
      span.end()
      return answer
    } catch (error) {
      span.end(error)
      if (error instanceof UnacceptableAnswer) {
        breaker.succeeded()
        throw error
      }
      if (signal?.aborted) breaker.abandoned()
      else if (!watched.isSlow) breaker.failed()
      outcome = error instanceof Error && error.cause !== undefined ? 'unreachable' : 'refused'
      throw error
    } finally {
      watched.end()
      this.#meter.count('runtime_calls_total', { outcome })
      this.#meter.observe('runtime_call_duration_seconds', (clock.now() - sinceMs) / 1_000)
    }
  }

  /** A call with a longer timeout than others counts as failed when the others would have failed. */
  #watchSlowCall(timeoutMs: number): { readonly isSlow: boolean; end: () => void } {
    const { breaker, clock } = this.#options
    const watched = { isSlow: false, end: () => {} }
    if (timeoutMs <= this.#options.timeoutMs) return watched
    const over = new AbortController()
    watched.end = () => over.abort()
    void clock.sleep(this.#options.timeoutMs, over.signal).then(() => {
      if (over.signal.aborted) return
      watched.isSlow = true
      breaker.failed()
    })
    return watched
  }

  /** Only within the trace of a caller: checks of the runtime itself have none. */
  #startSpan(method: string, path: string): Span {
    const { tracer = noTracer } = this.#options
    if (tracer.current === null) return NO_SPAN
    const route = path.replace(/\?.*/, '').replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, '{id}')
    return tracer.start(`${method} ${route}`, { kind: 'client', attributes: { 'http.request.method': method } })
  }

  async #exchange(
    {
      method,
      path,
      span,
      timeoutMs,
    }: { method: 'GET' | 'POST' | 'DELETE'; path: string; span: Span; timeoutMs: number },
    signal?: AbortSignal,
    body?: object,
  ): Promise<HttpAnswer> {
    const { url, apiKey, fetch, clock } = this.#options
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
          ...traceHeaders(span.context),
        },
        ...(body === undefined ? {} : { body: writeJson(body) }),
        timeoutMs,
        maxBytes: MAX_ANSWER_BYTES,
        ...(signal ? { signal } : {}),
      })
    } catch (error) {
      if (error instanceof UnreadableAnswer && isSuccess(error) && hasJsonType(error) && OUTPUT_PATH.test(path)) {
        throw new UnacceptableAnswer(`The output cannot be stored: ${error.message}`)
      }
      throw new RuntimeUnavailable(error instanceof UnreadableAnswer ? 'unreadable' : 'unreachable', { cause: error })
    }
    if (provesNothing(answer.status)) throw new RuntimeUnavailable('answered', { status: answer.status })
    if (isWebPage(answer)) throw new RuntimeUnavailable('web_page', { status: answer.status })
    return answer
  }

  /** All runs of the thread, newest first. Sorted here, because runtimes differ in their order. */
  async #list(threadId: string, signal?: AbortSignal): Promise<JsonPart[]> {
    const runs: JsonPart[] = []
    for (;;) {
      const page = await this.#listPage(threadId, runs.length, signal)
      runs.push(...page)
      if (page.length < RUNS_PER_PAGE) return runs.toSorted((a, b) => createdAtMs(b) - createdAtMs(a))
      if (runs.length >= MAX_LISTED_RUNS) throw new RuntimeUnavailable('too_many_runs')
    }
  }

  async #listPage(threadId: string, offset: number, signal?: AbortSignal): Promise<readonly JsonPart[]> {
    // The JS server reads `limit` as the end of the page. Other runtimes read it as the size of the page, so this asks for
    // enough.
    const path = `${threadPath(threadId)}/runs?limit=${offset + RUNS_PER_PAGE}&offset=${offset}`
    const answer = await this.#call('GET', path, signal)
    if (isUnknownRun(answer)) return []
    const options = { wanted: wantItems(WANTED_RUN), maxDepth: MAX_RUN_DEPTH }
    const listed = await readAnswer(this.#expectSuccess(answer).text, options)
    if (listed.kind !== 'array' || !listed.items.every(({ kind }) => kind === 'object')) {
      throw new RuntimeUnavailable('not_a_list')
    }
    return listed.items
  }

  #expectSuccess(answer: HttpAnswer): HttpAnswer {
    if (isSuccess(answer)) return answer
    throw new RuntimeUnavailable('answered', { status: answer.status })
  }
}

async function readRunAnswer({ text }: HttpAnswer): Promise<RuntimeRun> {
  return readRun(await readAnswer(text, { wanted: WANTED_RUN, maxDepth: MAX_RUN_DEPTH }))
}

/** Only a UUID may become part of a path: `..` would reach other paths, with our API key. */
function threadPath(threadId: string): string {
  return `/threads/${checkedId(threadId)}`
}

function runPath(threadId: string, runId: string): string {
  return `${threadPath(threadId)}/runs/${checkedId(runId)}`
}

function checkedId(id: string): string {
  if (!isUuid(id)) throw new RuntimeUnavailable('malformed_id')
  return id.toLowerCase()
}

function createdAtMs(run: JsonPart): number {
  const ms = Date.parse(idIn(run, 'created_at') ?? '')
  return Number.isNaN(ms) ? 0 : ms
}

export const ENDED_BY_ITSELF = ['success', 'error', 'timeout']

/** False for a cancelled run: the question on the checkpoint that it resumed from is already answered. */
function resumedToItsEnd(run: JsonPart): boolean {
  // A run that continues after a breakpoint has no command, and null as its input.
  const hasResumed = run.at('kwargs', 'command', 'resume') !== undefined || run.at('kwargs', 'input')?.kind === 'null'
  return hasResumed && ENDED_BY_ITSELF.includes(idIn(run, 'status') ?? '')
}
