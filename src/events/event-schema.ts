import { type TSchema, Type } from 'typebox'
import { timeField } from '../http/schemas.ts'
import type { EventType } from './event-store.ts'

export const streamQuery = {
  after: Type.Optional(
    Type.String({
      description:
        'Continue after this event. The header `Last-Event-ID` takes precedence. 0: from the oldest stored event.',
    }),
  ),
}

export const lastEventIdHeader = Type.Object({
  'last-event-id': Type.Optional(
    Type.String({ description: 'The `id` of the last event that the client has: the stream continues after it.' }),
  ),
})

export const streamDescription =
  'Server-sent events: `id` is a durable cursor, `event` the type, `data` one of the documented events in JSON. ' +
  'If you reconnect with `Last-Event-ID`, no event is missed or repeated, across restarts and nodes. If the history ' +
  'was trimmed, you get a `reset` event. A comment is sent every 15 s. The stream ends when the token expires or its user is blocked; the stream of a service key ends after 5 minutes.'

/** One kind of event: its types, and the content of its `data`. */
export function eventSchema(options: {
  title: string
  types: readonly (EventType | 'reset')[]
  data: TSchema
  description: string
}): TSchema {
  const { title, types, data, description } = options
  return Type.Object(
    {
      id: Type.String({ description: 'The cursor to reconnect with.' }),
      type: Type.Unsafe<EventType | 'reset'>({ type: 'string', enum: [...types], description: 'What happened.' }),
      created_at: timeField('When it happened.'),
      data,
    },
    { title, description },
  )
}

const ResetEvent = eventSchema({
  title: 'ResetEvent',
  types: ['reset'],
  description: 'Some events are missing: reload your data. The stream continues from here.',
  data: Type.Object({}, { description: 'Empty.', additionalProperties: false }),
})

/** The answer of a stream of these kinds of events, and of resets. */
export function streamResponse(title: string, kinds: readonly TSchema[], example: object) {
  const description = 'One event of the stream: the JSON in its `data` line.'
  return eventStream(Type.Unsafe<unknown>({ title, description, oneOf: [...kinds, ResetEvent] }), example)
}

/** The answer of a stream. OpenAPI 3.1 cannot describe the events of a stream, so the schema describes each `data` line. */
export function eventStream(schema: TSchema, example: object) {
  return { 200: { description: 'The stream.', content: { 'text/event-stream': { schema, example } } } }
}
