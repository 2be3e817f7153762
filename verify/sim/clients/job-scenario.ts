import type { Json } from '../../../src/core/json.ts'
import type { Theme } from '../faults/plan.ts'
import type { SimRun } from '../outside/runtime.ts'
import type { Answer } from '../system/node.ts'
import type { Prng } from '../time/prng.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import type { Client } from './client.ts'

export interface JobView {
  id: string
  status: string
  output: Json
  run_id: string | null
  thread_id: string
}

/** What clients were promised and shown, to be held against what is stored at the end. */
export class Promises {
  /** By what the request carried, so that it can be found in the store: every job that was answered for it. */
  readonly created = new Map<string, Set<string>>()
  /** The same for those that carried an Idempotency-Key. */
  readonly keyed = new Set<string>()
  readonly cancelled = new Map<string, number>()
  readonly resumed = new Map<string, string[]>()
  /** The final state somebody was shown. */
  readonly finals = new Map<string, JobView>()
  /** Reads, cancels and resumes, by thread: each may ask the runtime. */
  readonly looks = new Map<string, number>()
  readonly followed = new Map<string, string>()
}

export interface StoryOptions {
  client: Client
  time: VirtualTime
  prng: Prng
  promises: Promises
  theme: Theme
  onViolation: (invariant: string, what: string) => void
  /** False once the faults have stopped: then nobody begins anything new. */
  goesOn: () => boolean
  /** Opens the job's own stream. */
  watch: (jobId: string) => void
}

const FINAL = new Set(['completed', 'failed', 'cancelled'])

/** One user and one job: started, read, resumed, cancelled, or left alone. */
export class JobStory {
  readonly #options: StoryOptions
  readonly #marker: string

  constructor(options: StoryOptions, marker: string) {
    this.#options = options
    this.#marker = marker
  }

  async start(type: string): Promise<void> {
    const { client, prng, promises } = this.#options
    const key = prng.chance(0.75) ? `key-${this.#marker}` : undefined
    if (key !== undefined) promises.keyed.add(this.#marker)
    const ask = {
      method: 'POST' as const,
      path: '/jobs',
      body: { type, input: { marker: this.#marker } },
      headers: key === undefined ? {} : { 'idempotency-key': key },
    }
    const created = new Set<string>()
    promises.created.set(this.#marker, created)
    const answer = key === undefined ? await client.ask(ask) : await client.insist(ask)
    if (answer === null || answer.status === 503) return
    if (answer.status !== 202) return this.#unexpected('POST /jobs', answer)
    const job = JSON.parse(answer.body) as JobView
    created.add(job.id)
    if (key !== undefined && prng.chance(0.3)) await this.#repeat(ask, created)
    await this.#attend(job)
  }

  /** A run that was started elsewhere. */
  async follow(run: SimRun): Promise<void> {
    const { client, promises } = this.#options
    const body = { type: run.graphId, thread_id: run.threadId, run_id: run.runId }
    const headers = { 'idempotency-key': `follow-${this.#marker}` }
    const answer = await client.insist({ method: 'POST', path: '/jobs', body, headers })
    if (answer === null) return
    // One of ours belongs to its job, unless the follower was faster than the start.
    if (answer.status === 409 && run.metadata.job_id !== undefined) return
    if (answer.status !== 202) return this.#unexpected('POST /jobs', answer)
    const job = JSON.parse(answer.body) as JobView
    promises.followed.set(run.runId, job.id)
    await this.#attend(job)
  }

  /** The same request again, much later or at once, gets the same job. */
  async #repeat(ask: Parameters<Client['ask']>[0], created: Set<string>): Promise<void> {
    const { client, time, prng } = this.#options
    await time.sleep(prng.int(0, 20_000))
    const answer = await client.insist(ask)
    if (answer?.status === 202) created.add((JSON.parse(answer.body) as JobView).id)
  }

  async #attend(job: JobView): Promise<void> {
    const { time, prng, goesOn, theme, watch } = this.#options
    if (prng.chance(0.2)) watch(job.id)
    if (theme === 'crowds' && prng.chance(0.8)) await this.#thinkBetter(job)
    const reads = prng.chance(0.7)
    const patienceMs = theme === 'handovers' ? 2_500 : 12_000
    const cancels = prng.chance(theme === 'cancels' ? 0.7 : 0.2)
    const cancelAtMs = cancels ? time.now + prng.int(0, 40_000) : Number.POSITIVE_INFINITY
    for (;;) {
      await time.sleep(prng.chance(0.2) ? 0 : prng.int(200, patienceMs))
      if (!goesOn()) return
      if (time.now >= cancelAtMs && !(await this.#cancel(job))) return
      if (!reads && time.now < cancelAtMs) {
        if (cancelAtMs === Number.POSITIVE_INFINITY && prng.chance(0.2)) return
        continue
      }
      const view = prng.chance(0.15) ? await this.#readTwice(job) : await this.#read(job)
      if (view && FINAL.has(view.status)) return
      if (view?.status === 'awaiting_input') await this.#answer(job)
    }
  }

  /** Cancelled soon after it was made, often while somebody looks how it is doing. */
  async #thinkBetter(job: JobView): Promise<void> {
    const { time, prng, goesOn } = this.#options
    await time.sleep(prng.int(0, 1_500))
    const reading = prng.chance(0.9) && goesOn() ? this.#read(job) : undefined
    if (prng.chance(0.6)) await reading
    else await time.sleep(prng.int(0, 1_000))
    if (goesOn() && (await this.#cancel(job))) await this.#read(job)
    await reading
  }

  async #readTwice(job: JobView): Promise<JobView | undefined> {
    const [view] = await Promise.all([this.#read(job), this.#read(job)])
    return view
  }

  async #read(job: JobView): Promise<JobView | undefined> {
    this.#look(job)
    const answer = await this.#options.client.ask({ method: 'GET', path: `/jobs/${job.id}` })
    if (answer === null || answer.status === 503) return undefined
    if (answer.status !== 200) return this.#unexpected('GET /jobs/{id}', answer)
    return this.#shown(JSON.parse(answer.body) as JobView)
  }

  /** False when the job is over. */
  async #cancel(job: JobView): Promise<boolean> {
    const { client, promises, time } = this.#options
    this.#look(job)
    const answer = await client.ask({ method: 'POST', path: `/jobs/${job.id}/cancel` })
    if (answer?.status === 409) return false
    if (answer?.status === 200 || answer?.status === 202) {
      if (!promises.cancelled.has(job.id)) promises.cancelled.set(job.id, time.now)
      this.#shown(JSON.parse(answer.body) as JobView)
    } else if (answer !== null && answer.status !== 503) this.#unexpected('cancel', answer)
    return true
  }

  async #answer(job: JobView): Promise<void> {
    const { client, promises, prng, time, goesOn, theme } = this.#options
    await time.sleep(theme === 'pauses' ? prng.int(0, 500) : prng.int(0, 8_000))
    if (!goesOn() || prng.chance(0.25)) return
    this.#look(job)
    const input = `answer ${this.#marker} ${time.now}`
    const answer = await client.ask({ method: 'POST', path: `/jobs/${job.id}/resume`, body: { input } })
    if (answer === null || answer.status === 503 || answer.status === 409) return
    if (answer.status !== 202) return this.#unexpected('resume', answer)
    promises.resumed.set(job.id, [...(promises.resumed.get(job.id) ?? []), input])
  }

  #look(job: JobView): void {
    const { looks } = this.#options.promises
    looks.set(job.thread_id, (looks.get(job.thread_id) ?? 0) + 1)
  }

  /** Once final, a job looks the same to everybody for ever. */
  #shown(view: JobView): JobView {
    const { promises, onViolation } = this.#options
    const before = promises.finals.get(view.id)
    if (before && (before.status !== view.status || JSON.stringify(before.output) !== JSON.stringify(view.output))) {
      onViolation('I3', `${view.id} was shown as ${before.status}, then as ${view.status}`)
    }
    if (FINAL.has(view.status)) promises.finals.set(view.id, view)
    return view
  }

  #unexpected(what: string, answer: Answer): undefined {
    this.#options.onViolation('answers', `${what} answered ${answer.status}: ${answer.body}`)
    return undefined
  }
}
