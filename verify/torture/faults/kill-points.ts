import { isAccepted, type Records } from '../audit/observed-traffic.ts'
import type { Watch } from '../cluster/fault-proxy.ts'

/** The moments at which dying is worst: something has happened out there, and the node has not written it down. */
export const MARKS = [
  'callback_answered',
  'callback_unanswered',
  'job_answered',
  'job_unanswered',
  'start_unheard',
  'start_heard',
  'push_sent',
] as const
export type Mark = (typeof MARKS)[number]

const START = /^\/threads\/[^/]+\/runs$/
const SEND = /\/messages:send$/

/** Lies in wait for a moment to pass by and kills the node it passes, before anything else can happen to it. */
export class Marks {
  readonly #kill: (node: string) => void
  readonly #records: Records
  #armed: { mark: Mark; struck: (node: string) => void } | null = null

  constructor(records: Records, kill: (node: string) => void) {
    this.#records = records
    this.#kill = kill
  }

  /** Resolves with the name of the node it killed. */
  arm(mark: Mark): Promise<string> {
    return new Promise((resolve) => {
      this.#armed = { mark, struck: resolve }
    })
  }

  /** False when it has struck already. */
  disarm(): boolean {
    const wasArmed = this.#armed !== null
    this.#armed = null
    return wasArmed
  }

  /** For the balancer: the runtime's callbacks and the clients' jobs. */
  get atTheFront(): Watch {
    return {
      answering: (passing, answer) => {
        const { method, path, node } = passing
        if (method !== 'POST' || !isAccepted(answer)) return true
        if (path.startsWith('/webhooks/')) {
          this.#records.acceptCallback(passing)
          this.#strike('callback_answered', node)
          return !this.#strike('callback_unanswered', node)
        }
        if (path !== '/jobs') return true
        this.#strike('job_answered', node)
        return !this.#strike('job_unanswered', node)
      },
    }
  }

  /** For what a node asks of the runtime: it dies before the runtime hears of a start, or before it hears the answer. */
  get atTheRuntime(): Watch {
    return {
      arriving: ({ method, path, node }) =>
        !(method === 'POST' && START.test(path) && this.#strike('start_unheard', node)),
      answering: ({ method, path, node }, answer) =>
        !(method === 'POST' && START.test(path) && isAccepted(answer) && this.#strike('start_heard', node)),
    }
  }

  /** For what a node sends to the push provider: it dies between sending and marking. */
  get atTheProvider(): Watch {
    return {
      answering: (passing, answer) => {
        if (!SEND.test(passing.path) || !isAccepted(answer)) return true
        this.#records.addPush(passing)
        return !this.#strike('push_sent', passing.node)
      },
    }
  }

  #strike(mark: Mark, node: string): boolean {
    const armed = this.#armed
    if (armed?.mark !== mark) return false
    this.#armed = null
    this.#kill(node)
    armed.struck(node)
    return true
  }
}
