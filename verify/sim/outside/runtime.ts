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
  /** Its start was handled when its caller no longer waited, so the service may have sent another one before. */
  isLate: boolean
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
  /** When the service last saw the questions of a thread. */
  readonly #sawQuestionsAtMs = new Map<string, number>()
  /** The caller of the request that is being handled no longer waits for its answer. */
  #isLate = false

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
  handle(
    { method, path, headers, body: text }: RuntimeRequest,
    { isLate = false, asOfMs = this.#options.time.now } = {},
  ): HttpResponse {
    if (headers['x-api-key'] !== RUNTIME_KEY) return json(403, { detail: 'Forbidden' })
    const { pathname, searchParams: query } = new URL(path, RUNTIME_URL)
    const found = findRoute(this.#routes, { method, pathname })
    if (!found) throw new Error(`The runtime has no ${method} ${pathname}`)
    const { route, ids } = found
    const body = text === null ? null : parseExactJson(text)
    this.#isLate = isLate
    if (!isLate) this.#check(route, { body, query, threadId: ids.threadId })
    if (SHOWS_QUESTIONS.has(route.name))
      this.#sawQuestionsAtMs.set(ids.threadId, Math.max(asOfMs, this.#sawQuestionsAtMs.get(ids.threadId) ?? 0))
    if (route.method === 'DELETE') for (const run of this.runsOn(ids.threadId)) run.forgotten ||= run.endedAtMs !== null
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
    const changedSince = checkpoints.some(({ run, createdAtMs }) => run === null && wrote(createdAtMs))
    if (!endedSince && !changedSince && !runs.some(({ createdAtMs }) => wrote(createdAtMs))) return undefined
    thread.runs = runs
      .filter(({ createdAtMs }) => !wrote(createdAtMs))
      .map((run) => (wrote(run.endedAtMs) ? { ...run, status: 'running' } : run))
    const known = checkpoints.filter(({ createdAtMs }) => !wrote(createdAtMs))
    const hasEndedAt = (checkpoint: Checkpoint) => runs.some((run) => run.head === checkpoint && wrote(run.endedAtMs))
    thread.checkpoints = known.map((checkpoint) => (hasEndedAt(checkpoint) ? withoutEnd(checkpoint) : checkpoint))
    try {
      return this.handle(request, { asOfMs: atMs })
    } finally {
      Object.assign(thread, { runs, checkpoints })
    }
  }

  /** The runs whose values are part of those that this run left; with the run itself, if it wrote any. */
  historyOf(run: SimRun): Set<Run> {
    const checkpoints = new Map(this.#state.thread(run.threadId)?.checkpoints.map((one) => [one.id, one]))
    const runs = new Set<Run>()
    for (let at = run.head; at; at = checkpoints.get(at.parentId ?? '')) if (at.run) runs.add(at.run)
    return runs
  }

  /**
   * What a job may show of the questions of its paused run. Another client closes them by hand, or with a run that the
   * runtime forgot since. On a thread with branches, the newest state does not tell.
   */
  questionsLeftBy(run: SimRun | undefined, isPinned: boolean): string[] {
    const thread = this.#state.thread(run?.threadId ?? '')
    const ofOther = thread?.checkpoints.findLast(isOfOtherClient)
    const left = questionsOf(run?.head)
    if (!ofOther) return [left]
    const isOwnNewer = run?.head && run.head.createdAtMs > ofOther.createdAtMs
    if (thread?.pin === null && isOwnNewer) return [left]
    // The service cannot tell the branch of a change by hand, nor of a run that it no longer finds. On its pinned threads it
    // keeps the question, and an answer names the checkpoint.
    const hasNoBranch = ofOther.run === null || this.runs.get(ofOther.run.runId)?.forgotten === true
    const hasBranches = thread?.pin !== null || (isPinned && hasNoBranch)
    const isNewest = ofOther === thread?.checkpoints.at(-1) && !hasBranches
    return isNewest ? [questionsOf(ofOther)] : [questionsOf(ofOther), left]
  }

  /** Whether another client wrote a checkpoint on this thread, with a run or by hand. */
  wasChangedElsewhere(threadId: string): boolean {
    return this.#state.thread(threadId)?.checkpoints.some(isOfOtherClient) ?? false
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

  /**
   * Another client of the runtime answers the question of a paused run: with a run of its own, or by hand. Nothing happens
   * if the thread has gone on meanwhile.
   */
  answerElsewhere({ threadId, graphId, runId }: SimRun, how: 'run' | 'by hand'): void {
    const thread = this.#state.thread(threadId)
    const newest = thread?.checkpoints.at(-1)
    if (!thread || !newest?.task || thread.runs.at(-1)?.runId !== runId) return
    this.#options.trace.fault(`answered_elsewhere ${how}`, threadId)
    if (how === 'by hand') return void this.#state.updateState(thread, {})
    const ids = newest.task.interrupts.map(({ id }) => String(id))
    const resume = Object.fromEntries(ids.map((id) => [id, 'from elsewhere']))
    const work = ids.length === 0 ? { input: null } : { command: { resume } }
    const request = { graphId, work, webhook: null, metadata: {}, configurable: {}, afterMs: 0 }
    this.#state.startRun(thread, { ...request, multitaskStrategy: 'reject' })
  }

  /** The threads whose metadata name this owner, and on which a run was started in time. */
  threadsOf(owner: string): string[] {
    const owned = this.#state.threads().filter(({ metadata }) => metadata.owner === owner)
    return owned.map(({ threadId }) => threadId).filter((id) => this.runsOn(id).some(({ isLate }) => !isLate))
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
      const { multitask_strategy, durability, command, metadata, checkpoint } = isJsonObject(body) ? body : {}
      if (multitask_strategy !== 'reject' || durability !== 'sync') onWrongRequest('a run without its strategy')
      const checkpoints = this.#state.thread(threadId)?.checkpoints ?? []
      const base = isJsonObject(checkpoint)
        ? checkpoints.find(({ id }) => id === checkpoint.checkpoint_id)
        : checkpoints.at(-1)
      if (isJsonObject(checkpoint) && !base) onWrongRequest('a run from an unknown checkpoint')
      const asked = questionsOf(base)
      // The next turn of a conversation leaves the questions of a cancelled one open.
      const isOwn = isJsonObject(metadata) && metadata.job_id === base?.run?.metadata.job_id
      // A late run may ask at the checkpoint after the service has looked.
      const sawAtMs = this.#sawQuestionsAtMs.get(threadId) ?? 0
      const isNew = this.runsOn(threadId).some(
        ({ isLate, head, endedAtMs }) => isLate && head === base && (endedAtMs ?? 0) > sawAtMs,
      )
      if (command === undefined && asked !== '[]' && isOwn && !isNew)
        onWrongRequest(`a run without an answer to ${asked}`)
    }
    if (name.endsWith('/cancel') && query.get('action') !== 'interrupt') onWrongRequest(`cancelled with ${query}`)
  }

  #register(run: Run): SimRun {
    const { prng, trace, theme, forgets, hosted, isCalm, onCreate } = this.#options
    const resumed = 'command' in run.work || run.work.input === null
    const traits = { assistant: run.graphId, resumed, theme, forgets, hosted, calm: isCalm() }
    const planned = planRun(prng, traits)
    // Another client has finished the graph: a run that answers too late finds its result.
    const newest = this.#state.thread(run.threadId)?.checkpoints.at(-1)
    const finished =
      resumed && run.checkpointId === null && newest?.task === null && newest.run ? this.#known(newest.run).plan : null
    const plan = finished ? { ...planned, ending: finished.ending, steps: [] } : planned
    const known = Object.assign(run, { plan, forgotten: false, cancelHeardAtMs: null, isLate: this.#isLate })
    this.runs.set(run.runId, known)
    const { pendingMs, runningMs, ending } = plan
    const shown = JSON.stringify({ pendingMs, runningMs, ending })
    trace.note('runtime', `run ${run.runId} of ${JSON.stringify(run.metadata)} planned ${shown}`)
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
    // A run of another client may have failed after the breakpoint: then the graph cannot be continued.
    const isEarlierForeign = (one: SimRun) => !isOwn(one) && one.createdAtMs < run.createdAtMs
    const isDisturbed = run.isLate || this.runsOn(run.threadId).some(isEarlierForeign)
    if (REFUSALS.test(run.error ?? '') && !isDisturbed) onWrongRequest(`run ${run.runId} was refused: ${run.error}`)
    const { forgottenAfterMs } = run.plan
    if (forgottenAfterMs !== null) {
      time.after(forgottenAfterMs, () => {
        trace.fault('run_forgotten', run.runId)
        run.forgotten = true
        const thread = this.#state.thread(run.threadId)
        if (thread) this.#state.remove(thread, run)
      })
    }
    onEnd(run)
  }
}

const SHOWS_QUESTIONS = new Set(['GET /threads/{t}/state', 'POST /threads/{t}/history'])

/** The runtime's messages for an input or an answer that it does not accept. */
const REFUSALS = /^(?:Received (?:no|empty)|When there are multiple)/

function isOfOtherClient({ run }: Checkpoint): boolean {
  return run === null || !isOwn(run)
}

/** The questions that are open at a checkpoint, as the runtime shows them. */
function questionsOf(checkpoint: Checkpoint | undefined): string {
  return JSON.stringify(checkpoint?.task?.interrupts ?? [])
}

/** The checkpoint before a run ended at it: without the question and the error of that run. */
function withoutEnd(checkpoint: Checkpoint): Checkpoint {
  const { task } = checkpoint
  return task ? { ...checkpoint, task: { ...task, error: null, interrupts: [] } } : checkpoint
}

/** Whether the service started the run. Other runs may have the job id of their thread. */
export function isOwn({ metadata }: Run): boolean {
  return metadata.job_id !== undefined && metadata.run_seq !== undefined
}

/** Whether no worker executes the run although its status is still active. */
export function isZombie(run: Run): boolean {
  return isLive(run) && run.stop.signal.aborted
}
