import type { Json } from '../../../src/core/json.ts'
import type { Answer, Request, SimNode } from '../system/node.ts'
import type { Prng } from '../time/prng.ts'
import type { VirtualTime } from '../time/virtual-time.ts'

export interface ClientOptions {
  name: string
  token: string
  time: VirtualTime
  prng: Prng
  pickNode: () => SimNode
  note: (actor: string, what: string) => void
  onViolation: (invariant: string, what: string) => void
}

export interface Ask {
  method: Request['method']
  path: string
  body?: Json
  headers?: Record<string, string>
}

/** Somebody with a token, behind a load balancer: asks, and asks again where that is safe. */
export class Client {
  readonly name: string
  readonly #options: ClientOptions

  constructor(options: ClientOptions) {
    this.#options = options
    this.name = options.name
  }

  get headers(): Record<string, string> {
    return { host: 'api.sim', authorization: `Bearer ${this.#options.token}` }
  }

  /** Null when the connection broke: then nobody knows whether it was done. */
  async ask({ method, path, body, headers = {} }: Ask): Promise<Answer | null> {
    const { note, onViolation, pickNode } = this.#options
    const node = pickNode()
    const answer = await node.request({
      method,
      path,
      headers: { ...this.headers, ...headers, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    note(this.name, `${method} ${path} at ${node.name}: ${answer?.status ?? 'no answer'}`)
    if (answer && answer.status >= 500 && answer.status !== 503) {
      onViolation('answers', `${method} ${path} answered ${answer.status}: ${answer.body}`)
    }
    return answer
  }

  /** Until it is answered for good, or its patience ends. */
  async insist(ask: Ask, attempts = 12): Promise<Answer | null> {
    const { time, prng } = this.#options
    for (let attempt = 1; attempt <= attempts; attempt++) {
      const answer = await this.ask(ask)
      const isFinal = answer !== null && answer.status !== 503 && answer.status !== 429 && !isInFlight(answer)
      if (isFinal) return answer
      await time.sleep(prng.int(200, 2_000) * attempt)
    }
    return null
  }
}

function isInFlight(answer: Answer): boolean {
  return answer.status === 409 && answer.body.includes('still in flight')
}
