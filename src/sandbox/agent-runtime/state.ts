import { BoundedMap } from '../../core/bounded-map.ts'
import type { Clock } from '../../core/clock.ts'
import { isJsonObject, type JsonObject } from '../../core/json.ts'
import type { RuntimeFaults } from './faults.ts'
import { applyInput, planRun } from './graphs.ts'
import { assistantIdOf, type NewId } from './ids.ts'
import { type Checkpoint, isLive, type Run, type RunRequest, type RunStatus, type Thread } from './records.ts'

const MAX_THREADS = 10_000
const MAX_LIVING = 10_000
const MAX_CHECKPOINTS = 100
const MAX_RUNS_PER_THREAD = 1_000
const MAX_RECENT = 50

export interface RuntimeStateOptions {
  clock: Clock
  newId: NewId
  faults: () => RuntimeFaults
  /** A run that had begun has ended; one cancelled before that is never heard of. */
  onEnd: (run: Run) => void
}

/** Threads and the runs on them: pending, then running, then ended, each in the injected clock's time. */
export class RuntimeState {
  readonly #options: RuntimeStateOptions
  readonly #threads = new BoundedMap<string, Thread>(MAX_THREADS)
  readonly #living = new Map<Run, Promise<void>>()
  #recent: Run[] = []

  constructor(options: RuntimeStateOptions) {
    this.#options = options
  }

  /** Newest first. */
  get recent(): readonly Run[] {
    return this.#recent
  }

  get isFull(): boolean {
    return this.#living.size >= MAX_LIVING
  }

  thread(threadId: string): Thread | undefined {
    return this.#threads.get(threadId)
  }

  threads(): Thread[] {
    return Array.from(this.#threads.entries(), ([, thread]) => thread)
  }

  createThread({ threadId, metadata }: { threadId: string; metadata: JsonObject }): Thread {
    const nowMs = this.#options.clock.now()
    const thread: Thread = {
      threadId,
      metadata,
      status: 'idle',
      values: undefined,
      interrupts: undefined,
      createdAtMs: nowMs,
      updatedAtMs: nowMs,
      checkpoints: [],
      runs: [],
      position: null,
    }
    this.#threads.set(threadId, thread)
    return thread
  }

  /** Undefined when the thread is busy and the strategy is to reject. */
  startRun(thread: Thread, request: RunRequest): Run | undefined {
    const { clock, newId } = this.#options
    const before = thread.runs.filter(isLive)
    const { multitaskStrategy: strategy } = request
    if (strategy === 'reject' && before.length > 0) return undefined
    if (strategy === 'interrupt' || strategy === 'rollback')
      for (const run of before) this.cancel(thread, run, strategy)
    const nowMs = clock.now()
    const { graphId, afterMs, metadata, ...rest } = request
    thread.metadata = { ...thread.metadata, graph_id: graphId, assistant_id: assistantIdOf(graphId) }
    thread.status = 'busy'
    thread.updatedAtMs = nowMs
    const run: Run = {
      ...rest,
      runId: newId(),
      threadId: thread.threadId,
      graphId,
      metadata: { created_by: 'system', ...thread.metadata, ...metadata },
      status: 'pending',
      createdAtMs: nowMs + afterMs,
      updatedAtMs: nowMs,
      startedAtMs: null,
      endedAtMs: null,
      values: undefined,
      error: null,
      stop: new AbortController(),
      ended: Promise.withResolvers(),
    }
    thread.runs = [...thread.runs, run].slice(-MAX_RUNS_PER_THREAD)
    this.#recent = [run, ...this.#recent].slice(0, MAX_RECENT)
    this.#living.set(
      run,
      this.#live(thread, run, before).finally(() => this.#living.delete(run)),
    )
    return run
  }

  /** As the runtime does: an ended run is left as it is, one that never began ends unheard. */
  cancel(thread: Thread, run: Run, action: 'interrupt' | 'rollback'): void {
    // One that a crash left behind has nobody who would hear it.
    if (!isLive(run) || run.stop.signal.aborted) return
    const began = run.status === 'running'
    const hosted = this.#options.faults().delivery === 'hosted'
    if (action === 'rollback' && began && !hosted) {
      this.#fail(thread, run, 'rollback')
      return
    }
    if (action === 'rollback') thread.runs = thread.runs.filter((other) => other !== run)
    this.#settle(thread, run, action === 'rollback' ? 'rollback' : 'interrupted')
    if (began) this.#options.onEnd(run)
  }

  /** Whatever is under way stays as it is for ever, and nobody is told: what a killed server leaves behind. */
  crash(): void {
    for (const run of this.#living.keys()) run.stop.abort()
  }

  /** Forgets everything. */
  async clear(): Promise<void> {
    const living = [...this.#living]
    for (const [run] of living) {
      run.stop.abort()
      run.ended.resolve()
    }
    await Promise.all(living.map(([, done]) => done))
    this.#threads.clear()
    this.#recent = []
  }

  async #live(thread: Thread, run: Run, before: readonly Run[]): Promise<void> {
    const { clock, faults } = this.#options
    const { signal } = run.stop
    for (const other of before) await Promise.race([other.ended.promise, run.ended.promise])
    await clock.sleep(Math.max(0, run.createdAtMs - clock.now() + faults().pending_ms), signal)
    if (signal.aborted) return
    run.status = 'running'
    run.startedAtMs = clock.now()
    run.updatedAtMs = clock.now()
    const problem = this.#begin(thread, run)
    await clock.sleep(thread.position?.runningMs ?? faults().running_ms, signal)
    if (signal.aborted || faults().zombie) return
    if (problem === null) this.#walk(thread, run)
    else this.#fail(thread, run, problem)
  }

  /** An input starts the graph anew; an answer goes to the step that asked. Says what is wrong with the input. */
  #begin(thread: Thread, run: Run): string | null {
    const { work, graphId } = run
    if ('command' in work) {
      thread.position?.answers.push(work.command.resume ?? null)
      return null
    }
    if (!isJsonObject(work.input)) return `Received no input for graph ${graphId}`
    const { steps, runningMs } = planRun(graphId, work.input)
    thread.position = { steps, index: 0, answers: [], runningMs }
    this.#write(thread, run, applyInput(thread.checkpoints.at(-1)?.values ?? {}, work.input, this.#options.newId))
    return null
  }

  /** Step by step until the graph is done, asks, or fails. */
  #walk(thread: Thread, run: Run): void {
    const { newId } = this.#options
    const { position } = thread
    for (let step = position?.steps[position.index]; position && step; step = position.steps[position.index]) {
      const checkpoint = thread.checkpoints.at(-1)
      if (!checkpoint?.task) break
      const result = step.take(checkpoint.values, position.answers, newId)
      if ('update' in result) {
        position.index += 1
        position.answers = []
        this.#write(thread, run, { ...checkpoint.values, ...result.update })
        continue
      }
      checkpoint.retried = position.answers.length > 0
      if ('fail' in result) {
        checkpoint.task.error = JSON.stringify({ message: result.fail, name: 'Error' })
        this.#fail(thread, run, result.fail)
        return
      }
      checkpoint.task.interrupts = [{ id: newId().replaceAll('-', ''), value: result.ask }]
      this.#succeed(thread, run, 'interrupted')
      return
    }
    this.#succeed(thread, run, 'idle')
  }

  #write(thread: Thread, run: Run, values: JsonObject): void {
    const { clock, newId } = this.#options
    const parent = thread.checkpoints.at(-1)
    const name = thread.position?.steps[thread.position.index]?.name
    const checkpoint: Checkpoint = {
      id: newId(),
      parentId: parent?.id ?? null,
      run,
      step: parent?.run === run ? parent.step + 1 : 0,
      values,
      task: name === undefined ? null : { id: newId(), name, error: null, interrupts: [] },
      createdAtMs: clock.now(),
      retried: false,
    }
    thread.checkpoints = [...thread.checkpoints, checkpoint].slice(-MAX_CHECKPOINTS)
  }

  #succeed(thread: Thread, run: Run, threadStatus: Thread['status']): void {
    this.#settle(thread, run, 'success', threadStatus)
    this.#options.onEnd(run)
  }

  #fail(thread: Thread, run: Run, error: string): void {
    run.error = error
    thread.position = null
    this.#settle(thread, run, 'error', 'error')
    this.#options.onEnd(run)
  }

  #settle(thread: Thread, run: Run, status: RunStatus, threadStatus: Thread['status'] = 'idle'): void {
    const nowMs = this.#options.clock.now()
    run.status = status
    run.endedAtMs = nowMs
    run.updatedAtMs = nowMs
    const newest = thread.checkpoints.at(-1)
    const told = status === 'success' || status === 'error'
    run.values = told ? newest?.values : undefined
    thread.values = run.values
    thread.interrupts = newest?.task ? { [newest.task.id]: newest.task.interrupts } : {}
    thread.status = thread.runs.some(isLive) ? 'busy' : threadStatus
    thread.updatedAtMs = nowMs
    run.stop.abort()
    run.ended.resolve()
  }
}
