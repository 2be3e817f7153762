import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import type { Envelope } from '../envelope.ts'
import type { Urgency } from './overload.ts'

declare module 'fastify' {
  interface FastifyRequest {
    wasShed: boolean
  }
}

export interface RefusalOptions {
  envelope: Envelope
  clock: Clock
  log: Log
  meter: Meter
}

const LOG_EVERY_MS = 10_000
/** Different values, so that clients that were refused at the same time do not retry at the same time. */
const RETRY_AFTER_SECONDS = ['1', '2', '3'] as const

/** Refuses a request because of overload. Requests that are refused are counted, but only one line in ten seconds is logged. */
export function createRefusal({ envelope, clock, log, meter }: RefusalOptions) {
  let refused = 0
  let loggedAtMs = Number.NEGATIVE_INFINITY
  return (request: FastifyRequest, reply: FastifyReply, urgency: Urgency): void => {
    refused += 1
    meter.count('requests_shed_total', { urgency })
    const nowMs = clock.now()
    if (nowMs - loggedAtMs >= LOG_EVERY_MS) {
      log.warn({ refused }, 'overload.shedding')
      loggedAtMs = nowMs
      refused = 0
    }
    request.wasShed = true
    request.hold?.endWork()
    const error = { code: 'service_unavailable', message: 'Too busy', requestId: request.id } as const
    const body = JSON.stringify(envelope.render(error))
    // Bypasses the framework: under several times the load that the service can handle, a refusal must be very cheap.
    reply
      .hijack()
      .raw.writeHead(503, [
        ...['x-request-id', request.id],
        ...['x-content-type-options', 'nosniff'],
        ...['content-type', 'application/json; charset=utf-8'],
        ...['content-length', String(Buffer.byteLength(body))],
        ...['retry-after', RETRY_AFTER_SECONDS[refused % RETRY_AFTER_SECONDS.length] ?? '1'],
      ])
    reply.raw.end(body)
  }
}
