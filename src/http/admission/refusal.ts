import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Clock } from '../../core/clock.ts'
import { UnavailableError } from '../../core/errors.ts'
import type { Log } from '../../core/log.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import type { App } from '../app-instance.ts'
import type { Envelope } from '../envelope.ts'
import type { Overload, Urgency } from './overload.ts'
import { releaseNow } from './request-end.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** When the route is refused during overload. Absent: like any other request. */
    underOverload?: 'last' | 'never'
    /** Its handler may wait for the agent runtime, so it must not count as waiting for the database. */
    awaitsRuntime?: true
  }
  interface FastifyRequest {
    /** How the request counts as in flight; null when it does not. */
    inFlightAs: Urgency | null
    inFlightTicket: number
    wasShed: boolean
    /** For a handler that rarely waits for the runtime: from now on the request counts as waiting for the runtime. */
    awaitRuntime(): void
  }
}

interface SheddingOptions {
  overload: Overload
  envelope: Envelope
  clock: Clock
  log: Log
  meter: Meter
}

const LOG_EVERY_MS = 10_000
/** Different values, so that clients that were refused at the same time do not retry at the same time. */
const RETRY_AFTER_SECONDS = ['1', '2', '3'] as const

/**
 * Refuses requests during overload before they cost anything: no credential is read, no limit is charged, no line is
 * logged. Call it before all other hooks are added.
 */
export function shedLoad(app: App, options: SheddingOptions): void {
  const { overload } = options
  const refuse = createRefusal(options)
  app.decorateRequest('inFlightAs', null)
  app.decorateRequest('inFlightTicket', 0)
  app.decorateRequest('wasShed', false)
  app.decorateRequest('awaitRuntime', function (this: FastifyRequest) {
    if (this.inFlightAs === null) return
    overload.leave(this.inFlightAs, this.inFlightTicket)
    this.inFlightAs = null
    const ticket = overload.enter('runtime')
    if (ticket === null) throw new UnavailableError('Too busy')
    this.inFlightAs = 'runtime'
    this.inFlightTicket = ticket
  })

  app.addHook('onRequest', (request, reply, done) => {
    const urgency = urgencyOf(request)
    if (urgency === null || overload.admits(urgency)) done()
    else refuse(request, reply, urgency)
  })
  // The request counts as in flight only after its body has arrived: a client that sends slowly costs nothing and must not
  // block other requests.
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
  // The request ends when its answer is ready, not when it is sent: a disconnect of the client does not end the work.
  app.addHook('onSend', (request, _reply, _payload, done) => {
    if (request.inFlightAs !== null) overload.leave(request.inFlightAs, request.inFlightTicket)
    request.inFlightAs = null
    done()
  })
}

function urgencyOf(request: FastifyRequest): Urgency | null {
  const { underOverload, awaitsRuntime } = request.routeOptions.config
  if (underOverload === 'never') return null
  if (underOverload === 'last') return 'callback'
  if (awaitsRuntime) return 'runtime'
  return request.method === 'GET' || request.method === 'HEAD' ? 'ordinary' : 'change'
}

function createRefusal({ envelope, clock, log, meter }: SheddingOptions) {
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
    releaseNow(request)
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
