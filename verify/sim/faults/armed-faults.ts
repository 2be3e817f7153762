import type { FaultEffect, FaultPoint } from './plan.ts'

/** The faults armed in one process. Each triggers once, the next time the process passes its point. */
export class ArmedFaults {
  readonly #armed: { point: FaultPoint; effect: FaultEffect }[] = []
  readonly #onTriggered: (point: FaultPoint, effect: FaultEffect) => void

  constructor(onTriggered: (point: FaultPoint, effect: FaultEffect) => void) {
    this.#onTriggered = onTriggered
  }

  arm(point: FaultPoint, effect: FaultEffect): void {
    this.#armed.push({ point, effect })
  }

  trigger(point: FaultPoint): FaultEffect | undefined {
    if (this.#armed.length === 0) return undefined
    const index = this.#armed.findIndex((fault) => fault.point === point)
    if (index < 0) return undefined
    const [fault] = this.#armed.splice(index, 1)
    if (fault) this.#onTriggered(point, fault.effect)
    return fault?.effect
  }

  clear(): void {
    this.#armed.length = 0
  }
}
