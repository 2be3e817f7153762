import type { FastifyReply } from 'fastify'
import type { Clock } from '../../core/clock.ts'
import { UnavailableError } from '../../core/errors.ts'
import type { App } from '../app-instance.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** The replies of the requests that began in the same round; null once this one is answered. */
    cohort: Set<FastifyReply> | null
  }
}

export const HANDLER_DEADLINE = { rounds: 4, roundMs: 5_000 }

/**
 * Limits the time of every handler: after three to four rounds the client gets an error. One timer serves all requests; it
 * does not run while there are none. A timer and a signal for each request would add a tenth to the cost of a small
 * request.
 */
export function limitHandlers(app: App, { clock, deadline = HANDLER_DEADLINE }: HandlerLimit): void {
  const { rounds, roundMs } = deadline
  const cohorts: Set<FastifyReply>[] = [new Set()]
  const closing = new AbortController()
  let isWatching = false

  const watch = async () => {
    isWatching = true
    while (!closing.signal.aborted && cohorts.some(({ size }) => size > 0)) {
      await clock.sleep(roundMs, closing.signal)
      cohorts.push(new Set())
      for (const reply of cohorts.length > rounds ? (cohorts.shift() ?? []) : []) giveUp(reply)
    }
    isWatching = false
  }

  app.decorateRequest('cohort', null)
  // The time begins after the body has arrived. Until then the server's own timeouts apply.
  app.addHook('preValidation', (request, reply, done) => {
    if (!request.routeOptions.config.streams) {
      request.cohort = cohorts.at(-1) ?? null
      request.cohort?.add(reply)
      if (!isWatching) void watch()
    }
    done()
  })
  app.addHook('onSend', (request, reply, _payload, done) => {
    request.cohort?.delete(reply)
    request.cohort = null
    done()
  })
  app.addHook('onClose', async () => closing.abort())
}

interface HandlerLimit {
  clock: Clock
  deadline?: { rounds: number; roundMs: number }
}

function giveUp(reply: FastifyReply): void {
  if (!reply.sent) reply.send(new UnavailableError('The request took too long'))
}
