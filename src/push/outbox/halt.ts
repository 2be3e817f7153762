import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'

/** While nothing can be delivered at all, one attempt now and then finds out when that is mended. */
const PAUSE_MS = 30_000

/** What shows that it is mended, the weakest first: an access token, any answer about a message, a message taken. */
const PROOFS = ['access_token', 'answer', 'sent'] as const
export type Proof = (typeof PROOFS)[number]

/** Whether anything can be delivered, and if not, why; it says so until there is proof of the contrary. */
export class Halt {
  readonly #clock: Clock
  readonly #log: Log
  #current: { reason: string; proof: Proof } | null = null
  #untilMs = 0

  constructor({ clock, log }: { clock: Clock; log: Log }) {
    this.#clock = clock
    this.#log = log
  }

  get reason(): string | null {
    return this.#current?.reason ?? null
  }

  /** When the next attempt may be made. */
  get untilMs(): number {
    return this.#untilMs
  }

  /** Whether getting an access token is all that is missed. */
  get wantsAccessToken(): boolean {
    return this.#current?.proof === 'access_token'
  }

  begin(reason: string, proof: Proof): void {
    if (this.#current === null) this.#log.error({ reason }, 'outbox.halted')
    const wanted = PROOFS.indexOf(proof) > this.#rank() ? proof : (this.#current?.proof ?? proof)
    this.#current = { reason, proof: wanted }
    this.prolong()
  }

  /** An attempt that got no answer has found nothing out. */
  prolong(): void {
    if (this.#current !== null) this.#untilMs = this.#clock.now() + PAUSE_MS
  }

  /** True when that has ended it. */
  endBy(proof: Proof): boolean {
    if (this.#current === null || PROOFS.indexOf(proof) < this.#rank()) return false
    this.#log.info({}, 'outbox.resumed')
    this.#current = null
    this.#untilMs = 0
    return true
  }

  #rank(): number {
    return this.#current === null ? -1 : PROOFS.indexOf(this.#current.proof)
  }
}
