import { Readable } from 'node:stream'
import type { FastifyRequest, RequestPayload } from 'fastify'
import { ApiError, UnavailableError } from '../../core/errors.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import { addressKey } from '../../limits/client-address.ts'
import type { App } from '../app-instance.ts'
import type { BodyBudget, BodyHold, SpentBodyBound } from './body-budget.ts'
import { whenAnswered } from './request-end.ts'
import { SERVER_LIMITS } from './server-limits.ts'

declare module 'fastify' {
  interface FastifyRequest {
    bodyHold: BodyHold | null
  }
}

/** Methods whose bodies are never read. */
const BODYLESS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'TRACE'])

/**
 * Reads a body only while the budget has room for it; otherwise the answer is 503. A declared length is reserved before the
 * first byte; chunks are counted as they arrive. Add this hook after the gate, which knows whether the caller is
 * authenticated.
 */
export function boundBodies(app: App, { bodyBudget, meter }: { bodyBudget: BodyBudget; meter: Meter }): void {
  const refuse = (bound: SpentBodyBound): UnavailableError => {
    meter.count('requests_bounded_total', { bound })
    return new UnavailableError('Too many large requests are in progress')
  }
  app.decorateRequest('bodyHold', null)
  app.addHook('preParsing', (request, _reply, payload, done) => {
    const { method, headers, raw } = request
    const isChunked = headers['transfer-encoding'] !== undefined
    const length = Number(headers['content-length'] ?? 0)
    if (BODYLESS.has(method) || (length === 0 && !isChunked)) return done(null, payload)
    // The client disconnected during the gate's check. The parser would wait for ever for the rest of the body.
    if (raw.destroyed) return done(new ApiError('invalid_request', 'The connection was closed'))
    // No reservation for a body that is too long: the parser refuses it before it reads it.
    if (length > (request.routeOptions.bodyLimit ?? SERVER_LIMITS.bodyLimit)) return done(null, payload)
    const hold = bodyBudget.hold(length, { unprovenFrom: isProven(request) ? null : addressKey(request.ip) })
    if (typeof hold === 'string') return done(refuse(hold))
    request.bodyHold = hold
    whenAnswered(request, () => hold.release())
    done(null, isChunked ? Readable.from(counted(payload, { hold, refuse })) : payload)
  })
}

function isProven({ principal, callbackProof }: FastifyRequest): boolean {
  return principal !== null || callbackProof?.authentic === true
}

async function* counted(
  payload: RequestPayload,
  { hold, refuse }: { hold: BodyHold; refuse: (bound: SpentBodyBound) => Error },
) {
  try {
    // After a refusal the connection stays open, so that the answer can be sent.
    for await (const chunk of (payload as Readable).iterator({ destroyOnReturn: false })) {
      const spent = hold.grow(chunk.length)
      if (spent !== null) throw refuse(spent)
      yield chunk
    }
  } finally {
    payload.resume()
  }
}
