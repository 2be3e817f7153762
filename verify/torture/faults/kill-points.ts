import { isAccepted, type ObservedTraffic } from '../audit/observed-traffic.ts'
import type { ProxyHooks } from '../cluster/fault-proxy.ts'

/** The worst moments for a crash: something has happened outside, and the node has not stored it yet. */
export const KILL_POINTS = [
  'callback_answered',
  'callback_unanswered',
  'job_answered',
  'job_unanswered',
  'start_not_received',
  'start_received',
  'push_sent',
] as const
export type KillPoint = (typeof KILL_POINTS)[number]

const START = /^\/threads\/[^/]+\/runs$/
const SEND = /\/messages:send$/

/** Kills the first node that passes the armed point, before it can do anything else. */
export class KillPoints {
  readonly #kill: (node: string) => void
  readonly #observed: ObservedTraffic
  #armed: { point: KillPoint; killed: (node: string) => void } | null = null

  constructor(observed: ObservedTraffic, kill: (node: string) => void) {
    this.#observed = observed
    this.#kill = kill
  }

  /** Resolves with the name of the killed node. */
  arm(point: KillPoint): Promise<string> {
    return new Promise((resolve) => {
      this.#armed = { point, killed: resolve }
    })
  }

  /** False when it has killed a node already. */
  disarm(): boolean {
    const wasArmed = this.#armed !== null
    this.#armed = null
    return wasArmed
  }

  /** For the balancer, which sees the runtime's callbacks and the clients' jobs. */
  get atBalancer(): ProxyHooks {
    return {
      onResponse: (request, answer) => {
        const { method, path, node } = request
        if (method !== 'POST' || !isAccepted(answer)) return true
        if (path.startsWith('/webhooks/')) {
          this.#observed.acceptCallback(request)
          this.#killAt('callback_answered', node)
          return !this.#killAt('callback_unanswered', node)
        }
        if (path !== '/jobs') return true
        this.#killAt('job_answered', node)
        return !this.#killAt('job_unanswered', node)
      },
    }
  }

  /** For the calls of the runtime: the node dies before the runtime receives a start, or before the node receives the response. */
  get atRuntime(): ProxyHooks {
    return {
      onRequest: ({ method, path, node }) =>
        !(method === 'POST' && START.test(path) && this.#killAt('start_not_received', node)),
      onResponse: ({ method, path, node }, answer) =>
        !(method === 'POST' && START.test(path) && isAccepted(answer) && this.#killAt('start_received', node)),
    }
  }

  /** For the push provider: the node dies after sending a message and before marking it as sent. */
  get atPushProvider(): ProxyHooks {
    return {
      onResponse: (request, answer) => {
        if (!SEND.test(request.path) || !isAccepted(answer)) return true
        this.#observed.addPush(request)
        return !this.#killAt('push_sent', request.node)
      },
    }
  }

  #killAt(point: KillPoint, node: string): boolean {
    const armed = this.#armed
    if (armed?.point !== point) return false
    this.#armed = null
    this.#kill(node)
    armed.killed(node)
    return true
  }
}
