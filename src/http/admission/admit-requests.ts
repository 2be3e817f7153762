import { Readable } from 'node:stream'
import type { FastifyContextConfig, FastifyRequest } from 'fastify'
import { principalId } from '../../auth/principal.ts'
import { ApiError, UnavailableError } from '../../core/errors.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import { addressKey } from '../../limits/client-address.ts'
import type { App } from '../app-instance.ts'
import {
  type Admission,
  connectionClosed,
  type EXPECTED_BYTES,
  Hold,
  type RequestTraits,
  SMALL_ANSWER,
} from './admission.ts'
import type { ByteOwner, ExceededBound } from './byte-budget.ts'
import { countBody, SMALL_BODY } from './counted-body.ts'
import { HandlerDeadline } from './handler-deadline.ts'
import { awaitLateBody } from './late-body.ts'
import type { Urgency } from './overload.ts'
import { createRefusal, type RefusalOptions } from './refusal.ts'
import { StalledReaders } from './stalled-readers.ts'

type ExpectedSize = keyof typeof EXPECTED_BYTES

declare module 'fastify' {
  interface FastifyContextConfig {
    /** When the route is refused during overload. Absent: like any other request. */
    underOverload?: 'last' | 'never'
    /** Its handler may wait for the agent runtime, so it must not count as waiting for the database. */
    awaitsRuntime?: true
    /** Its answer may be large: a principal gets only a few of them at a time, and the next requests wait. */
    largeAnswer?: ExpectedSize | ((query: Readonly<Record<string, unknown>>) => ExpectedSize)
  }
  interface FastifyRequest {
    /** Null for a stream: streams have limits of their own. */
    hold: Hold | null
  }
}

interface AdmissionOptions extends RefusalOptions {
  admission: Admission
}

/**
 * Refuses requests during overload before they cost anything: no credential is read, no limit is charged, no line is
 * logged. Answers 429 if the principal has too many requests in progress, and 503 if there is no room for the body. Limits
 * the time of handlers, and what answers hold until their connections have taken them. Call it before all other hooks are
 * added.
 */
export function admitRequests(app: App, options: AdmissionOptions): void {
  const { admission, clock, meter } = options
  const refuse = createRefusal(options)
  const deadline = new HandlerDeadline({ clock })
  const readers = new StalledReaders({ clock })
  app.decorateRequest('hold', null)
  app.decorateRequest('wasShed', false)

  app.addHook('onRequest', (request, reply, done) => {
    // Read once: Fastify builds this object again on each access.
    const { config } = request.routeOptions
    const traits = traitsOf(config, request)
    if (traits.urgency !== null && !admission.overload.admits(traits.urgency)) {
      return refuse(request, reply, traits.urgency)
    }
    if (!config.streams) {
      const hold = new Hold(admission, traits)
      request.hold = hold
      reply.raw.once('close', () => hold.take())
    }
    done()
  })
  // After the gate, which knows the caller, and before the body is read.
  app.addHook('preParsing', (request, _reply, payload, done) => {
    const { method, headers, principal, hold } = request
    if (hold === null) return done(null, payload)
    if (principal !== null && !hold.enterCaller(principalId(principal))) {
      meter.count('requests_bounded_total', { bound: 'principal' })
      return done(new ApiError('rate_limit_exceeded', 'Too many requests', { headers: { 'retry-after': '1' } }))
    }
    const isChunked = headers['transfer-encoding'] !== undefined
    const length = Number(headers['content-length'] ?? 0)
    if (BODYLESS.has(method) || (length === 0 && !isChunked)) return done(null, payload)
    // The parser would wait for ever for the rest of the body.
    if (request.raw.destroyed) return done(connectionClosed())
    // A body that is too long takes no room: the parser refuses it before it reads it.
    if (length > request.routeOptions.bodyLimit) return done(null, payload)
    const owner = ownerOf(request)
    const refusal = (bound: ExceededBound) => tooMuch(meter, bound, 'Too many large requests are in progress')
    // A body that does not fit now is refused before its first byte. Later, the client might not read the answer. The small
    // body of a principal always fits: otherwise a few principals with large bodies would stop the changes of all others.
    const isSmall = principal !== null && !isChunked && length <= SMALL_BODY
    const bound = isSmall ? null : admission.bodies.boundFor(length, owner)
    if (bound !== null) return done(refusal(bound))
    done(null, countBody(payload, { hold, owner, length: isChunked ? null : length, refusal }))
  })
  // The request counts as in flight only after its body has arrived: a client that sends slowly costs nothing and must not
  // block other requests. Until then the server's own timeouts apply.
  app.addHook('preValidation', (request, reply, done) => {
    const { hold } = request
    if (hold === null) return done()
    deadline.begin(reply)
    hold.awaitRoom((hasRoom) => {
      if (!hasRoom) return done(connectionClosed())
      if (hold.enter()) return done()
      deadline.end(reply)
      refuse(request, reply, hold.urgency)
    })
  })
  app.addHook('onSend', (request, reply, payload, done) => {
    deadline.end(reply)
    const bytes = request.method === 'HEAD' ? 0 : bytesOf(payload)
    const bound = request.hold?.answer(bytes, bytes === 0 ? null : ownerOf(request)) ?? null
    if (bound !== null) {
      if (payload instanceof Readable) payload.destroy()
      return done(tooMuch(meter, bound, 'Too many answers wait to be read'))
    }
    if (bytes === 'streamed' || bytes > SMALL_ANSWER) readers.watch(reply.raw)
    const arrival = awaitLateBody(request.raw, { willClose: !reply.raw.shouldKeepAlive, clock })
    if (arrival === null) done(null, payload)
    else void arrival.then(() => done(null, payload))
  })
  app.addHook('onClose', async () => {
    deadline.close()
    readers.close()
  })
}

/** Methods whose bodies are never read. */
const BODYLESS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'TRACE'])

function traitsOf(config: FastifyContextConfig, { method, query }: FastifyRequest): RequestTraits {
  const kind = method === 'GET' || method === 'HEAD' ? 'read' : 'change'
  const { largeAnswer } = config
  const expects = typeof largeAnswer === 'function' ? largeAnswer(query as Record<string, unknown>) : largeAnswer
  return { kind, urgency: urgencyOf(config, kind), expects }
}

function urgencyOf(
  { underOverload, awaitsRuntime }: FastifyContextConfig,
  kind: RequestTraits['kind'],
): Urgency | null {
  if (underOverload === 'never') return null
  if (underOverload === 'last') return 'callback'
  if (awaitsRuntime) return 'runtime'
  return kind === 'read' ? 'ordinary' : 'change'
}

function ownerOf({ principal, callbackProof, ip }: FastifyRequest): ByteOwner {
  if (principal !== null) return { kind: 'principal', id: principalId(principal) }
  return callbackProof?.authentic === true ? null : { kind: 'unproven', id: addressKey(ip) }
}

/** A buffer is a static file, of which all answers share one copy. */
function bytesOf(payload: unknown): number | 'streamed' {
  if (payload instanceof Readable) return 'streamed'
  // A character takes three bytes at most.
  if (typeof payload !== 'string' || payload.length * 3 <= SMALL_ANSWER) return 0
  return Buffer.byteLength(payload)
}

function tooMuch(meter: Meter, bound: ExceededBound, message: string): UnavailableError {
  meter.count('requests_bounded_total', { bound })
  return new UnavailableError(message)
}
