import { BoundedMap } from '../../core/bounded-map.ts'
import type { Clock } from '../../core/clock.ts'
import { isJsonObject, type Json, type JsonObject } from '../../core/json.ts'
import { applyInput, type RunPlan } from './graphs.ts'
import { assistantIdOf, type NewId } from './ids.ts'
import {
  type Checkpoint,
  isLive,
  type Run,
  type RunRequest,
  type RunStatus,
  type Step,
  type StepResult,
  type Thread,
} from './records.ts'
import type { PlannedStep } from './run-events.ts'

const MAX_THREADS = 10_000
const MAX_UNFINISHED = 10_000
const MAX_CHECKPOINTS = 100
const MAX_RUNS_PER_THREAD = 1_000
const MAX_RECENT = 50
/** The statuses whose callbacks contain the graph's values. */
const WITH_VALUES = new Set<RunStatus>(['success', 'error', 'timeout'])

/** Plans the steps and the duration of runs. The sandbox plans by graph and settings, the simulation by its seed. */
interface RunPlanner {
  /** How long a run waits for a worker. Called once per run, when it begins to wait. */
  pendingMs(run: Run): number
  /** Called when a run starts. */
  plan(run: Run): RunPlan
  defaultRunningMs(): number
  /** Streams the planned steps of a run over its duration. Default: it only waits. */
  stream?(run: Run, work: { steps: readonly PlannedStep[]; runningMs: number }): Promise<void>
  /** Called when the duration of a run is over. `finish` executes its steps. */
  onTimeOver(run: Run, finish: () => void): void
}

interface RuntimeStateOptions {
  clock: Clock
  newId: NewId
  planner: RunPlanner
  /** A run that had started has ended. A run cancelled before its start is not reported, as in the real runtime. */
  onEnd: (run: Run) => void
}

/**
 * The agent runtime as a state machine without I/O: threads and the runs on them, which are pending, then running, then
 * ended. Time comes from the clock. The sandbox serves it over HTTP, the simulation drives it in virtual time.
 */
export class RuntimeState {
  readonly #options: RuntimeStateOptions
  readonly #threads = new BoundedMap<string, Thread>(MAX_THREADS)
  readonly #unfinished = new Map<Run, Promise<void>>()
  #recent: Run[] = []

  constructor(options: RuntimeStateOptions) {
    this.#options = options
  }

  /** Newest first. */
  get recent(): readonly Run[] {
    return this.#recent
  }

  get isFull(): boolean {
    return this.#unfinished.size >= MAX_UNFINISHED
  }

  thread(threadId: string): Thread | undefined {
    return this.#threads.get(threadId)
  }

  threads(): Thread[] {
    return Array.from(this.#threads.entries(), ([, thread]) => thread)
  }

  /** Also deletes its runs, checkpoints and open questions. */
  deleteThread(thread: Thread): void {
    for (const run of thread.runs) this.remove(thread, run)
    this.#threads.delete(thread.threadId)
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
      configurable: {},
      pin: null,
    }
    this.#threads.set(threadId, thread)
    return thread
  }

  /** Undefined when the thread is busy and the strategy is `reject`. */
  startRun(thread: Thread, request: RunRequest): Run | undefined {
    const { clock, newId } = this.#options
    const before = thread.runs.filter(isLive)
    const { multitaskStrategy: strategy } = request
    if (strategy === 'reject' && before.length > 0) return undefined
    if (strategy === 'interrupt' || strategy === 'rollback')
      for (const run of before) this.cancel(thread, run, strategy)
    const nowMs = clock.now()
    const {
      graphId,
      afterMs,
      metadata,
      streamModes = ['values'],
      resumable = false,
      subgraphs = false,
      ...rest
    } = request
    const configurable = { ...thread.configurable, ...request.configurable }
    // As in the real runtime, a run that waits for another one leaves nothing to the thread.
    if (thread.status !== 'busy') thread.configurable = configurable
    thread.pin = request.checkpointId ?? thread.pin
    thread.metadata = { ...thread.metadata, graph_id: graphId, assistant_id: assistantIdOf(graphId) }
    thread.status = 'busy'
    thread.updatedAtMs = nowMs
    const run: Run = {
      ...rest,
      configurable,
      runId: newId(),
      threadId: thread.threadId,
      graphId,
      checkpointId: thread.pin,
      head: undefined,
      position: null,
      streamModes,
      resumable,
      subgraphs,
      events: [],
      followers: new Set(),
      metadata: { created_by: 'system', ...thread.metadata, ...metadata },
      status: 'pending',
      createdAtMs: nowMs + afterMs,
      updatedAtMs: nowMs,
      startedAtMs: null,
      endedAtMs: null,
      values: undefined,
      error: null,
      paused: false,
      removed: false,
      stop: new AbortController(),
      ended: Promise.withResolvers(),
    }
    thread.runs = [...thread.runs, run].slice(-MAX_RUNS_PER_THREAD)
    this.#recent = [run, ...this.#recent].slice(0, MAX_RECENT)
    this.#unfinished.set(
      run,
      this.#process(thread, run, before).finally(() => this.#unfinished.delete(run)),
    )
    return run
  }

  /** As in the real runtime: an ended run does not change, and a run that never started ends without a callback. */
  cancel(thread: Thread, run: Run, action: 'interrupt' | 'rollback'): void {
    // After a simulated crash no worker executes the run, so it cannot be stopped.
    if (!isLive(run) || run.stop.signal.aborted) return
    const started = run.status === 'running'
    if (action === 'rollback') this.#rollBack(thread, run)
    this.#settle(thread, run, action === 'rollback' ? 'rollback' : 'interrupted')
    if (started) this.#options.onEnd(run)
  }

  /**
   * Another client changes the state by hand, as if the step had returned these values; without a step, the graph stays
   * where it is. The questions of the last checkpoint are closed.
   */
  updateState(thread: Thread, values: JsonObject, asStep?: string): Checkpoint {
    const parent = thread.checkpoints.at(-1)
    const isBreakpoint = parent?.task?.interrupts.length === 0
    const position = parent?.position && {
      ...parent.position,
      // A breakpoint is passed all the same; a step that asked will ask again.
      answers: asStep === undefined && isBreakpoint ? [null] : [],
      ...(asStep !== undefined && { index: parent.position.steps.findIndex(({ name }) => name === asStep) + 1 }),
    }
    return this.#write(thread, { run: null, position: position ?? null }, parent, { ...parent?.values, ...values })
  }

  /** Deletes a run, ended or not, without a callback. */
  remove(thread: Thread, run: Run): void {
    this.#drop(thread, run)
    if (run.endedAtMs === null) this.#settle(thread, run, run.status)
  }

  /** Simulates a killed server: unfinished runs never change again, and send no callback. */
  crash(): void {
    for (const run of this.#unfinished.keys()) run.stop.abort()
  }

  /** Deletes everything. */
  async clear(): Promise<void> {
    const unfinished = [...this.#unfinished]
    for (const [run] of unfinished) {
      run.stop.abort()
      run.ended.resolve()
    }
    await Promise.all(unfinished.map(([, done]) => done))
    this.#threads.clear()
    this.#recent = []
  }

  async #process(thread: Thread, run: Run, before: readonly Run[]): Promise<void> {
    const { clock, planner } = this.#options
    const { signal } = run.stop
    for (const other of before) await Promise.race([other.ended.promise, run.ended.promise])
    await clock.sleep(Math.max(0, run.createdAtMs - clock.now() + planner.pendingMs(run)), signal)
    if (signal.aborted) return
    run.status = 'running'
    run.startedAtMs = clock.now()
    run.updatedAtMs = clock.now()
    const problem = this.#begin(thread, run)
    const runningMs = run.position?.runningMs ?? planner.defaultRunningMs()
    const streams = planner.stream !== undefined && run.streamModes.some((mode) => mode !== 'values')
    const steps = streams && problem === null ? this.#planSteps(run) : []
    if (streams) await planner.stream?.(run, { steps, runningMs })
    else await clock.sleep(runningMs, signal)
    if (signal.aborted) return
    planner.onTimeOver(run, () => {
      if (problem === null) this.#takeSteps(thread, run, steps)
      else this.#refuse(thread, run, problem)
    })
  }

  /**
   * An input starts the graph from its first step; an answer goes to the step that asked. Returns the fault of the input,
   * or null.
   */
  #begin(thread: Thread, run: Run): string | null {
    const { planner, newId } = this.#options
    const { work, graphId, checkpointId } = run
    // As in the real runtime, a run from an unknown checkpoint has no history.
    run.head =
      checkpointId === null ? thread.checkpoints.at(-1) : thread.checkpoints.find(({ id }) => id === checkpointId)
    run.position = run.head?.position ?? null
    const isChanged = run.head?.run === null
    // On a graph that is done, such a run has nothing to do.
    const goesOn = 'input' in work && work.input === null && run.position !== null
    if ('input' in work && !isJsonObject(work.input) && !goesOn) return `Received no input for graph ${graphId}`
    const given = 'command' in work ? answersIn(work.command.resume, run.head) : goesOn && !isChanged ? [null] : []
    if (typeof given === 'string') return given
    const { steps, runningMs } = planner.plan(run)
    const answers = 'command' in work || goesOn ? [...(run.position?.answers ?? []), ...given] : []
    if (steps) run.position = { steps, index: 0, answers, runningMs }
    else if (run.position) run.position = { ...run.position, answers }
    if ('input' in work && isJsonObject(work.input)) {
      this.#goOn(thread, run, applyInput(run.head?.values ?? {}, work.input, newId))
    }
    return null
  }

  /** Computes the results of the steps in advance, so that they can be streamed before the steps are executed. */
  #planSteps({ head, position, configurable }: Run): PlannedStep[] {
    const planned: PlannedStep[] = []
    let before = head?.values ?? {}
    let answers: readonly Json[] = position?.answers ?? []
    for (const step of position?.steps.slice(position.index) ?? []) {
      const result = step.take(before, answers, this.#options.newId, configurable)
      planned.push({ name: step.name, before, result })
      if (!('update' in result || 'values' in result)) break
      before = 'values' in result ? result.values : { ...before, ...result.update }
      answers = []
    }
    return planned
  }

  /** Executes the steps in order, until the graph is done, asks a question or fails. */
  #takeSteps(thread: Thread, run: Run, planned: readonly PlannedStep[]): void {
    const results = planned.map(({ result }) => result)
    const { newId } = this.#options
    for (let step = nextStep(run); step; step = nextStep(run)) {
      const { head: checkpoint, position } = run
      if (!position || !checkpoint?.task) break
      const result = results.shift() ?? step.take(checkpoint.values, position.answers, newId, run.configurable)
      if ('update' in result || 'values' in result) {
        run.position = { ...position, index: position.index + 1, answers: [] }
        this.#goOn(thread, run, 'values' in result ? result.values : { ...checkpoint.values, ...result.update })
        continue
      }
      checkpoint.retried = position.answers.length > 0
      if ('fail' in result) {
        checkpoint.task.error = JSON.stringify({ message: result.fail, name: 'Error' })
        this.#fail(thread, run, result)
        return
      }
      checkpoint.position = position
      const { id } = checkpoint.task
      const questions = 'ask' in result ? [result.ask] : 'asks' in result ? result.asks : []
      checkpoint.task.interrupts = questions.map((value, n) => ({ id: interruptId(id, n), value }))
      run.paused = true
      const status = ('endsAs' in result && result.endsAs) || 'success'
      this.#end(thread, run, { status, threadStatus: 'interrupted' })
      return
    }
    this.#end(thread, run, { status: 'success', threadStatus: 'idle' })
  }

  /** The next checkpoint of a run, or one that another client writes by hand. */
  #write(
    thread: Thread,
    from: Pick<Checkpoint, 'run' | 'position'>,
    parent: Checkpoint | undefined,
    values: JsonObject,
  ) {
    const { clock, newId } = this.#options
    const { run, position } = from
    const name = position?.steps[position.index]?.name
    const checkpoint: Checkpoint = {
      id: newId(),
      parentId: parent?.id ?? null,
      threadId: thread.threadId,
      run,
      step: parent?.run === run ? parent.step + 1 : 0,
      values,
      task: name === undefined ? null : { id: newId(), name, error: null, interrupts: [] },
      position,
      createdAtMs: clock.now(),
      retried: false,
    }
    thread.checkpoints = [...thread.checkpoints, checkpoint].slice(-MAX_CHECKPOINTS)
    return checkpoint
  }

  #goOn(thread: Thread, run: Run, values: JsonObject): void {
    run.head = this.#write(thread, { run, position: run.position }, run.head, values)
  }

  #fail(thread: Thread, run: Run, { fail, endsAs }: Extract<StepResult, { fail: string }>): void {
    run.error = fail
    this.#end(thread, run, { status: endsAs ?? 'error', threadStatus: 'error' })
  }

  /** The run fails before its first step, and the thread stays where it was. */
  #refuse(thread: Thread, run: Run, problem: string): void {
    run.error = problem
    this.#end(thread, run, { status: 'error', threadStatus: 'error' })
  }

  #end(thread: Thread, run: Run, end: { status: RunStatus; threadStatus: Thread['status'] }): void {
    this.#settle(thread, run, end.status, end.threadStatus)
    this.#options.onEnd(run)
  }

  /** The run is deleted with everything it wrote. */
  #rollBack(thread: Thread, run: Run): void {
    this.#drop(thread, run)
    thread.checkpoints = thread.checkpoints.filter((checkpoint) => checkpoint.run !== run)
    run.head = undefined
  }

  #drop(thread: Thread, run: Run): void {
    run.removed = true
    thread.runs = thread.runs.filter((other) => other !== run)
  }

  #settle(thread: Thread, run: Run, status: RunStatus, threadStatus: Thread['status'] = 'idle'): void {
    const nowMs = this.#options.clock.now()
    run.status = status
    run.endedAtMs = nowMs
    run.updatedAtMs = nowMs
    const head = run.head ?? thread.checkpoints.at(-1)
    run.values = WITH_VALUES.has(status) ? head?.values : undefined
    thread.values = run.values
    thread.interrupts = head?.task ? { [head.task.id]: head.task.interrupts } : {}
    thread.status = thread.runs.some(isLive) ? 'busy' : threadStatus
    thread.updatedAtMs = nowMs
    run.stop.abort()
    run.ended.resolve()
  }
}

function nextStep({ position }: Run): Step | undefined {
  return position?.steps[position.index]
}

const INTERRUPT_ID = /^[0-9a-f]{32}$/

/** As in the real runtime, a later question of the same task has the same id. */
function interruptId(taskId: string, n: number): string {
  return taskId.replaceAll('-', '').slice(0, 31) + n.toString(16)
}

/**
 * The answers in a resume command, in the order of the questions. A string is the error with which the real runtime would
 * refuse it. The runtime drops a falsy value; an object whose keys are question ids answers each question.
 */
function answersIn(resume: Json | undefined, checkpoint: Checkpoint | undefined): Json[] | string {
  if (!resume) return 'Received empty Command input'
  const asked = checkpoint?.task?.interrupts ?? []
  const isById = isJsonObject(resume) && Object.keys(resume).every((key) => INTERRUPT_ID.test(key))
  if (isById) return asked.flatMap(({ id }) => (Object.hasOwn(resume, String(id)) ? [resume[String(id)] ?? null] : []))
  if (asked.length > 1) {
    return 'When there are multiple pending interrupts, you must specify the interrupt id when resuming.'
  }
  return [resume]
}
