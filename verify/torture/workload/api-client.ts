import { systemClock } from '../../../src/core/clock.ts'
import type { Prng } from '../../sim/time/prng.ts'
import { type Call, call } from './http-call.ts'

const GIVE_UP_MS = 180_000
const PAUSE_MS = { min: 50, max: 300 }

export interface Insisted<Body> {
  status: number
  body: Body
}

/**
 * A client as one should be: whatever may mend itself (no connection, no whole answer, 5xx, 429, its own key still in
 * flight) it asks again, with the same key. Everything else it takes as an answer.
 */
export class ApiClient {
  readonly url: string
  readonly retries: Record<string, number> = {}
  readonly #random: Prng

  constructor(url: string, random: Prng) {
    this.url = url
    this.#random = random
  }

  async insist<Body>(path: string, options: Call & { key?: string }): Promise<Insisted<Body>> {
    const { key, ...rest } = options
    const request = key === undefined ? rest : { ...rest, headers: { ...rest.headers, 'idempotency-key': key } }
    const deadlineMs = Date.now() + GIVE_UP_MS
    for (;;) {
      const answer = await call(`${this.url}${path}`, request).catch(() => null)
      const reason = answer === null ? 'network' : worthAnotherTry(answer.status, { keyed: key !== undefined })
      if (answer !== null && reason === null) {
        return { status: answer.status, body: JSON.parse(answer.text || 'null') as Body }
      }
      this.retries[reason ?? 'network'] = (this.retries[reason ?? 'network'] ?? 0) + 1
      if (Date.now() > deadlineMs) throw new Error(`${rest.method ?? 'GET'} ${path} never came through: ${reason}`)
      await systemClock.sleep(this.#random.int(PAUSE_MS.min, PAUSE_MS.max))
    }
  }
}

function worthAnotherTry(status: number, { keyed }: { keyed: boolean }): string | null {
  if (status >= 500 || status === 429) return String(status)
  return keyed && status === 409 ? 'in flight' : null
}
