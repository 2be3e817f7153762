import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import type { App } from '../app-instance.ts'
import type { Envelope } from '../envelope.ts'
import type { Overload, Urgency } from './overload.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Absent: like any other request. Callbacks are refused last, probes never. */
    underOverload?: 'last' | 'never'
  }
  interface FastifyRequest {
    /** Where it counts as in flight, and its ticket there. */
    inFlightAs: Urgency | null
    inFlightTicket: number
    wasShed: boolean
  }
}

export interface SheddingOptions {
  overload: Overload
  envelope: Envelope
  clock: Clock
  log: Log
  meter: Meter
}

const SAY_AGAIN_AFTER_MS = 10_000
/** Those who are sent away together need not come back together. */
const RETRY_AFTER_SECONDS = ['1', '2', '3'] as const

/**
 * Refuses what there is no room for, before anything is spent on it: no credential is read, no limit charged, no line
 * logged. To be added before all other hooks.
 */
export function shedLoad(app: App, options: SheddingOptions): void {
  const { overload } = options
  const refuse = createRefusal(options)
  app.decorateRequest('inFlightAs', null)
  app.decorateRequest('inFlightTicket', 0)
  app.decorateRequest('wasShed', false)

  app.addHook('onRequest', (request, reply, done) => {
    const urgency = urgencyOf(request)
    if (urgency === null || overload.admits(urgency)) done()
    else refuse(request, reply, urgency)
  })
  // Only once the body is there: whoever sends it slowly costs nothing meanwhile, and must take nobody's place.
  app.addHook('preValidation', (request, reply, done) => {
    const urgency = urgencyOf(request)
    if (urgency !== null && !request.routeOptions.config.streams) {
      const ticket = overload.enter(urgency)
      if (ticket === null) return refuse(request, reply, urgency)
      request.inFlightAs = urgency
      request.inFlightTicket = ticket
    }
    done()
  })
  // When its answer is ready, rather than when it has left: a client that went away does not end our work.
  app.addHook('onSend', (request, _reply, _payload, done) => {
    if (request.inFlightAs !== null) overload.leave(request.inFlightAs, request.inFlightTicket)
    request.inFlightAs = null
    done()
  })
}

function urgencyOf(request: FastifyRequest): Urgency | null {
  const { underOverload } = request.routeOptions.config
  if (underOverload === 'never') return null
  if (underOverload === 'last') return 'callback'
  return request.method === 'GET' || request.method === 'HEAD' ? 'ordinary' : 'change'
}

function createRefusal({ envelope, clock, log, meter }: SheddingOptions) {
  let refused = 0
  let saidAtMs = Number.NEGATIVE_INFINITY
  return (request: FastifyRequest, reply: FastifyReply, urgency: Urgency): void => {
    refused += 1
    meter.count('requests_shed_total', { urgency })
    const nowMs = clock.now()
    if (nowMs - saidAtMs >= SAY_AGAIN_AFTER_MS) {
      log.warn({ refused }, 'overload.shedding')
      saidAtMs = nowMs
      refused = 0
    }
    request.wasShed = true
    const error = { code: 'service_unavailable', message: 'Too busy', requestId: request.id } as const
    const body = JSON.stringify(envelope.render(error))
    // Past the framework: at several times the load the service can bear, refusing must cost next to nothing.
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
