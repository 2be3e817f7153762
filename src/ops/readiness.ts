import { SingleFlight } from '../core/async/single-flight.ts'
import type { Clock } from '../core/clock.ts'
import { ApiError } from '../core/errors.ts'
import type { App } from '../http/app-instance.ts'
import {
  DEPENDENCY_CHECKS,
  type DependencyCheck,
  type DependencyReport,
  type LiveDependencies,
} from './dependency-checks.ts'

/** `sinceMs`: when this process first saw that the dependency is not ok; null while it is. */
export type ReadinessCheck = DependencyReport & { sinceMs: number | null }

interface ReadinessReport {
  ready: boolean
  checks: Record<string, ReadinessCheck>
}

/** Callers share a report for this long, so that many probes do not load the dependencies. */
const SHARED_MS = 1_000

/** Decides whether load balancers should send traffic here: reports every dependency, and knows when the process drains. */
export class Readiness {
  readonly #live: LiveDependencies
  readonly #clock: Clock
  readonly #asking = new SingleFlight<'all', ReadinessReport>()
  #latest: { report: ReadinessReport; atMs: number } | null = null
  #drainingSinceMs: number | null = null

  constructor(live: LiveDependencies, clock: Clock) {
    this.#live = live
    this.#clock = clock
  }

  get draining(): boolean {
    return this.#drainingSinceMs !== null
  }

  startDraining(): void {
    this.#drainingSinceMs ??= this.#clock.calendar()
  }

  /** At most a second old; a drain shows at once. */
  async report(): Promise<ReadinessReport> {
    const report = this.draining ? null : await this.#shared()
    if (report !== null && !this.draining) return report
    const process = { state: 'down', detail: 'shutting down', sinceMs: this.#drainingSinceMs } as const
    return { ready: false, checks: { process } }
  }

  async #shared(): Promise<ReadinessReport> {
    const latest = this.#latest
    if (latest !== null && this.#clock.now() - latest.atMs < SHARED_MS) return latest.report
    return this.#asking.run('all', () => this.#ask())
  }

  async #ask(): Promise<ReadinessReport> {
    const attempts = DEPENDENCY_CHECKS.map(async (check) => [check.name, await this.#attempt(check)] as const)
    const found = await Promise.all(attempts)
    const earlier = this.#latest?.report.checks ?? {}
    const nowMs = this.#clock.calendar()
    const checks = Object.fromEntries(
      found.map(([name, report]) => {
        const sinceMs = report.state === 'ok' ? null : (earlier[name]?.sinceMs ?? nowMs)
        return [name, { ...report, sinceMs }]
      }),
    )
    const report = { ready: Object.values(checks).every(({ state }) => state !== 'down'), checks }
    this.#latest = { report, atMs: this.#clock.now() }
    return report
  }

  async #attempt(check: DependencyCheck): Promise<DependencyReport> {
    try {
      return await check.report(this.#live)
    } catch (error) {
      // The report is public. Only an ApiError has a message that was written for clients.
      return { state: 'down', detail: error instanceof ApiError ? error.message : null }
    }
  }
}

/** Answers of a draining process close their connections, so that clients connect to another node. */
export function closeWhileDraining(app: App, { readiness }: { readiness: Readiness }): void {
  app.addHook('onSend', (_request, reply, _payload, done) => {
    // Set when the answer is sent, so that a request that arrived before the drain also closes its connection.
    if (readiness.draining) reply.header('connection', 'close')
    done()
  })
}
