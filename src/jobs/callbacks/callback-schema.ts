import { type Static, Type } from 'typebox'
import type { Json } from '../../core/json.ts'
import { UUID_PATTERN } from '../../core/uuid.ts'
import { pageOf, pageQuery } from '../../http/paging.ts'
import { boundedText, jsonDocument, pathParams, timestamp } from '../../http/schemas.ts'
import { CALLBACK_OUTCOMES, type CallbackOutcome } from './callback-store.ts'

const outcome = Type.Unsafe<CallbackOutcome>({
  type: 'string',
  enum: Object.keys(CALLBACK_OUTCOMES),
  description: Object.entries(CALLBACK_OUTCOMES)
    .map(([name, { meaning }]) => `${name}: ${meaning}.`)
    .join(' '),
})

const received = Type.Object(
  { received: Type.Literal(true), outcome, job_id: Type.String() },
  {
    title: 'CallbackReceipt',
    examples: [{ received: true, outcome: 'applied', job_id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc' }],
  },
)

const uuid = Type.String({ format: 'uuid', pattern: UUID_PATTERN })

/** The fields that `parseCallback` reads. Other fields are stored and ignored. */
export const CallbackBody = Type.Object(
  {
    thread_id: uuid,
    run_id: uuid,
    status: boundedText({
      minLength: 1,
      maxLength: 255,
      description: '`success`, `error`, `timeout` or `interrupted`. For any other status the runtime is asked.',
    }),
    values: Type.Optional(
      Type.Unsafe<Json>({
        type: ['object', 'null'],
        additionalProperties: true,
        description: 'The output values of the graph.',
      }),
    ),
    error: Type.Optional(Type.Unsafe<Json>({ type: ['string', 'object', 'null'], additionalProperties: true })),
    metadata: Type.Optional(
      Type.Unsafe<Json>({
        type: ['object', 'null'],
        additionalProperties: true,
        description: '`job_id`, `trace_id` and `tracer_trace_id` are read from it.',
      }),
    ),
  },
  {
    title: 'CallbackPayload',
    additionalProperties: true,
    examples: [
      {
        thread_id: '9a4bcb3e-4d5c-4b9e-8f00-000000000001',
        run_id: '1efcf3a0-0000-6000-8000-000000000001',
        status: 'success',
        values: { report: { title: 'done', n: 42 } },
        error: null,
        metadata: { job_id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc' },
      },
    ],
  },
)

export const Callback = Type.Object(
  {
    id: Type.String(),
    path: Type.String(),
    job_id: Type.String(),
    thread_id: Type.String(),
    run_id: Type.String(),
    status: Type.String(),
    outcome,
    received_at: timestamp,
    body: jsonDocument({ description: 'As received, with the token of the callback URL redacted.' }),
  },
  {
    title: 'Callback',
    examples: [
      {
        id: 'cbk_01kq3v7m2x8n4r6t0w9y5z1abc',
        path: '/webhooks/jobs/report',
        job_id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc',
        thread_id: '9a4bcb3e-4d5c-4b9e-8f00-000000000001',
        run_id: '1efcf3a0-0000-6000-8000-000000000001',
        status: 'success',
        outcome: 'applied',
        received_at: '2026-01-31T12:00:09.000Z',
        body: { status: 'success' },
      },
    ],
  },
)
export type Callback = Static<typeof Callback>

const tags = ['Callbacks']

const querystring = Type.Object({
  token: Type.Optional(Type.String()),
  job_id: Type.Optional(boundedText({ maxLength: 255 })),
})

const description =
  'JSON whatever the content type says: `thread_id`, `run_id`, `status`, and `values` or `error` where there are any. ' +
  'Durable before it is answered. A 5xx is worth a retry, a 4xx is not.'

export const agentCallback = {
  operationId: 'receiveAgentCallback',
  tags,
  summary: 'The end of a run of type `agent`',
  description,
  querystring,
  response: { 200: received },
}

export const jobCallback = {
  operationId: 'receiveJobCallback',
  tags,
  summary: 'The end of a run of a job type',
  description,
  querystring,
  params: pathParams('type'),
  response: { 200: received },
}

export const listCallbacks = {
  operationId: 'listCallbacks',
  tags,
  summary: 'List received callbacks, newest first',
  querystring: Type.Object(
    { ...pageQuery, job_id: Type.Optional(boundedText({ maxLength: 255 })) },
    { additionalProperties: false },
  ),
  response: { 200: pageOf(Callback) },
}

export const replayCallback = {
  operationId: 'replayCallback',
  tags,
  summary: 'Process a stored callback again',
  params: pathParams('id'),
  response: { 200: received },
}
