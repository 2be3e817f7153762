import { isJsonObject, type Json } from '../../../src/core/json.ts'
import type { NodeRequest, NodeResponse, SimNode } from '../system/node.ts'
import type { Prng } from '../time/prng.ts'
import type { VirtualTime } from '../time/virtual-time.ts'

const MAX_ATTEMPTS = 12

export interface ClientOptions {
  name: string
  token: string
  time: VirtualTime
  prng: Prng
  pickNode: () => SimNode
  note: (actor: string, what: string) => void
  onViolation: (invariant: string, what: string) => void
}

export interface ClientRequest {
  method: NodeRequest['method']
  path: string
  /** A value, or the exact text of a JSON document. */
  body?: Json | { text: string }
  headers?: Record<string, string>
}

/** An API client with a token, behind a load balancer. It retries if that is safe. */
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

  /** Null when the connection broke: the request may or may not have had its effect. */
  async request({ method, path, body, headers = {} }: ClientRequest): Promise<NodeResponse | null> {
    const { note, onViolation, pickNode } = this.#options
    const node = pickNode()
    const answer = await node.request({
      method,
      path,
      headers: { ...this.headers, ...headers, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      ...(body === undefined ? {} : { body: textOf(body) }),
    })
    note(this.name, `${method} ${path} at ${node.name}: ${answer?.status ?? 'no answer'}`)
    if (answer && answer.status >= 500 && answer.status !== 503) {
      onViolation('answers', `${method} ${path} answered ${answer.status}: ${answer.body}`)
    }
    return answer
  }

  /** Retries until the response is final. Null: there was none. */
  async requestUntilAnswered(request: ClientRequest, onAttempt = () => {}): Promise<NodeResponse | null> {
    const { time, prng } = this.#options
    for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
      onAttempt()
      const answer = await this.request(request)
      const isFinal = answer !== null && answer.status !== 503 && answer.status !== 429 && !isInFlight(answer)
      if (isFinal) return answer
      await time.sleep(prng.int(200, 2_000) * attempt)
    }
    return null
  }
}

function textOf(body: Json | { text: string }): string {
  return isJsonObject(body) && typeof body.text === 'string' ? body.text : JSON.stringify(body)
}

function isInFlight(answer: NodeResponse): boolean {
  return answer.status === 409 && answer.body.includes('still in flight')
}
