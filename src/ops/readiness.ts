import { ApiError } from '../core/errors.ts'

/** One dependency as `/readyz` and `doctor` name it. A degraded one still serves. */
export type DependencyState = 'ok' | 'degraded' | 'down'

export interface DependencyReport {
  state: DependencyState
  detail: string | null
}

export type DependencyCheck = () => Promise<DependencyReport> | DependencyReport

/** Whether to send traffic here: every dependency by name, and not while the process is on its way out. */
export class Readiness {
  readonly #checks: ReadonlyMap<string, DependencyCheck>
  #draining = false

  constructor(checks: Record<string, DependencyCheck>) {
    this.#checks = new Map(Object.entries(checks))
  }

  get draining(): boolean {
    return this.#draining
  }

  startDraining(): void {
    this.#draining = true
  }

  async report(): Promise<Record<string, DependencyReport>> {
    const reports = [...this.#checks].map(async ([name, check]) => [name, await attempt(check)] as const)
    return Object.fromEntries(await Promise.all(reports))
  }
}

async function attempt(check: DependencyCheck): Promise<DependencyReport> {
  try {
    return await check()
  } catch (error) {
    // Public like every answer: only what was written for clients is shown.
    return { state: 'down', detail: error instanceof ApiError ? error.message : null }
  }
}
