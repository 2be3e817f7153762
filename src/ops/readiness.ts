import { ApiError } from '../core/errors.ts'
import {
  DEPENDENCY_CHECKS,
  type DependencyCheck,
  type DependencyReport,
  type LiveDependencies,
} from './dependency-checks.ts'

/** Decides whether load balancers should send traffic here: reports every dependency, and knows when the process drains. */
export class Readiness {
  readonly #live: LiveDependencies
  #draining = false

  constructor(live: LiveDependencies) {
    this.#live = live
  }

  get draining(): boolean {
    return this.#draining
  }

  startDraining(): void {
    this.#draining = true
  }

  async report(): Promise<Record<string, DependencyReport>> {
    const reports = DEPENDENCY_CHECKS.map(async (check) => [check.name, await this.#attempt(check)] as const)
    return Object.fromEntries(await Promise.all(reports))
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
