import type { Effect, Point } from './plan.ts'

/** The faults that lie in wait inside one process; each strikes once, the next time its point is passed. */
export class ArmedFaults {
  readonly #armed: { point: Point; effect: Effect }[] = []
  readonly #onStrike: (point: Point, effect: Effect) => void

  constructor(onStrike: (point: Point, effect: Effect) => void) {
    this.#onStrike = onStrike
  }

  arm(point: Point, effect: Effect): void {
    this.#armed.push({ point, effect })
  }

  strike(point: Point): Effect | undefined {
    if (this.#armed.length === 0) return undefined
    const index = this.#armed.findIndex((fault) => fault.point === point)
    if (index < 0) return undefined
    const [fault] = this.#armed.splice(index, 1)
    if (fault) this.#onStrike(point, fault.effect)
    return fault?.effect
  }

  clear(): void {
    this.#armed.length = 0
  }
}
