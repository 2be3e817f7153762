import { Readable } from 'node:stream'
import type { FastifyRequest, RequestPayload } from 'fastify'
import { ApiError, UnavailableError } from '../../core/errors.ts'
import type { App } from '../app-instance.ts'
import type { BodyBudget, BodyHold } from './body-budget.ts'
import { whenAnswered } from './request-end.ts'
import { SERVER_LIMITS } from './server-limits.ts'

declare module 'fastify' {
  interface FastifyRequest {
    bodyHold: BodyHold | null
  }
}

/** Their bodies are never read. */
const BODYLESS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'TRACE'])

/**
 * Reads a body only while the budget has room for it, otherwise 503. A declared length is reserved before the first byte;
 * chunks are counted as they arrive. To be added after the gate, which knows whether the caller is proven.
 */
export function boundBodies(app: App, { bodyBudget }: { bodyBudget: BodyBudget }): void {
  app.decorateRequest('bodyHold', null)
  app.addHook('preParsing', (request, _reply, payload, done) => {
    const { method, headers, raw } = request
    const isChunked = headers['transfer-encoding'] !== undefined
    const length = Number(headers['content-length'] ?? 0)
    if (BODYLESS.has(method) || (length === 0 && !isChunked)) return done(null, payload)
    // The client left while the gate was waiting. The parser would wait for ever for the rest of the body.
    if (raw.destroyed) return done(new ApiError('invalid_request', 'The connection was closed'))
    // The parser refuses a body that is too long before it reads it.
    if (length > (request.routeOptions.bodyLimit ?? SERVER_LIMITS.bodyLimit)) return done(null, payload)
    const hold = bodyBudget.hold(length, { isProven: isProven(request) })
    if (hold === null) return done(tooManyBytes())
    request.bodyHold = hold
    whenAnswered(request, () => hold.release())
    done(null, isChunked ? Readable.from(counted(payload, hold)) : payload)
  })
}

function isProven({ principal, callbackProof }: FastifyRequest): boolean {
  return principal !== null || callbackProof?.authentic === true
}

async function* counted(payload: RequestPayload, hold: BodyHold) {
  try {
    // The connection must survive a refusal, for the answer.
    for await (const chunk of (payload as Readable).iterator({ destroyOnReturn: false })) {
      if (!hold.grow(chunk.length)) throw tooManyBytes()
      yield chunk
    }
  } finally {
    payload.resume()
  }
}

function tooManyBytes(): UnavailableError {
  return new UnavailableError('Too many large requests are under way')
}
