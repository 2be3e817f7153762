import type { FastifyReply } from 'fastify'
import type { Clock } from '../../core/clock.ts'
import { UnavailableError } from '../../core/errors.ts'

export const HANDLER_DEADLINE = { rounds: 4, roundMs: 5_000 }

/**
 * Limits the time of every handler: after three to four rounds the client gets an error. One timer serves all requests; it
 * does not run while there are none. A timer and a signal for each request would add a tenth to the cost of a small
 * request.
 */
export class HandlerDeadline {
  readonly #clock: Clock
  /** The requests that began in the same round, oldest first. */
  readonly #cohorts: Set<FastifyReply>[] = [new Set()]
  readonly #closing = new AbortController()
  #isWatching = false

  constructor({ clock }: { clock: Clock }) {
    this.#clock = clock
  }

  begin(reply: FastifyReply): void {
    this.#cohorts.at(-1)?.add(reply)
    if (!this.#isWatching) void this.#watch()
  }

  end(reply: FastifyReply): void {
    this.#cohorts.findLast((cohort) => cohort.delete(reply))
  }

  close(): void {
    this.#closing.abort()
  }

  async #watch(): Promise<void> {
    const { signal } = this.#closing
    this.#isWatching = true
    while (!signal.aborted && this.#cohorts.some(({ size }) => size > 0)) {
      await this.#clock.sleep(HANDLER_DEADLINE.roundMs, signal)
      this.#cohorts.push(new Set())
      const oldest = this.#cohorts.length > HANDLER_DEADLINE.rounds ? this.#cohorts.shift() : undefined
      for (const reply of oldest ?? []) giveUp(reply)
    }
    this.#isWatching = false
  }
}

function giveUp(reply: FastifyReply): void {
  if (!reply.sent) reply.send(new UnavailableError('The request took too long'))
}
