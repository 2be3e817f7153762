import { isJsonObject, type Json } from '../../../src/core/json.ts'
import { uuidFrom } from '../../../src/core/random.ts'
import { parseExactJson } from '../../../src/sandbox/agent-runtime/exact-json.ts'
import { NO_RUNTIME_FAULTS } from '../../../src/sandbox/agent-runtime/faults.ts'
import { type Checkpoint, isLive, type Run, type Thread } from '../../../src/sandbox/agent-runtime/records.ts'
import { findRoute, type Route, runtimeRoutes } from '../../../src/sandbox/agent-runtime/routes.ts'
import { RuntimeState } from '../../../src/sandbox/agent-runtime/state.ts'
import { type HttpResponse, json } from '../../../src/sandbox/http-response.ts'
import type { Theme } from '../faults/plan.ts'
import { RUNTIME_KEY, RUNTIME_URL } from '../system/sim-config.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import { ASSISTANTS, planRun, type SimRunPlan } from './run-plans.ts'

/** A run, the plan that its seed made for it, and what happened to it: the truth that its job is checked against. */
export interface SimRun extends Run {
  plan: SimRunPlan
  /** It ended with its status, and was deleted afterwards. */
  forgotten: boolean
  /** When the service cancelled it. */
  cancelHeardAtMs: number | null
}

export interface RuntimeRequest {
  method: string
  path: string
  headers: Record<string, string>
  body: string | null
}

export interface SimRuntimeOptions {
  time: VirtualTime
  prng: Prng
  trace: Trace
  theme: Theme
  hosted: boolean
  refusesWebhooks: boolean
  /** Share of runs that it deletes soon after their end. */
  forgets: number
  /** Whether the time of faults is over. */
  isCalm: () => boolean
  onCreate: (run: SimRun) => void
  /** A run ended, and its callback is due. */
  onEnd: (run: SimRun) => void
  /** The service sent a request that it must never send. */
  onWrongRequest: (what: string) => void
}

/** The sandbox's agent runtime in virtual time. Its seed decides how each run ends; it keeps the truth of every run. */
export class SimRuntime {
  readonly runs = new Map<string, SimRun>()
  readonly #options: SimRuntimeOptions
  readonly #state: RuntimeState
  readonly #routes: readonly Route[]
  readonly #newId: () => string

  constructor(options: SimRuntimeOptions) {
    this.#options = options
    const { time, prng, hosted, refusesWebhooks } = options
    const newId = () => uuidFrom(prng)
    this.#newId = newId
    this.#state = new RuntimeState({
      clock: time.clock,
      newId,
      planner: {
        pendingMs: (run) => this.#register(run).plan.pendingMs,
        plan: (run) => this.#known(run).plan,
        defaultRunningMs: () => 0,
        onTimeOver: (run, finish) => this.#conclude(this.#known(run), finish),
      },
      onEnd: (run) => this.#ended(this.#known(run)),
    })
    const faults = {
      ...NO_RUNTIME_FAULTS,
      delivery: hosted ? 'hosted' : 'js',
      refuse_webhook: refusesWebhooks,
    } as const
    this.#routes = runtimeRoutes({ state: this.#state, faults: () => faults, newId, graphIds: ASSISTANTS })
  }

  /** The response to a request of the service when no fault interferes. */
  handle({ method, path, headers, body: text }: RuntimeRequest): HttpResponse {
    if (headers['x-api-key'] !== RUNTIME_KEY) return json(403, { detail: 'Forbidden' })
    const { pathname, searchParams: query } = new URL(path, RUNTIME_URL)
    const found = findRoute(this.#routes, { method, pathname })
    if (!found) throw new Error(`The runtime has no ${method} ${pathname}`)
    const { route, ids } = found
    const body = text === null ? null : parseExactJson(text)
    this.#check(route, { body, query, threadId: ids.threadId })
    const run = this.runs.get(ids.runId)
    if (route.kind === 'cancel' && run && !run.removed) run.cancelHeardAtMs ??= this.#options.time.now
    return route.answer({ ...ids, query, headers, body })
  }

  /**
   * The response of a replica that knows nothing that was written later: no run, no end of a run, no checkpoint, no
   * question. Undefined when nothing was written since. Only for requests that change nothing.
   */
  handleAsOf(request: RuntimeRequest, atMs: number): HttpResponse | undefined {
    const thread = this.#state.thread(/^\/threads\/([^/?]+)/.exec(request.path)?.[1] ?? '')
    if (!thread) return undefined
    const { runs, checkpoints } = thread
    const wrote = (ms: number | null) => ms !== null && ms > atMs
    const endedSince = runs.some(({ endedAtMs }) => wrote(endedAtMs))
    if (!endedSince && !runs.some(({ createdAtMs }) => wrote(createdAtMs))) return undefined
    thread.runs = runs
      .filter(({ createdAtMs }) => !wrote(createdAtMs))
      .map((run) => (wrote(run.endedAtMs) ? { ...run, status: 'running' } : run))
    const known = checkpoints.filter(({ createdAtMs }) => !wrote(createdAtMs))
    thread.checkpoints = known.map((checkpoint) => (endedSince ? withoutEnd(checkpoint) : checkpoint))
    try {
      return this.handle(request)
    } finally {
      Object.assign(thread, { runs, checkpoints })
    }
  }

  /** The questions that are open on a thread, as the runtime shows them. */
  openQuestions(threadId: string): string {
    return JSON.stringify(this.#state.thread(threadId)?.checkpoints.at(-1)?.task?.interrupts ?? [])
  }

  /** A run that another client of the runtime starts, on a thread of its own. */
  startForeign(graphId: string, webhook: string | null, owner: string): SimRun {
    const thread = this.#state.createThread({ threadId: this.#newId(), metadata: {} })
    const request = {
      graphId,
      webhook,
      work: { input: { from: 'elsewhere' } },
      metadata: { user_id: owner },
      configurable: {},
    }
    const run = this.#state.startRun(thread, { ...request, multitaskStrategy: 'reject', afterMs: 0 })
    if (!run) throw new Error('A new thread is not busy')
    return this.#known(run)
  }

  runsOn(threadId: string): SimRun[] {
    return [...this.runs.values()].filter((run) => run.threadId === threadId)
  }

  /** Simulates a kill and a restart: unfinished runs never change again. */
  restart(): void {
    for (const run of this.runs.values()) if (isLive(run)) run.stop.abort()
  }

  #check({ name }: Route, { body, query, threadId }: { body: Json; query: URLSearchParams; threadId: string }): void {
    const { onWrongRequest } = this.#options
    if (name === 'POST /threads/{t}/runs') {
      const { multitask_strategy, durability, command, metadata } = isJsonObject(body) ? body : {}
      if (multitask_strategy !== 'reject' || durability !== 'sync') onWrongRequest('a run without its strategy')
      const asked = this.openQuestions(threadId)
      // The next turn of a conversation leaves the questions of a cancelled one open.
      const askedBy = this.#state.thread(threadId)?.checkpoints.at(-1)?.run.metadata.job_id
      const isOwn = isJsonObject(metadata) && metadata.job_id === askedBy
      if (command === undefined && asked !== '[]' && isOwn) onWrongRequest(`a run without an answer to ${asked}`)
    }
    if (name.endsWith('/cancel') && query.get('action') !== 'interrupt') onWrongRequest(`cancelled with ${query}`)
  }

  #register(run: Run): SimRun {
    const { prng, trace, theme, forgets, hosted, isCalm, onCreate } = this.#options
    const resumed = 'command' in run.work || run.work.input === null
    const traits = { assistant: run.graphId, resumed, theme, forgets, hosted, calm: isCalm() }
    const plan = planRun(prng, traits)
    const known = Object.assign(run, { plan, forgotten: false, cancelHeardAtMs: null })
    this.runs.set(run.runId, known)
    const { pendingMs, runningMs, ending } = plan
    const planned = JSON.stringify({ pendingMs, runningMs, ending })
    trace.note('runtime', `run ${run.runId} of ${JSON.stringify(run.metadata)} planned ${planned}`)
    onCreate(known)
    return known
  }

  #known({ runId }: Run): SimRun {
    return this.runs.get(runId) as SimRun
  }

  #conclude(run: SimRun, finish: () => void): void {
    const thread = this.#state.thread(run.threadId) as Thread
    switch (run.plan.ending.kind) {
      case 'endless':
        return
      case 'zombie':
        return run.stop.abort()
      case 'stopped':
        return this.#state.cancel(thread, run, 'interrupt')
      case 'rolled_back':
        return this.#state.cancel(thread, run, 'rollback')
      case 'vanished':
        return this.#state.remove(thread, run)
      default:
        finish()
    }
  }

  #ended(run: SimRun): void {
    const { trace, time, onEnd, onWrongRequest } = this.#options
    trace.note('runtime', `run ${run.runId} ended: ${run.status}`)
    if (REFUSALS.test(run.error ?? '')) onWrongRequest(`run ${run.runId} was refused: ${run.error}`)
    const { forgottenAfterMs } = run.plan
    if (forgottenAfterMs !== null) {
      time.after(forgottenAfterMs, () => {
        trace.fault('run_forgotten', run.runId)
        run.forgotten = true
        this.#state.remove(this.#state.thread(run.threadId) as Thread, run)
      })
    }
    onEnd(run)
  }
}

/** The runtime's messages for an input or an answer that it does not accept. */
const REFUSALS = /^(?:Received (?:no|empty)|When there are multiple)/

/** The checkpoint before the last run ended: without the question and the error of that run. */
function withoutEnd(checkpoint: Checkpoint): Checkpoint {
  const { task } = checkpoint
  return task ? { ...checkpoint, task: { ...task, error: null, interrupts: [] } } : checkpoint
}

/** Whether no worker executes the run although its status is still active. */
export function isZombie(run: Run): boolean {
  return isLive(run) && run.stop.signal.aborted
}
