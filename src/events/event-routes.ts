import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { principalId } from '../auth/principal.ts'
import { ADMIN_SCOPE } from '../auth/scopes.ts'
import { ApiError } from '../core/errors.ts'
import type { App } from '../http/app-instance.ts'
import { bearer, callerOf, insufficientScope } from '../http/gate/access.ts'
import { timestamp } from '../http/schemas.ts'
import type { Interest } from './event-feed.ts'
import { EVENT_TYPES, type EventType } from './event-store.ts'
import type { EventStreams } from './event-streams.ts'

const CURSOR = /^\d{1,15}$/

export const streamQuery = {
  after: Type.Optional(
    Type.String({
      description:
        'Continue after this event. The header `Last-Event-ID` takes precedence. 0: from the oldest stored event.',
    }),
  ),
}

export const streamDescription =
  'Server-sent events: `id` is a durable cursor, `event` the type, `data` holds an `Event`. ' +
  'Reconnecting with `Last-Event-ID` misses nothing and repeats nothing, across restarts and nodes; where the history ' +
  'was trimmed, a `reset` event says so. A comment comes every 15 s; the stream ends when the token expires, one of a service key after 5 minutes.'

const example = {
  id: '7',
  type: 'job.completed',
  created_at: '2026-01-31T12:00:09.000Z',
  data: {
    job_id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc',
    type: 'report',
    status: 'completed',
    project_id: null,
    error: null,
    settled_by: 'callback',
  },
}

const Event = Type.Object(
  {
    id: Type.String({ description: 'The cursor to reconnect with.' }),
    type: Type.Unsafe<EventType | 'reset'>({ type: 'string', enum: [...EVENT_TYPES, 'reset'] }),
    created_at: timestamp,
    data: Type.Unsafe<object>({
      type: 'object',
      additionalProperties: true,
      description:
        'Of a job `{job_id, type, status, project_id, error, settled_by}`, of a project `{project_id, name}`, of a reset `{}`.',
    }),
  },
  { title: 'Event', examples: [example] },
)

export const streamResponse = {
  200: {
    description: 'The stream.',
    content: {
      'text/event-stream': {
        schema: Type.String({ examples: [`id: 7\nevent: job.completed\ndata: ${JSON.stringify(example)}\n\n`] }),
        // The schema of each `data` line. OpenAPI 3.1 has no standard field for it.
        'x-event': Event,
      },
    },
  },
}

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
      all: Type.Optional(Type.Boolean({ description: 'The events of every user; only with `admin:*`.' })),
    },
    { additionalProperties: false },
  ),
  response: streamResponse,
}

export function eventRoutes(app: App, { streams }: { streams: EventStreams }): void {
  const config = { ...streaming, refusals: { ...streaming.refusals, forbidden: 'Insufficient scope' } }
  app.get('/v1/events', { config, schema: getEvents }, async (request, reply) => {
    const { all, after } = request.query
    const caller = callerOf(request)
    if (all && !caller.scopes.includes(ADMIN_SCOPE)) throw insufficientScope([ADMIN_SCOPE])
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
  const principal = callerOf(request)
  const seen = readCursor('Last-Event-ID', request.headers['last-event-id'])
  const asked = readCursor('querystring/after', stream.after)
  // No event has id 0. In `after` it asks for the oldest event. In `Last-Event-ID` it is the position of an empty log.
  const after = seen ?? (asked === 0 ? 'oldest' : asked)
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

function readCursor(name: string, text: string | string[] | undefined): number | null {
  if (text === undefined || text === '') return null
  if (typeof text === 'string' && CURSOR.test(text)) return Number(text)
  throw new ApiError('invalid_request', `${name} must be the id of an event`)
}
