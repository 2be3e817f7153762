import { systemClock } from '../../../src/core/clock.ts'
import type { Prng } from '../../sim/time/prng.ts'
import { type Call, call } from './http-call.ts'

const GIVE_UP_MS = 180_000
const PAUSE_MS = { min: 50, max: 300 }

export interface FinalResponse<Body> {
  status: number
  body: Body
}

/**
 * A well-behaved client: it retries with the same key after a broken connection, 5xx, 429, and while its key is in flight.
 * Any other response is final.
 */
export class ApiClient {
  readonly url: string
  readonly retries: Record<string, number> = {}
  readonly #random: Prng

  constructor(url: string, random: Prng) {
    this.url = url
    this.#random = random
  }

  async requestUntilAnswered<Body>(path: string, options: Call & { key?: string }): Promise<FinalResponse<Body>> {
    const { key, ...rest } = options
    const request = key === undefined ? rest : { ...rest, headers: { ...rest.headers, 'idempotency-key': key } }
    const deadlineMs = Date.now() + GIVE_UP_MS
    for (;;) {
      const answer = await call(`${this.url}${path}`, request).catch(() => null)
      const reason = answer === null ? 'network' : retryReason(answer.status, { keyed: key !== undefined })
      if (answer !== null && reason === null) {
        return { status: answer.status, body: JSON.parse(answer.text || 'null') as Body }
      }
      this.retries[reason ?? 'network'] = (this.retries[reason ?? 'network'] ?? 0) + 1
      if (Date.now() > deadlineMs)
        throw new Error(`${rest.method ?? 'GET'} ${path} never got a final response: ${reason}`)
      await systemClock.sleep(this.#random.int(PAUSE_MS.min, PAUSE_MS.max))
    }
  }
}

function retryReason(status: number, { keyed }: { keyed: boolean }): string | null {
  if (status >= 500 || status === 429) return String(status)
  return keyed && status === 409 ? 'in flight' : null
}
