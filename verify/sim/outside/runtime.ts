import { isJsonObject, type Json, type JsonObject } from '../../../src/core/json.ts'
import { uuidFrom } from '../../../src/core/random.ts'
import type { Theme } from '../faults/plan.ts'
import { RUNTIME_KEY } from '../system/sim-config.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import { planRun, valuesText } from './runtime-graphs.ts'
import { isLive, renderCheckpoint, renderRun, renderState, type SimRun, type SimThread } from './runtime-records.ts'

export interface WireRequest {
  method: string
  path: string
  headers: Record<string, string>
  body: string | null
}

export interface WireAnswer {
  status: number
  headers: Record<string, string>
  body: string
}

export interface RuntimeOptions {
  time: VirtualTime
  prng: Prng
  trace: Trace
  theme: Theme
  hosted: boolean
  refusesWebhooks: boolean
  /** Share of runs it forgets soon after their end. */
  forgets: number
  onBegin: (run: SimRun) => void
  /** A run ended and has somebody to tell. */
  onEnd: (run: SimRun, status: string) => void
  /** What the service should never ask for. */
  onFault: (what: string) => void
}

const BUSY = 'Thread is already running a task. Wait for it to finish or choose a different multitask strategy.'
const ASSISTANTS = new Set(['agent', 'report', 'review'])

/** The agent runtime as a state machine in virtual time: it holds the truth of every run, and speaks the real wire. */
export class SimRuntime {
  readonly threads = new Map<string, SimThread>()
  readonly runs = new Map<string, SimRun>()
  readonly #options: RuntimeOptions

  constructor(options: RuntimeOptions) {
    this.#options = options
  }

  /** How the calls of the service are answered when nothing interferes. */
  handle({ method, path, headers, body }: WireRequest): WireAnswer {
    if (headers['x-api-key'] !== RUNTIME_KEY) return json(403, { detail: 'Forbidden' })
    const [route = '', query = ''] = path.split('?', 2)
    const [, , threadId = '', section = '', runId = '', action = ''] = route.split('/')
    const document = body === null ? {} : (JSON.parse(body) as JsonObject)
    if (threadId === '') return this.#createThread(document)
    const thread = this.threads.get(threadId)
    if (section === 'runs' && method === 'POST' && runId === '') return this.#startRun(threadId, document)
    if (!thread) return text(404, `Thread with ID ${threadId} not found`)
    if (section === 'state') return raw(renderState(thread))
    if (section === 'history') return this.#history(thread, document)
    const runs = thread.runs.filter((run) => !run.deleted)
    if (runId === '') return raw(`[${runs.map((run) => renderRun(run)).join(',')}]`)
    const run = runs.find((one) => one.runId === runId)
    if (!run) return text(404, 'Run not found')
    if (action !== 'cancel') return raw(renderRun(run))
    if (!query.includes('action=interrupt')) this.#options.onFault(`cancelled with ${query}`)
    return this.#cancel(run)
  }

  /** A run that somebody else starts; it gets a thread of its own. */
  startForeign(assistant: string, webhook: string | null): SimRun {
    const threadId = uuidFrom(this.#options.prng)
    const thread = { threadId, metadata: {}, runs: [], checkpoints: [] }
    this.threads.set(threadId, thread)
    return this.#begin(thread, { assistant, webhook, metadata: {}, work: { input: 'elsewhere' } })
  }

  /** Killed and back: what was under way says `running` for ever. */
  restart(): void {
    for (const run of this.runs.values()) if (isLive(run)) run.zombie = true
  }

  #createThread({ thread_id, metadata }: JsonObject): WireAnswer {
    const threadId = String(thread_id)
    let thread = this.threads.get(threadId)
    if (!thread) {
      thread = { threadId, metadata: isJsonObject(metadata) ? metadata : {}, runs: [], checkpoints: [] }
      this.threads.set(threadId, thread)
    }
    return json(200, { thread_id: threadId, metadata: thread.metadata, status: 'idle' })
  }

  #startRun(threadId: string, body: JsonObject): WireAnswer {
    const { hosted, refusesWebhooks, onFault } = this.#options
    const { assistant_id, webhook, metadata, command, input } = body
    const assistant = String(assistant_id)
    if (body.multitask_strategy !== 'reject' || body.durability !== 'sync') onFault('a run without its strategy')
    if (webhook !== undefined && refusesWebhooks) return json(422, { detail: 'The webhook URL must not be loopback' })
    if (!ASSISTANTS.has(assistant)) return text(404, `No assistant found for "${assistant}".`)
    const thread = this.threads.get(threadId)
    if (!thread || thread.runs.some(isLive)) return hosted ? json(409, { detail: BUSY }) : text(422, BUSY)
    const work = isJsonObject(command) ? { command } : { input: input ?? null }
    const given = { assistant, work, metadata: isJsonObject(metadata) ? metadata : {} }
    return raw(renderRun(this.#begin(thread, { ...given, webhook: typeof webhook === 'string' ? webhook : null })))
  }

  #begin(thread: SimThread, given: Pick<SimRun, 'assistant' | 'work' | 'metadata' | 'webhook'>): SimRun {
    const { time, prng, trace, theme, forgets } = this.#options
    const plan = planRun(prng, { assistant: given.assistant, resumed: 'command' in given.work, theme, forgets })
    const run: SimRun = {
      ...given,
      runId: uuidFrom(prng),
      threadId: thread.threadId,
      status: 'pending',
      plan,
      deleted: false,
      forgotten: false,
      zombie: false,
      paused: false,
      createdAtMs: time.now,
      startedAtMs: null,
      endedAtMs: null,
      values: null,
      outputText: null,
      shownText: null,
      error: null,
      cancelHeardAtMs: null,
    }
    thread.runs.push(run)
    this.runs.set(run.runId, run)
    trace.note('runtime', `run ${run.runId} of ${JSON.stringify(run.metadata)} planned ${JSON.stringify(plan)}`)
    time.after(plan.pendingMs, () => this.#run(thread, run))
    this.#options.onBegin(run)
    return run
  }

  #run(thread: SimThread, run: SimRun): void {
    if (!isLive(run) || run.zombie) return
    const { time } = this.#options
    run.status = 'running'
    run.startedAtMs = time.now
    // A resumed run that comes to nothing in its first step leaves no checkpoint of its own.
    if (!isResumed(run)) this.#checkpoint(thread, run, { next: ['work'] })
    const { kind } = run.plan.ending
    if (kind === 'zombie') run.zombie = true
    if (kind === 'zombie' || kind === 'endless') return
    time.after(run.plan.runningMs, () => this.#end(thread, run))
  }

  /** The row says so before anybody is told. */
  #end(thread: SimThread, run: SimRun): void {
    if (!isLive(run) || run.zombie) return
    const { trace, time } = this.#options
    const { ending } = run.plan
    run.endedAtMs = time.now
    trace.note('runtime', `run ${run.runId} ended: ${ending.kind}`)
    if (run.plan.forgottenAfterMs !== null) time.after(run.plan.forgottenAfterMs, () => this.#forget(run))
    switch (ending.kind) {
      case 'success':
        return this.#succeed(thread, run, ending.outputText)
      case 'no_output':
        return this.#succeed(thread, run, null)
      case 'pause':
        return this.#pause(thread, run, ending)
      case 'error':
      case 'timeout':
        run.status = ending.kind
        run.error = ending.kind === 'error' ? ending.message : null
        run.values = valuesText(run.assistant, null, false)
        this.#leave(thread, run, { next: ['work'], error: run.error })
        return this.#tell(run, run.status)
      case 'stopped':
        run.status = 'interrupted'
        return this.#tell(run, run.status)
      case 'rolled_back':
        run.deleted = true
        return this.#tell(run, 'rollback')
      default:
        run.deleted = true
    }
  }

  #forget(run: SimRun): void {
    this.#options.trace.fault('run_forgotten', run.runId)
    run.forgotten = true
    run.deleted = true
  }

  #succeed(thread: SimThread, run: SimRun, outputText: string | null): void {
    run.status = 'success'
    run.outputText = outputText
    run.shownText = outputText
    run.values = valuesText(run.assistant, outputText, false)
    this.#checkpoint(thread, run, { next: [] })
    this.#tell(run, 'success')
  }

  #pause(thread: SimThread, run: SimRun, ending: { early: boolean; interrupted: boolean }): void {
    run.paused = true
    run.status = ending.interrupted ? 'interrupted' : 'success'
    run.shownText = ending.early ? '"a draft"' : null
    run.values = valuesText(run.assistant, run.shownText, false)
    this.#leave(thread, run, { next: ['ask'], interrupts: [{ value: `question of ${run.runId}` }] })
    this.#tell(run, run.status)
  }

  /** Where a resumed run has no checkpoint, its error or question is found on the one it came from. */
  #leave(thread: SimThread, run: SimRun, left: { next: string[]; error?: string | null; interrupts?: Json[] }): void {
    const newest = thread.checkpoints.at(-1)
    if (isResumed(run) && newest && this.#options.prng.chance(0.5) && run.status !== 'interrupted') {
      newest.error = left.error ?? null
      newest.interrupts = left.interrupts ?? []
      return
    }
    this.#checkpoint(thread, run, left)
  }

  #checkpoint(
    thread: SimThread,
    run: SimRun,
    { next, error = null, interrupts = [] }: { next: string[]; error?: string | null; interrupts?: Json[] },
  ): void {
    const values = run.values ?? valuesText(run.assistant, null, false)
    thread.checkpoints.push({ runId: run.runId, values, next, error, interrupts })
  }

  #tell(run: SimRun, status: string): void {
    this.#options.onEnd(run, status)
  }

  #cancel(run: SimRun): WireAnswer {
    run.cancelHeardAtMs ??= this.#options.time.now
    if (isLive(run) && !run.zombie) {
      const wasPending = run.status === 'pending'
      run.status = 'interrupted'
      run.endedAtMs = this.#options.time.now
      // One that never began ends unheard.
      if (!wasPending) this.#tell(run, 'interrupted')
    }
    return { status: 202, headers: {}, body: '' }
  }

  #history(thread: SimThread, { metadata }: JsonObject): WireAnswer {
    const runId = isJsonObject(metadata) ? metadata.run_id : undefined
    const found = thread.checkpoints.findLast((checkpoint) => checkpoint.runId === runId)
    return raw(found ? `[${renderCheckpoint(thread, found)}]` : '[]')
  }
}

function isResumed(run: SimRun): boolean {
  return 'command' in run.work
}

export function json(status: number, value: Json): WireAnswer {
  return { status, headers: { 'content-type': 'application/json' }, body: JSON.stringify(value) }
}

function raw(body: string): WireAnswer {
  return { status: 200, headers: { 'content-type': 'application/json' }, body }
}

export function text(status: number, body: string): WireAnswer {
  return { status, headers: { 'content-type': 'text/plain;charset=UTF-8' }, body }
}
