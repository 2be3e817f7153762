import assert from 'node:assert/strict'
import { writeJson } from '../../src/core/json/json-text.ts'
import type { Json } from '../../src/core/json.ts'
import { systemRandom } from '../../src/core/random.ts'
import { sql } from '../../src/db/sql.ts'
import type { Job } from '../../src/jobs/api/job-schema.ts'
import { toJob } from '../../src/jobs/api/present-job.ts'
import { findJob } from '../../src/jobs/job-store.ts'
import { type JobTypes, toJobTypes } from '../../src/jobs/job-types.ts'
import { type AgentRuntime, startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { atEnd } from './at-end.ts'
import type { TestRequest, TestResponse } from './http-client.ts'
import { ManualClock } from './manual-clock.ts'
import type { ServiceUnderTest, TestService, TestServiceOptions } from './service.ts'
import { until } from './until.ts'
import { WatchedDatabase } from './watched-database.ts'

/** One for each graph of the sandbox runtime, and some that go wrong. */
export const TEST_JOB_TYPES: JobTypes = toJobTypes({
  report: { assistant_id: 'report', output_key: 'report', may_pause: false, deadline_seconds: 600 },
  hasty: { assistant_id: 'report', output_key: 'report', may_pause: false, deadline_seconds: 20 },
  summary: { assistant_id: 'summary', output_key: '/result/summary', usage_key: 'usage', may_pause: false },
  throwing: { assistant_id: 'throw', output_key: 'report' },
  pausing: { assistant_id: 'pause', output_key: 'report' },
  asking: { assistant_id: 'ask_twice', output_key: 'report' },
  both: { assistant_id: 'ask_both', output_key: 'report' },
  stopping: { assistant_id: 'breakpoint', output_key: 'report' },
  tricky: { assistant_id: 'late_key', output_key: 'report', may_pause: true },
  // Writes its output and then pauses; the type does not set may_pause.
  silent: { assistant_id: 'late_key', output_key: 'report' },
  // The same graph, whose output counts although it pauses.
  decided: { assistant_id: 'late_key', output_key: 'report', may_pause: false },
  // Pauses without an output, although the type says that it does not pause.
  careless: { assistant_id: 'pause', output_key: 'report', may_pause: false },
  keyless: { assistant_id: 'report', output_key: 'nowhere' },
  graphless: { assistant_id: 'no-such-graph', output_key: 'report' },
})

/** A job as clients read it. */
export type ShownJob = Omit<Job, 'input' | 'output' | 'interrupts' | 'configurable'> & {
  input: Json
  output: Json
  interrupts: Json
  configurable: Json
}

export const WEBHOOK_SECRET = 'a-secret-of-the-runtime'
/** The base of the callback URLs; the test forwards callbacks to the address of the service. */
const PUBLIC_URL = 'http://service.test'

/** How long a run of the sandbox takes by default. */
export const RUN_MS = 350

export interface WorldOptions extends Partial<Omit<TestServiceOptions, 'variant'>> {
  /** False for a service that has no runtime. */
  runtime?: boolean
}

/** A service and its runtime on one manual clock, connected by real HTTP. */
export async function startJobWorld(under: ServiceUnderTest, options: WorldOptions = {}): Promise<JobWorld> {
  const { runtime: hasRuntime = true, ...rest } = options
  const clock = options.clock ?? new ManualClock()
  const database = new WatchedDatabase(options.db ?? (await under.engine.openDatabase()))
  let service: TestService | undefined
  const chances: number[] = []
  const runtime = await startAgentRuntime({
    clock,
    random: { bytes: systemRandom.bytes, fraction: () => chances.shift() ?? systemRandom.fraction() },
    fetch: (url, init) => fetch(String(url).replace(PUBLIC_URL, service?.url ?? PUBLIC_URL), init),
  })
  runtimes.push(runtime)
  service = await under.start({
    jobTypes: TEST_JOB_TYPES,
    ...rest,
    clock,
    db: database.db,
    env: { WEBHOOK_SECRET, ...(hasRuntime ? { RUNTIME_URL: runtime.url, PUBLIC_URL } : {}), ...options.env },
  })
  return new JobWorld({ service, runtime, clock, database, chances })
}

/** Starts one world for all tests of a block. */
export function sharedJobWorld(under: ServiceUnderTest, options: WorldOptions = {}): () => Promise<JobWorld> {
  let world: Promise<JobWorld> | undefined
  return () => {
    world ??= startJobWorld(under, options)
    return world
  }
}

const runtimes: AgentRuntime[] = []
atEnd(async () => {
  await Promise.all(runtimes.map((runtime) => runtime.close()))
})

export interface CallbackRequest extends TestRequest {
  /** Default: `/webhooks/jobs/{type of the job}`. */
  path?: string
  query?: Record<string, string>
}

interface WorldParts {
  service: TestService
  runtime: AgentRuntime
  clock: ManualClock
  database: WatchedDatabase
  chances: number[]
}

export class JobWorld {
  readonly service: TestService
  readonly runtime: AgentRuntime
  readonly clock: ManualClock
  /** The next random numbers (0 to 1) that decide the runtime's faults; after them, real ones. */
  readonly chances: number[]
  readonly #database: WatchedDatabase

  constructor(parts: WorldParts) {
    this.service = parts.service
    this.runtime = parts.runtime
    this.clock = parts.clock
    this.chances = parts.chances
    this.#database = parts.database
  }

  get db() {
    return this.service.db
  }

  token(sub: string): string {
    return this.service.tokenFor({ sub })
  }

  get admin(): string {
    return this.service.tokenFor({ sub: 'root', scopes: ['admin:*'] })
  }

  request<Body = ShownJob>(method: string, path: string, sub: string, request: TestRequest = {}) {
    return this.service.request<Body>(method, path, { token: this.token(sub), ...request })
  }

  /** Starts a job, and waits until its start has succeeded or failed. */
  async start(type: string, { input = { title: 'Done', n: 42 }, sub = 'ada' }: { input?: unknown; sub?: string } = {}) {
    const answer = await this.request('POST', '/jobs', sub, { body: { type, input } })
    assert.equal(answer.status, 202, answer.text)
    await this.quiet()
    return answer.body
  }

  /** Cancels as the user who started the job. */
  cancel({ id, created_by }: ShownJob) {
    return this.request('POST', `/jobs/${id}/cancel`, String(created_by))
  }

  /** Resumes as the user who started the job. The body has an `input`, or the `answers` to several questions. */
  resume({ id, created_by }: ShownJob, body: object) {
    return this.request('POST', `/jobs/${id}/resume`, String(created_by), { body })
  }

  async get(id: string, token = this.admin): Promise<ShownJob> {
    const answer = await this.service.request<ShownJob>('GET', `/jobs/${id}`, { token })
    assert.equal(answer.status, 200, answer.text)
    return answer.body
  }

  /** Whether the newest run has said this word. A page or a viewer may not show it yet. */
  hasSaid(word: string): boolean {
    return JSON.stringify(this.runtime.recentRuns[0]?.events ?? []).includes(`"${word} "`)
  }

  /**
   * Time passes while the read waits for another worker that is checking the job. It stands while a statement is in
   * progress: otherwise a slow database would use up the 3 s that the read waits.
   */
  async getInTime(id: string): Promise<ShownJob> {
    let answered = false
    const reading = this.get(id).finally(() => {
      answered = true
    })
    await until(async () => {
      await this.#database.idle()
      await this.clock.advance(50)
      return answered
    })
    return reading
  }

  /** The stored job; a read through the API would first check the runtime. */
  async stored(id: string): Promise<ShownJob> {
    const row = await findJob(this.db, id)
    assert.ok(row, `There is no job ${id}`)
    return JSON.parse(writeJson(toJob(row))) as ShownJob
  }

  /** Another node holds the job for an hour. */
  async leaseElsewhere(id: string): Promise<void> {
    const untilMs = this.clock.now() + 3_600_000
    await this.db.query(sql`
      insert into nodes (id, started_at, expires_at) values ('another', 0, ${untilMs})
      on conflict (id) do update set expires_at = excluded.expires_at`)
    await this.db.query(sql`
      update job_checks set lease_id = 'of another node', lease_node = 'another', leased_until = ${untilMs}
      where job_id = ${id}`)
  }

  /** A run that another client of the runtime starts. It sends no callback. */
  async startElsewhere(metadata: object = {}, { assistant = 'report', threadMetadata = {}, config = {} } = {}) {
    const { thread_id } = await this.#postElsewhere('/threads', { metadata: threadMetadata })
    const run = { assistant_id: assistant, input: {}, metadata, config }
    const { run_id } = await this.#postElsewhere(`/threads/${thread_id}/runs`, run)
    return { thread_id, run_id }
  }

  /** Another client of the runtime starts a run on the thread of a job. It sends no callback. */
  async continueElsewhere({ thread_id }: Pick<ShownJob, 'thread_id'>, run: object): Promise<string> {
    const { run_id } = await this.#postElsewhere(`/threads/${thread_id}/runs`, { assistant_id: 'pause', ...run })
    return run_id
  }

  /** Another client of the runtime answers the first question of a job. */
  async answerElsewhere(job: ShownJob, answer: Json, run: object = {}): Promise<string> {
    const [question] = job.interrupts as { id: string }[]
    return this.continueElsewhere(job, { command: { resume: { [String(question?.id)]: answer } }, ...run })
  }

  /** Another client of the runtime changes the state of the thread by hand, without a run. */
  async changeByHand({ thread_id }: ShownJob, values: object, as_node?: string): Promise<void> {
    await this.#postElsewhere(`/threads/${thread_id}/state`, { values, as_node })
  }

  async #postElsewhere(path: string, body: object): Promise<{ thread_id: string; run_id: string }> {
    const headers = { 'content-type': 'application/json' }
    const answer = await fetch(`${this.runtime.url}${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
    assert.equal(answer.status, 200)
    return (await answer.json()) as { thread_id: string; run_id: string }
  }

  /** Posts a callback like the runtime, by default with the shared secret. */
  callback<Body = { received: boolean; outcome: string; job_id: string }>(
    type: string,
    payload: unknown,
    { path, query = {}, headers, ...request }: CallbackRequest = {},
  ): Promise<TestResponse<Body>> {
    const search = new URLSearchParams(query).toString()
    const target = path ?? (type === 'agent' ? '/webhooks/agent' : `/webhooks/jobs/${type}`)
    return this.service.request<Body>('POST', search === '' ? target : `${target}?${search}`, {
      ...('raw' in request ? {} : { raw: JSON.stringify(payload) }),
      headers: headers ?? { 'x-webhook-secret': WEBHOOK_SECRET, 'content-type': 'text/plain;charset=UTF-8' },
      ...request,
    })
  }

  /** Advances the clock, and waits until the resulting work is done. */
  async pass(ms: number): Promise<void> {
    await this.clock.advance(ms)
    await this.quiet()
  }

  /** The same for a long time; due work runs once, at the end. */
  async leap(ms: number): Promise<void> {
    await this.clock.leap(ms)
    await this.quiet()
  }

  /** Runs rounds of the sweep until the condition holds, for at most about two hours of virtual time. */
  async sweepUntil(holds: () => boolean | Promise<boolean>, everyMs = 1_000): Promise<void> {
    for (let round = 0; round < 500; round++) {
      if (await holds()) return
      await this.pass(everyMs)
    }
    assert.fail(`It did not come true: ${holds}`)
  }

  /** The same in leaps, for rare work: other loops run once in each leap. */
  async leapUntil(holds: () => boolean | Promise<boolean>, everyMs: number): Promise<void> {
    for (let round = 0; round < 500; round++) {
      if (await holds()) return
      await this.leap(everyMs)
      // After a leap the heartbeat is late, and the sweep takes no job before the next one.
      await this.pass(1_000)
    }
    assert.fail(`It did not come true: ${holds}`)
  }

  /** Resolves when no callback, start, check or statement is in progress. */
  async quiet(): Promise<void> {
    for (let calm = 0; calm < 2; calm++) {
      await this.runtime.drainCallbacks()
      await this.#database.idle()
      await this.service.services.jobWorker.idle()
      await new Promise(setImmediate)
    }
  }

  /** How often an endpoint of the runtime was called: `GET /threads/{t}/runs/{r}`. */
  calls(endpoint: string): number {
    return this.runtime.stats.calls[endpoint] ?? 0
  }

  get allCalls(): number {
    return Object.values(this.runtime.stats.calls).reduce((sum, count) => sum + count, 0)
  }
}

export const GET_RUN = 'GET /threads/{t}/runs/{r}'
export const GET_STATE = 'GET /threads/{t}/state'
export const LIST_RUNS = 'GET /threads/{t}/runs'
export const START_RUN = 'POST /threads/{t}/runs'
