import { systemClock } from '../../../src/core/clock.ts'
import { call } from '../workload/http-call.ts'
import { type FaultProxy, type ProxyHooks, startFaultProxy, type Target } from './fault-proxy.ts'

const PROBE_EVERY_MS = 100
const PROBE_TIMEOUT_MS = 2_000
const POLL_EVERY_MS = 20

/** A simple load balancer: polls `/readyz`, distributes requests over the ready nodes, and never retries. */
export async function startBalancer(hooks: ProxyHooks = {}): Promise<Balancer> {
  let balancer: Balancer | undefined
  const proxy = await startFaultProxy({
    choose: () => balancer?.next(),
    onUnreachable: (target) => balancer?.markUnready(target),
    hooks,
  })
  balancer = new Balancer(proxy)
  return balancer
}

export class Balancer {
  readonly url: string
  readonly #proxy: FaultProxy
  readonly #targets: Target[] = []
  readonly #ready = new Set<string>()
  readonly #out = new Set<string>()
  readonly #closing = new AbortController()
  readonly #probes: Promise<void>[] = []
  #turn = 0

  constructor(proxy: FaultProxy) {
    this.url = proxy.url
    this.#proxy = proxy
  }

  add(target: Target): void {
    this.#targets.push(target)
    this.#probes.push(this.#probe(target))
  }

  next(): Target | undefined {
    const ready = this.#targets.filter(({ name }) => this.#ready.has(name) && !this.#out.has(name))
    this.#turn += 1
    return ready[this.#turn % ready.length]
  }

  /** Sends no request to this node until its next successful probe. */
  markUnready({ name }: Target): void {
    this.#ready.delete(name)
  }

  /** Sends no request to this node until the work is done, like an operator who removes the node by hand. */
  async without<T>({ name }: Target, work: () => Promise<T>): Promise<T> {
    this.#out.add(name)
    try {
      return await work()
    } finally {
      this.#out.delete(name)
    }
  }

  isReady(name: string): boolean {
    return this.#ready.has(name)
  }

  async untilReady(name: string, timeoutMs: number): Promise<void> {
    const deadlineMs = Date.now() + timeoutMs
    while (!this.isReady(name)) {
      if (Date.now() > deadlineMs) throw new Error(`${name} was not ready within ${timeoutMs} ms`)
      await systemClock.sleep(POLL_EVERY_MS, this.#closing.signal)
    }
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await Promise.all(this.#probes)
    await this.#proxy.close()
  }

  async #probe(target: Target): Promise<void> {
    const { signal } = this.#closing
    while (!signal.aborted) {
      const ready = await call(`${target.url}/readyz`, { timeoutMs: PROBE_TIMEOUT_MS }).then(
        ({ status }) => status === 200,
        () => false,
      )
      if (ready) this.#ready.add(target.name)
      else this.#ready.delete(target.name)
      await systemClock.sleep(PROBE_EVERY_MS, signal)
    }
  }
}
