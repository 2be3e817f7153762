import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { eventStream, lastEventIdHeader } from '../../events/event-schema.ts'
import { callerOf } from '../../http/gate/access.ts'
import { pathParams } from '../../http/schemas.ts'
import { answerHead, readCursor } from '../../http/streams/open-streams.ts'
import { JOB_STATUSES, type JobStatus } from '../job.ts'
import type { SlimJob } from '../job-row.ts'
import { LIVE_ROLES, type LiveRole } from '../live/live-message.ts'
import { readLiveCursor } from '../live/live-position.ts'
import type { LiveStreams } from '../live/live-streams.ts'

const namespace = Type.Optional(
  Type.Array(Type.String(), {
    description:
      'Of a sub-agent: the tasks of the outer graphs that the node is part of, outermost first, each as `node:task`. Absent: ' +
      'a node of the graph itself.',
  }),
)

const LiveMessage = Type.Object(
  {
    id: Type.Unsafe<string | null>({
      type: ['string', 'null'],
      description: 'Events with the same id belong to one message.',
    }),
    role: Type.Unsafe<LiveRole>({ type: 'string', enum: [...LIVE_ROLES], description: 'The author of the message.' }),
    node: Type.Unsafe<string | null>({ type: ['string', 'null'], description: 'The node of the graph that wrote it.' }),
    namespace,
    partial: Type.Boolean({
      description: 'True: append this to the message with the same id. False: this is the whole message; replace it.',
    }),
    text: Type.Optional(Type.String({ description: 'Text, or the next piece of it.' })),
    reasoning: Type.Optional(Type.String({ description: 'The reasoning of the model, or the next piece of it.' })),
    tool_calls: Type.Optional(
      Type.Array(
        Type.Object({
          index: Type.Integer({ description: 'Pieces with the same index belong to one call.' }),
          id: Type.Optional(Type.String({ description: 'The id of the call; in its first piece.' })),
          name: Type.Optional(Type.String({ description: 'The name of the tool; in the first piece of the call.' })),
          args: Type.String({ description: 'JSON text: the next piece of it in a partial message, else all of it.' }),
        }),
        { description: 'The tools that the model calls.' },
      ),
    ),
    tool_call_id: Type.Optional(Type.String({ description: 'Of a tool’s message: the call that it answers.' })),
  },
  { title: 'LiveMessage', description: 'A message of the run, or the next piece of one: `event: message`.' },
)

const LiveStep = Type.Object(
  { node: Type.String({ description: 'The node of the graph that has finished.' }), namespace },
  { title: 'LiveStep', description: 'A step of the graph is done: `event: step`.' },
)

const LiveEnd = Type.Object(
  {
    status: Type.Unsafe<JobStatus>({
      type: 'string',
      enum: [...JOB_STATUSES],
      description: 'The status of the job: final, or `awaiting_input`.',
    }),
  },
  { title: 'LiveEnd', description: 'The last event: `event: end`.' },
)

const LiveReset = Type.Object(
  {},
  {
    title: 'LiveReset',
    description: 'Output is missing or no longer valid: discard the shown output of the run. `event: reset`.',
  },
)

const LiveProgress = Type.Unsafe<unknown>({
  title: 'LiveProgress',
  description: 'A value that the graph writes to its custom stream: any JSON, unchanged. `event: progress`.',
})

const LivePart = Type.Unsafe<unknown>({
  title: 'LivePart',
  description: 'One event of the stream: the JSON in its `data` line. The name of the event says which.',
  anyOf: [LiveMessage, LiveStep, LiveEnd, LiveReset, LiveProgress],
})

const example = { id: 'run-7', role: 'assistant', node: 'answer', partial: true, text: 'Hel' }

export const streamLive = {
  operationId: 'streamJobLive',
  tags: ['Realtime'],
  summary: 'View the output of a job while it runs',
  description:
    'Server-sent events: `message`, `progress`, `step`, `reset`, and last `end` with the status of the job. A viewer gets ' +
    'the output of the current run from its beginning. If you reconnect with `Last-Event-ID`, to any node, no event is missed or ' +
    'repeated. Output is not stored: for a job that has ended, or whose type is not live, you get only `end`. A pause ends ' +
    'with `awaiting_input`; open the stream again after the answer. A comment comes every 15 s; the stream ends when the ' +
    'token expires; the stream of a service key ends after 5 minutes.',
  params: pathParams('id', 'The job’s id.'),
  querystring: Type.Object(
    {
      after: Type.Optional(
        Type.String({ description: 'Continue after this event. The header `Last-Event-ID` takes precedence.' }),
      ),
    },
    { additionalProperties: false },
  ),
  headers: lastEventIdHeader,
  response: eventStream(LivePart, example),
}

/** Opens a live view of a job for the caller, from the cursor of the request. */
export function openLiveStream(
  live: LiveStreams,
  { request, reply, job, after }: { request: FastifyRequest; reply: FastifyReply; job: SlimJob; after?: string },
): void {
  const cursor =
    readCursor('Last-Event-ID', request.headers['last-event-id'], readLiveCursor) ??
    readCursor('querystring/after', after, readLiveCursor)
  if (answerHead(request, reply)) return
  live.open(reply, { principal: callerOf(request), job, after: cursor })
}
