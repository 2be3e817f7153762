import { systemClock } from '../../../src/core/clock.ts'
import type { Json } from '../../../src/core/json.ts'
import type { IdentityProvider } from '../../../src/sandbox/identity-provider/identity-provider.ts'
import type { Prng } from '../../sim/time/prng.ts'
import { ApiClient } from './api-client.ts'
import { EventFollower } from './event-follower.ts'
import type { PacedQueue } from './paced-queue.ts'

const SUBMITTERS = 12
const PAUSE_MS = 400
const POLL_MS = { min: 150, max: 600 }
const TOKEN_SECONDS = 24 * 3_600
const PLATFORMS = ['web', 'ios', 'android'] as const

/** read: polls until the job has ended. stream: only follows the stream. leave: does nothing more. */
const KINDS = ['read', 'read', 'read', 'stream', 'stream', 'leave', 'leave', 'cancel', 'answer'] as const
type Kind = (typeof KINDS)[number]

export interface Submission {
  owner: string
  kind: Kind
  type: 'report' | 'summary' | 'agent'
  /** Null until it was accepted. */
  jobId: string | null
  cancelled: boolean
  /** When its client, if it polls, first saw its end. */
  seenEndAtMs: number | null
}

/** A job as the API shows it. */
export interface ShownJob {
  id: string
  type: string
  status: string
  output: Json
  error: { code: string; message: string } | null
  thread_id: string
  run_id: string | null
  settled_by: string | null
  finished_at: string | null
}

export interface WorkloadOptions {
  url: string
  identity: IdentityProvider
  users: number
  random: Prng
}

/** Users with devices and open streams, who start jobs and then read, cancel, answer or leave them. */
export class Workload {
  readonly submissions: Submission[] = []
  readonly followers: EventFollower[] = []
  /** Responses that must never be sent, such as a 404 for a job that was accepted. */
  readonly unexpected: string[] = []
  readonly client: ApiClient
  readonly #random: Prng
  readonly #url: string
  readonly #tokens = new Map<string, string>()
  readonly #behaving: Promise<void>[] = []

  constructor({ url, identity, users, random }: WorkloadOptions) {
    this.#url = url
    this.#random = random
    this.client = new ApiClient(url, random.split('client'))
    for (let n = 0; n < users; n++) {
      const sub = `user-${n}`
      this.#tokens.set(sub, identity.mint({ sub, expiresInSeconds: TOKEN_SECONDS }))
    }
  }

  tokenOf(owner: string): string {
    return this.#tokens.get(owner) ?? ''
  }

  /** Registers devices and opens all streams. */
  async prepare(): Promise<void> {
    await Promise.all(
      [...this.#tokens].map(async ([sub, token], n) => {
        // No, one or two devices per user.
        for (let device = 0; device < n % 3; device++) {
          const body = { token: `device-${sub}-${device}`, platform: PLATFORMS[(n + device) % 3] }
          await this.#expect('/v1/devices', { method: 'POST', token, body }, [201])
        }
        const follower = new EventFollower(sub, { url: this.#url, token })
        this.followers.push(follower)
        await follower.begun()
      }),
    )
  }

  /** Resolves once every job was accepted and every client is done. */
  async run(queue: PacedQueue): Promise<void> {
    await Promise.all(Array.from({ length: SUBMITTERS }, (_, n) => this.#submit(queue, this.#random.split(`s${n}`))))
    await Promise.all(this.#behaving)
  }

  async #submit(queue: PacedQueue, random: Prng): Promise<void> {
    for (let index = await queue.next(); index !== null; index = await queue.next()) {
      const submission: Submission = {
        owner: random.pick([...this.#tokens.keys()]),
        ...whatFor(random.pick(KINDS), random),
        jobId: null,
        cancelled: false,
        seenEndAtMs: null,
      }
      this.submissions.push(submission)
      const input = inputOf(submission, index, random)
      const { owner, type } = submission
      const job = await this.#expect<ShownJob>(
        '/jobs',
        { method: 'POST', token: this.tokenOf(owner), body: { type, input }, key: `torture-${index}` },
        [202],
      )
      submission.jobId = job?.id ?? null
      this.#behaving.push(this.#behave(submission, random.split(`b${index}`)))
      await systemClock.sleep(random.int(0, PAUSE_MS))
    }
  }

  async #behave(submission: Submission, random: Prng): Promise<void> {
    const { kind, jobId, owner } = submission
    if (jobId === null || kind === 'stream' || kind === 'leave') return
    const token = this.tokenOf(owner)
    if (kind === 'cancel') {
      await systemClock.sleep(random.int(0, POLL_MS.max))
      await this.#expect(`/jobs/${jobId}/cancel`, { method: 'POST', token }, [200, 202, 409])
      submission.cancelled = true
    }
    for (;;) {
      const job = await this.#expect<ShownJob>(`/jobs/${jobId}`, { token }, [200])
      if (!job) return
      if (job.status === 'awaiting_input') {
        // 409: an earlier attempt, whose response was lost, has resumed it.
        await this.#expect(`/jobs/${jobId}/resume`, { method: 'POST', token, body: { input: 'go on' } }, [202, 409])
      }
      if (job.finished_at !== null) {
        submission.seenEndAtMs = Date.now()
        return
      }
      await systemClock.sleep(random.int(POLL_MS.min, POLL_MS.max))
    }
  }

  async #expect<Body>(
    path: string,
    request: Parameters<ApiClient['requestUntilAnswered']>[1],
    expected: readonly number[],
  ): Promise<Body | null> {
    try {
      const { status, body } = await this.client.requestUntilAnswered<Body>(path, request)
      if (expected.includes(status)) return body
      this.unexpected.push(`${request.method ?? 'GET'} ${path} answered ${status} ${JSON.stringify(body)}`)
    } catch (error) {
      this.unexpected.push(String(error))
    }
    return null
  }
}

function whatFor(kind: Kind, random: Prng): Pick<Submission, 'kind' | 'type'> {
  return { kind, type: kind === 'answer' ? 'agent' : random.pick(['report', 'report', 'summary', 'agent'] as const) }
}

function inputOf({ kind, type }: Submission, index: number, random: Prng): Json {
  const sandbox = {
    duration_ms: kind === 'cancel' ? random.int(100, 1_500) : random.int(20, 800),
    ...(kind === 'answer' ? { pause: 'Go on?' } : {}),
    ...(kind !== 'answer' && random.chance(0.1) ? { fail: `job ${index} failed on purpose` } : {}),
  }
  if (type === 'report') return { title: `Report ${index}`, n: index, sandbox }
  if (type === 'summary') return { prompt: `text number ${index}`, sandbox }
  return { messages: [{ role: 'user', content: `question number ${index}` }], sandbox }
}
