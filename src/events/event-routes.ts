import type { FastifyReply, FastifyRequest } from 'fastify'
import { principalId } from '../auth/principal.ts'
import { ADMIN_SCOPE } from '../auth/scopes.ts'
import { ApiError } from '../core/errors.ts'
import { Type } from '../core/schema.ts'
import { bearer, callerOf, insufficientScope } from '../http/access.ts'
import type { App } from '../http/app-instance.ts'
import type { Interest } from './event-feed.ts'
import type { EventStreams } from './event-streams.ts'

const CURSOR = /^\d{1,15}$/

export const streamQuery = {
  after: Type.Optional(
    Type.String({ description: 'Go on after this event, like the header `Last-Event-ID`, which comes first.' }),
  ),
}

export const streamDescription =
  'Server-sent events: `id` is a durable cursor, `event` the type, `data` holds `{id, type, created_at, data}`. ' +
  'Reconnecting with `Last-Event-ID` misses nothing and repeats nothing, across restarts and nodes; where the history ' +
  'was trimmed, a `reset` event says so. A comment comes every 15 s; the stream ends when the token expires.'

export const streamResponse = {
  200: {
    description: 'The stream.',
    content: {
      'text/event-stream': { schema: Type.String({ examples: ['id: 7\nevent: job.completed\ndata: {…}\n\n'] }) },
    },
  },
}

const getEvents = {
  tags: ['Realtime'],
  summary: 'Stream your events',
  description: streamDescription,
  querystring: Type.Object(
    { ...streamQuery, all: Type.Optional(Type.Boolean({ description: 'Everybody’s; only with `admin:*`.' })) },
    { additionalProperties: false },
  ),
  response: streamResponse,
}

export function eventRoutes(app: App, { streams }: { streams: EventStreams }): void {
  const config = { access: bearer(), streams: true as const, refusals: ['forbidden'] as const }
  app.get('/v1/events', { config, schema: getEvents }, async (request, reply) => {
    const { all, after } = request.query
    const caller = callerOf(request)
    if (all && !caller.scopes.includes(ADMIN_SCOPE)) throw insufficientScope([ADMIN_SCOPE])
    const interest = all ? 'all' : { subject: principalId(caller) }
    await openStream(streams, { request, reply, interest, after })
  })
}

/** Opens a stream for whoever is calling, from the cursor the request carries. */
export async function openStream(
  streams: EventStreams,
  stream: { request: FastifyRequest; reply: FastifyReply; interest: Interest; after: string | undefined },
): Promise<void> {
  const { request, reply, interest } = stream
  const principal = callerOf(request)
  const after = readCursor(request.headers['last-event-id'] ?? stream.after)
  if (request.method === 'HEAD') {
    reply.type('text/event-stream; charset=utf-8').send()
    return
  }
  await streams.open(reply, {
    caller: principalId(principal),
    expiresAtMs: principal.expiresAtMs,
    revocable: principal.kind === 'service',
    interest,
    after,
  })
}

function readCursor(text: string | string[] | undefined): number | null {
  if (text === undefined || text === '') return null
  if (typeof text === 'string' && CURSOR.test(text)) return Number(text)
  throw new ApiError('invalid_request', 'Last-Event-ID must be the id of an event')
}
