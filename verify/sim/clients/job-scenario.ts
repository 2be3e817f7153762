import type { Json } from '../../../src/core/json.ts'
import type { OnBusy } from '../../../src/jobs/actions/conversation.ts'
import type { JobStatus } from '../../../src/jobs/job.ts'
import { isFinal } from '../expected-statuses.ts'
import type { Theme } from '../faults/plan.ts'
import { MAX_LAG_MS } from '../outside/network.ts'
import { DOCUMENTS } from '../outside/run-plans.ts'
import type { SimRun } from '../outside/runtime.ts'
import type { NodeResponse } from '../system/node.ts'
import type { Prng } from '../time/prng.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import type { WatchedJob } from './calm-scenario.ts'
import type { Client } from './client.ts'
import { OperatorObservations } from './operator-scenario.ts'
import { answerTo, inputOf, nameRequest, type SentAnswers, type SentRequest } from './sent-documents.ts'

const RESUME_SLACK_MS = 3_000
/** A request to follow a run makes up to five calls of the runtime, as many as three other requests. */
const REQUESTS_TO_FOLLOW = 3

export interface JobView {
  id: string
  status: JobStatus
  output: Json
  run_id: string | null
  thread_id: string
  queued_behind?: string | null
  run_at?: string | null
  interrupts?: { id: string }[] | null
}

/** The answers that clients got. At the end they are checked against the database. */
export class ClientObservations {
  /** The ids of jobs in the responses, by the marker in the request's input. */
  readonly created = new Map<string, Set<string>>()
  /** The requests for runs, by the id with which they configure their run. */
  readonly asked = new Map<string, SentRequest>()
  readonly cancelled = new Map<string, number>()
  readonly resumed = new Map<string, SentAnswers[]>()
  /** How many answers are being sent now, by thread. */
  readonly resuming = new Map<string, number>()
  /** The exact text of the input that a client sent, by its marker. */
  readonly inputs = new Map<string, string>()
  /** The text that may have replaced it: the client got no answer. */
  readonly perhapsInputs = new Map<string, string>()
  /** The final state that a client was shown, by job. */
  readonly finals = new Map<string, JobView>()
  /** Reads, cancels and resumes, by thread: each may call the runtime. */
  readonly requests = new Map<string, number>()
  readonly followed = new Map<string, string>()
  /** Reads of the list, by user: each may call the runtime about every unfinished job. */
  readonly lists = new Map<string, number>()
  /** Jobs of the time after the faults. */
  readonly watched: WatchedJob[] = []
  readonly operators = new OperatorObservations()
}

export interface JobScenarioOptions {
  client: Client
  /** Does some of it on behalf of the user. */
  admin: Client
  time: VirtualTime
  prng: Prng
  observed: ClientObservations
  theme: Theme
  /** Whether another client of the runtime changed this thread. */
  wasChangedElsewhere: (threadId: string) => boolean
  /** Shares of jobs whose conversation continues: after them, and while they are unfinished. */
  continued: number
  hurried: number
  onViolation: (invariant: string, what: string) => void
  /** False once the faults have stopped: then the client starts nothing new. */
  isActive: () => boolean
  /** Opens the job's own stream. */
  watch: (jobId: string) => void
}

/** One user and one job: the user starts it, then reads, resumes or cancels it, or leaves. Some users then continue the conversation. */
export class JobScenario {
  readonly #options: JobScenarioOptions
  readonly #marker: string

  constructor(options: JobScenarioOptions, marker: string) {
    this.#options = options
    this.#marker = marker
  }

  /** `continues`: the job whose conversation this one continues. `runAtMs`: when it is to start. */
  async start(type: string, continues?: JobView, onBusy?: OnBusy, runAtMs?: number): Promise<void> {
    const { client, prng, observed } = this.#options
    const key = prng.chance(0.75) ? `key-${this.#marker}` : undefined
    const busy = onBusy === undefined ? '' : `,"on_busy":"${onBusy}"`
    const turn = continues === undefined ? '' : `,"continues":"${continues.id}"${busy}`
    const asker = this.#pickAsker('start')
    const owner = asker === client ? '' : `,"created_by":"${client.name}"`
    const named = nameRequest(observed, { by: asker.name, marker: this.#marker })
    const input = inputOf(this.#marker, this.#options)
    const delay = runAtMs === undefined ? '' : `,"run_at":"${new Date(runAtMs).toISOString()}"`
    const request = {
      method: 'POST' as const,
      path: '/jobs',
      body: { text: `{"type":"${type}","input":${input},${named}${turn}${owner}${delay}}` },
      headers: key === undefined ? {} : { 'idempotency-key': key },
    }
    const created = new Set<string>()
    observed.created.set(this.#marker, created)
    const answer = key === undefined ? await asker.request(request) : await asker.requestUntilAnswered(request)
    if (answer === null || answer.status === 503) return
    // The previous turn may still be unfinished.
    if (continues && answer.status === 409) return
    if (answer.status !== 202) return this.#unexpected('POST /jobs', answer)
    const job = JSON.parse(answer.body) as JobView
    created.add(job.id)
    if (key !== undefined && prng.chance(0.3)) await this.#repeat(asker, request, created)
    await Promise.all([this.#useJob(job), this.#perhapsHurry(type, job), this.#perhapsReplaceInput(job)])
    await this.#perhapsContinue(type, job)
  }

  /** Some users send the next turn while this one is unfinished. */
  async #perhapsHurry(type: string, job: JobView): Promise<void> {
    const { hurried, time, isActive } = this.#options
    const prng = this.#options.prng.split('hurry')
    if (hurried === 0 || this.#marker.endsWith('~~') || !prng.chance(hurried)) return
    await time.sleep(prng.int(0, 15_000))
    if (!isActive()) return
    const onBusy = prng.pick<OnBusy>(['reject', 'enqueue', 'enqueue', 'interrupt'])
    await new JobScenario({ ...this.#options, prng }, `${this.#marker}~`).start(type, job, onBusy)
  }

  /** The user, or in some cases an admin. */
  #pickAsker(what: string): Client {
    const { client, admin, prng } = this.#options
    return prng.split(`${what} on behalf`).chance(0.2) ? admin : client
  }

  /** Some users change their mind while a turn waits. */
  async #perhapsReplaceInput(job: JobView): Promise<void> {
    const { observed, time } = this.#options
    const prng = this.#options.prng.split('replace')
    if ((typeof job.queued_behind !== 'string' && typeof job.run_at !== 'string') || !prng.chance(0.4)) return
    await time.sleep(prng.int(0, 10_000))
    const asker = this.#pickAsker('replace')
    const text = `{"marker":"${this.#marker}","document":${prng.pick(DOCUMENTS)},"replaced_by":"${asker.name}"}`
    observed.perhapsInputs.set(this.#marker, text)
    const path = `/jobs/${job.id}`
    const answer = await asker.request({ method: 'PATCH', path, body: { text: `{"input":${text}}` } })
    if (answer === null || answer.status === 503) return
    observed.perhapsInputs.delete(this.#marker)
    if (answer.status === 200) observed.inputs.set(this.#marker, text)
    // The turn has begun.
    else if (answer.status !== 409) this.#unexpected('PATCH /jobs/{id}', answer)
  }

  /** Many users continue with a next turn. Some of them do not wait for the end of the last turn. */
  async #perhapsContinue(type: string, job: JobView): Promise<void> {
    // A separate sequence, so that the random values of the first turn do not change.
    const prng = this.#options.prng.split('next turn')
    if (!this.#options.isActive() || !prng.chance(this.#options.continued)) return
    const runAtMs = type === 'inquiry' && prng.chance(0.5) ? this.#options.time.now + prng.int(0, 30_000) : undefined
    await new JobScenario({ ...this.#options, prng }, `${this.#marker}+`).start(type, job, undefined, runAtMs)
  }

  /** The user follows a run that was not started by the service. */
  async follow(run: SimRun): Promise<void> {
    const { client, observed, time } = this.#options
    const body = { type: run.graphId, thread_id: run.threadId, run_id: run.runId }
    const headers = { 'idempotency-key': `follow-${this.#marker}` }
    const countRequest = () => this.#countRequest({ thread_id: run.threadId }, REQUESTS_TO_FOLLOW)
    const answer = await client.requestUntilAnswered({ method: 'POST', path: '/jobs', body, headers }, countRequest)
    if (answer === null) return
    // A lagging replica does not know the run yet.
    if (answer.status === 404 && (run.removed || time.now - run.createdAtMs < MAX_LAG_MS + 4_000)) return
    // The service refuses to follow a run that it has started for a job.
    if (answer.status === 409 && run.metadata.job_id !== undefined) return
    if (answer.status !== 202) return this.#unexpected('POST /jobs', answer)
    const job = JSON.parse(answer.body) as JobView
    observed.followed.set(run.runId, job.id)
    await this.#useJob(job)
    await this.#perhapsContinue(run.graphId, job)
  }

  /** Repeats the request, at once or later: it must get the same job. */
  async #repeat(asker: Client, request: Parameters<Client['request']>[0], created: Set<string>): Promise<void> {
    const { time, prng } = this.#options
    await time.sleep(prng.int(0, 20_000))
    const answer = await asker.requestUntilAnswered(request)
    if (answer?.status === 202) created.add((JSON.parse(answer.body) as JobView).id)
  }

  async #useJob(job: JobView): Promise<void> {
    const { time, prng, isActive, theme, watch } = this.#options
    if (prng.chance(0.2)) watch(job.id)
    if (theme === 'crowds' && prng.chance(0.8)) await this.#cancelSoon(job)
    const reads = prng.chance(0.7)
    const patienceMs = theme === 'handovers' ? 2_500 : 12_000
    const cancels = prng.chance(theme === 'cancels' ? 0.7 : 0.2)
    const cancelAtMs = cancels ? time.now + prng.int(0, 40_000) : Number.POSITIVE_INFINITY
    for (;;) {
      await time.sleep(prng.chance(0.2) ? 0 : prng.int(200, patienceMs))
      if (!isActive()) return
      if (time.now >= cancelAtMs && !(await this.#cancel(job))) return
      if (!reads && time.now < cancelAtMs) {
        if (cancelAtMs === Number.POSITIVE_INFINITY && prng.chance(0.2)) return
        continue
      }
      const view = prng.chance(0.15) ? await this.#readTwice(job) : await this.#read(job)
      if (view && isFinal(view.status)) return
      if (view?.status === 'awaiting_input') await this.#resume(view)
    }
  }

  /** Cancels soon after the start, often during a read. */
  async #cancelSoon(job: JobView): Promise<void> {
    const { time, prng, isActive } = this.#options
    await time.sleep(prng.int(0, 1_500))
    const reading = prng.chance(0.9) && isActive() ? this.#read(job) : undefined
    if (prng.chance(0.6)) await reading
    else await time.sleep(prng.int(0, 1_000))
    if (isActive() && (await this.#cancel(job))) await this.#read(job)
    await reading
  }

  async #readTwice(job: JobView): Promise<JobView | undefined> {
    const [view] = await Promise.all([this.#read(job), this.#read(job)])
    return view
  }

  async #read(job: JobView): Promise<JobView | undefined> {
    this.#countRequest(job)
    const answer = await this.#options.client.request({ method: 'GET', path: `/jobs/${job.id}` })
    if (answer === null || answer.status === 503) return undefined
    if (answer.status !== 200) return this.#unexpected('GET /jobs/{id}', answer)
    return this.#checkShown(JSON.parse(answer.body) as JobView)
  }

  /** False when the job has ended. */
  async #cancel(job: JobView): Promise<boolean> {
    const { client, observed, time } = this.#options
    this.#countRequest(job)
    const answer = await client.request({ method: 'POST', path: `/jobs/${job.id}/cancel` })
    if (answer?.status === 409) return false
    if (answer?.status === 200 || answer?.status === 202) {
      if (!observed.cancelled.has(job.id)) observed.cancelled.set(job.id, time.now)
      this.#checkShown(JSON.parse(answer.body) as JobView)
    } else if (answer !== null && answer.status !== 503) this.#unexpected('cancel', answer)
    return true
  }

  async #resume(job: JobView): Promise<void> {
    const { observed, prng, time, isActive, theme } = this.#options
    await time.sleep(theme === 'pauses' ? prng.int(0, 500) : prng.int(0, 8_000))
    if (!isActive() || prng.chance(0.25)) return
    this.#countRequest(job)
    const { body, sent } = answerTo(job, prng)
    const asker = this.#pickAsker(`resume ${job.run_id}`)
    const text = body.replace(/\}$/, `,${nameRequest(observed, { by: asker.name, answers: sent })}}`)
    const done = this.#noteResuming(job)
    const answer = await asker.request({ method: 'POST', path: `/jobs/${job.id}/resume`, body: { text } })
    done()
    if (answer === null || answer.status === 503 || answer.status === 409) return
    // The job has other questions than the client saw, or none any more.
    if (answer.status === 400 && this.#options.wasChangedElsewhere(job.thread_id)) return
    if (answer.status !== 202) return this.#unexpected('resume', answer)
    observed.resumed.set(job.id, [...(observed.resumed.get(job.id) ?? []), sent])
  }

  /** The node may still read the state for a while after the client got its answer. */
  #noteResuming({ thread_id }: JobView): () => void {
    const { resuming } = this.#options.observed
    const add = (count: number) => resuming.set(thread_id, (resuming.get(thread_id) ?? 0) + count)
    add(1)
    return () => void this.#options.time.after(RESUME_SLACK_MS, () => add(-1))
  }

  #countRequest({ thread_id }: Pick<JobView, 'thread_id'>, count = 1): void {
    const { requests } = this.#options.observed
    requests.set(thread_id, (requests.get(thread_id) ?? 0) + count)
  }

  /** Once a job is final, all clients see the same state for ever. */
  #checkShown(view: JobView): JobView {
    const { observed, onViolation } = this.#options
    const before = observed.finals.get(view.id)
    if (before && (before.status !== view.status || JSON.stringify(before.output) !== JSON.stringify(view.output))) {
      onViolation('I3', `${view.id} was shown as ${before.status}, then as ${view.status}`)
    }
    if (isFinal(view.status)) observed.finals.set(view.id, view)
    return view
  }

  #unexpected(what: string, answer: NodeResponse): undefined {
    this.#options.onViolation('answers', `${what} answered ${answer.status}: ${answer.body}`)
    return undefined
  }
}
