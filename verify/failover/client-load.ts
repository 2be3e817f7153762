import { systemClock } from '../../src/core/clock.ts'
import type { IdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { call } from '../torture/workload/http-call.ts'

const CLIENTS = 8
const PAUSE_MS = 20
const SETTLE_TIMEOUT_MS = 120_000
const SCOPES = ['read:projects', 'write:projects', 'admin:*']

/** Clients that never retry: they create projects, start jobs and read, and remember every answer. */
export class ClientLoad {
  readonly #url: string
  readonly #token: string
  readonly #stopping = new AbortController()
  readonly #clients: Promise<void>[]
  /** The paths of what was acknowledged with 2xx. */
  readonly acknowledged: string[] = []
  readonly refusals = new Map<string, number>()
  answered = 0
  #round = 0

  constructor(url: string, identity: IdentityProvider) {
    this.#url = url
    this.#token = identity.mint({ sub: 'ada', scopes: SCOPES, expiresInSeconds: 3_600 })
    this.#clients = Array.from({ length: CLIENTS }, () => this.#run())
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    await Promise.all(this.#clients)
  }

  async #run(): Promise<void> {
    const { signal } = this.#stopping
    while (!signal.aborted) {
      await this.#once(this.#round++ % 3)
      await systemClock.sleep(PAUSE_MS, signal)
    }
  }

  async #once(kind: number): Promise<void> {
    if (kind === 0) return this.#ask('GET', '/v1/projects')
    if (kind === 1) return this.#ask('POST', '/v1/projects', { name: 'one' })
    return this.#ask('POST', '/jobs', { type: 'report', input: { title: 'one' } })
  }

  async #ask(method: string, path: string, body?: object): Promise<void> {
    try {
      const options = { method, token: this.#token, ...(body && { body }) }
      const { status, text } = await call(`${this.#url}${path}`, options)
      this.answered += 1
      if (status >= 300) return this.#refused(String(status))
      if (method === 'POST') this.acknowledged.push(`${path}/${(JSON.parse(text) as { id: string }).id}`)
    } catch (error) {
      this.#refused(error instanceof Error ? error.message : String(error))
    }
  }

  #refused(why: string): void {
    this.refusals.set(why, (this.refusals.get(why) ?? 0) + 1)
  }

  get failed(): number {
    return [...this.refusals.values()].reduce((sum, count) => sum + count, 0)
  }

  /** Reads everything that was acknowledged: what is not there is lost, and a job that does not end is unfinished. */
  async audit(): Promise<{ lost: number; unfinished: number }> {
    const deadlineMs = Date.now() + SETTLE_TIMEOUT_MS
    let lost = 0
    let waiting = this.acknowledged
    while (waiting.length > 0 && Date.now() < deadlineMs) {
      const later: string[] = []
      for (const path of waiting) {
        const { status, text } = await call(`${this.#url}${path}`, { token: this.#token })
        if (status === 404) lost += 1
        else if (status !== 200) later.push(path)
        else if (path.startsWith('/jobs/') && (JSON.parse(text) as { status: string }).status !== 'completed')
          later.push(path)
      }
      waiting = later
      if (waiting.length > 0) await systemClock.sleep(500)
    }
    return { lost, unfinished: waiting.length }
  }
}
