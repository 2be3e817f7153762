import type { FastifyReply, FastifyRequest } from 'fastify'
import { type TSchema, Type } from 'typebox'
import { principalId } from '../auth/principal.ts'
import { hasAnyScope, OPERATIONS_SCOPE } from '../auth/scopes.ts'
import type { App } from '../http/app-instance.ts'
import { bearer, callerOf, insufficientScope } from '../http/gate/access.ts'
import { writesDocuments } from '../http/schemas.ts'
import { answerHead, readCursor } from '../http/streams/open-streams.ts'
import type { Interest } from './event-feed.ts'
import { lastEventIdHeader, streamDescription, streamQuery, streamResponse } from './event-schema.ts'
import type { EventStreams } from './event-streams.ts'

const CURSOR = /^\d{1,15}$/

const TOO_MANY = 'Too many open streams'
export const streaming = {
  access: bearer(),
  streams: true,
  refusals: { rate_limit_exceeded: TOO_MANY, service_unavailable: TOO_MANY },
} as const

const getEvents = {
  operationId: 'streamEvents',
  tags: ['Realtime'],
  summary: 'Stream your events',
  description: streamDescription,
  querystring: Type.Object(
    {
      ...streamQuery,
      all: Type.Optional(
        Type.Boolean({ description: 'The events of every user; only with `read:operations` or `admin:*`.' }),
      ),
    },
    { additionalProperties: false },
  ),
  headers: lastEventIdHeader,
}

interface EventRoutesOptions {
  streams: EventStreams
  /** The events of all features, and an example of one. */
  events: { kinds: readonly TSchema[]; example: object }
}

export function eventRoutes(app: App, { streams, events }: EventRoutesOptions): void {
  const config = { ...streaming, refusals: { ...streaming.refusals, forbidden: 'Insufficient scope' } }
  const schema = { ...getEvents, response: streamResponse('StreamEvent', events.kinds, events.example) }
  // Nothing is serialized by the schema: it describes the events that the stream writes.
  const serializerCompiler = writesDocuments
  app.get('/v1/events', { config, schema, serializerCompiler }, async (request, reply) => {
    const { all, after } = request.query
    const caller = callerOf(request)
    if (all && !hasAnyScope(caller.scopes, [OPERATIONS_SCOPE])) throw insufficientScope([OPERATIONS_SCOPE])
    const interest = all ? 'all' : { subject: principalId(caller) }
    await openStream(streams, { request, reply, interest, after })
  })
}

/** Opens a stream for the caller, from the cursor of the request. */
export async function openStream(
  streams: EventStreams,
  stream: { request: FastifyRequest; reply: FastifyReply; interest: Interest; after: string | undefined },
): Promise<void> {
  const { request, reply, interest } = stream
  const seen = readCursor('Last-Event-ID', request.headers['last-event-id'], readSeq)
  const asked = readCursor('querystring/after', stream.after, readSeq)
  // No event has id 0. In `after` it asks for the oldest event. In `Last-Event-ID` it is the position of an empty log.
  const after = seen ?? (asked === 0 ? 'oldest' : asked)
  if (answerHead(request, reply)) return
  await streams.open(reply, { principal: callerOf(request), interest, after })
}

function readSeq(text: string): number | null {
  return CURSOR.test(text) ? Number(text) : null
}
