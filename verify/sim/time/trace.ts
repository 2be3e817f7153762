import { hash } from 'node:crypto'

/** The log of a simulation in virtual time. Two runs of one seed give exactly the same lines. */
export class Trace {
  readonly lines: string[] = []
  readonly counts = new Map<string, number>()
  readonly #now: () => number
  readonly #startMs: number

  constructor(now: () => number) {
    this.#now = now
    this.#startMs = now()
  }

  note(actor: string, what: string): void {
    this.lines.push(`${((this.#now() - this.#startMs) / 1000).toFixed(3)} ${actor}: ${what}`)
  }

  /** Records a fault that was injected. */
  fault(kind: string, what = ''): void {
    this.counts.set(kind, (this.counts.get(kind) ?? 0) + 1)
    this.note('fault', what === '' ? kind : `${kind} ${what}`)
  }

  digest(): string {
    return hash('sha256', this.lines.join('\n')).slice(0, 16)
  }
}
