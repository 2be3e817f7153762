import { type Static, Type } from 'typebox'
import type { Json } from '../../core/json.ts'
import { UUID_PATTERN } from '../../core/uuid.ts'
import { pageOf, pageQuery } from '../../http/paging.ts'
import { boundedText, jsonDocument, nullableTextField, pathParams, timeField } from '../../http/schemas.ts'
import { CALLBACK_OUTCOMES, type CallbackOutcome } from '../callback-store.ts'
import { REFUSAL_REASONS, type RefusalReason } from './refused-callback-store.ts'

const outcome = Type.Unsafe<CallbackOutcome>({
  title: 'CallbackOutcome',
  type: 'string',
  enum: Object.keys(CALLBACK_OUTCOMES),
  description: Object.entries(CALLBACK_OUTCOMES)
    .map(([name, { meaning }]) => `${name}: ${meaning}.`)
    .join(' '),
})

const received = Type.Object(
  {
    received: Type.Literal(true, { description: 'The callback is durable.' }),
    outcome,
    job_id: Type.String({ description: 'The job that it is about.' }),
  },
  {
    title: 'CallbackReceipt',
    examples: [{ received: true, outcome: 'applied', job_id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc' }],
  },
)

const uuid = (description: string) => Type.String({ format: 'uuid', pattern: UUID_PATTERN, description })

/** The fields that `parseCallback` reads. Other fields are stored and ignored. */
export const CallbackBody = Type.Object(
  {
    thread_id: uuid('The thread that the run belongs to.'),
    run_id: uuid('The run that ended.'),
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
    error: Type.Optional(
      Type.Unsafe<Json>({
        type: ['string', 'object', 'null'],
        additionalProperties: true,
        description: 'Why the run failed.',
      }),
    ),
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
    id: Type.String({ description: 'Begins with `cbk_`.' }),
    path: Type.String({ description: 'The path that it was posted to.' }),
    type: Type.String({ description: 'The job type of that path.' }),
    job_id: Type.String({ description: 'The job that it is about.' }),
    thread_id: Type.String({ description: 'The thread that the run belongs to.' }),
    run_id: Type.String({ description: 'The run that ended.' }),
    status: Type.String({ description: 'The status of the run, as the runtime names it.' }),
    outcome,
    received_at: timeField('When it was received.'),
    body: jsonDocument({ description: 'As received, with the token of the callback URL redacted.' }),
  },
  {
    title: 'Callback',
    examples: [
      {
        id: 'cbk_01kq3v7m2x8n4r6t0w9y5z1abc',
        path: '/webhooks/jobs/report',
        type: 'report',
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
  token: Type.Optional(Type.String({ description: 'The token of the job, as in the callback URL.' })),
  job_id: Type.Optional(boundedText({ maxLength: 255, description: 'The job that the token is for.' })),
})

const description =
  'JSON, with any content type: `thread_id`, `run_id`, `status`, and optionally `values` or `error`. ' +
  'The callback is durable before it is answered. Retry after a 5xx, not after a 4xx.'

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
  params: pathParams('type', 'The job type.'),
  response: { 200: received },
}

const time = (description: string) => Type.Optional(Type.String({ format: 'date-time', description }))

/** The filters of a list of callbacks. */
export const callbackFilters = {
  job_id: Type.Optional(boundedText({ maxLength: 255, description: 'Only those about this job.' })),
  outcome: Type.Optional(outcome),
  type: Type.Optional(boundedText({ maxLength: 64, description: 'A job type.' })),
  received_after: time('Callbacks received later than this time.'),
  received_before: time('Callbacks received earlier than this time.'),
}

const { body: itsBody, ...withoutBody } = Callback.properties

/** A callback in a list: without its body unless the caller asked for it. */
const CallbackItem = Type.Object(
  { ...withoutBody, body: Type.Optional(itsBody) },
  { title: 'CallbackItem', description: 'A callback. It has its `body` with `fields=body`.' },
)
export type CallbackItem = Static<typeof CallbackItem>

export const listCallbacks = {
  operationId: 'listCallbacks',
  tags,
  summary: 'List received callbacks, newest first',
  description:
    'Filters can be combined. A page ends early when 5,000 callbacks were read for a rare combination of filters, or when ' +
    'its bodies exceed 2 MB; `has_more` says whether there are more.',
  querystring: Type.Object(
    {
      ...pageQuery,
      ...callbackFilters,
      fields: Type.Optional(
        Type.Unsafe<'body'>({ type: 'string', enum: ['body'], description: '`body` adds the bodies.' }),
      ),
    },
    { additionalProperties: false },
  ),
  response: { 200: Type.Object(pageOf(CallbackItem).properties, { title: 'CallbackPage' }) },
}

const RefusedCallback = Type.Object(
  {
    id: Type.String({ description: 'Begins with `rcb_`.' }),
    reason: Type.Unsafe<RefusalReason>({
      title: 'RefusalReason',
      type: 'string',
      enum: Object.keys(REFUSAL_REASONS),
      description: Object.entries(REFUSAL_REASONS)
        .map(([name, meaning]) => `${name}: ${meaning}.`)
        .join(' '),
    }),
    path: Type.String({ description: 'The path that they were posted to.' }),
    address: Type.String({
      description: 'Where they came from: an IPv4 address or an IPv6 network. `others`: from many addresses.',
    }),
    job_id: nullableTextField('The newest job that one of them named, if it is stored here.'),
    count: Type.Integer({ description: 'How many were refused.' }),
    first_at: timeField('When the first of them was refused.'),
    last_at: timeField('When the last of them was refused.'),
  },
  {
    title: 'RefusedCallback',
    description: 'Callbacks that were refused in one minute, for one reason, at one path, from one address.',
    examples: [
      {
        id: 'rcb_01kq3v7m2x5d41402abc4b2a76',
        reason: 'wrong_token',
        path: '/webhooks/jobs/report',
        address: '192.0.2.7',
        job_id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc',
        count: 12,
        first_at: '2026-01-31T12:00:02.000Z',
        last_at: '2026-01-31T12:00:58.000Z',
      },
    ],
  },
)
export type RefusedCallback = Static<typeof RefusedCallback>

export const listRefusedCallbacks = {
  operationId: 'listRefusedCallbacks',
  tags,
  summary: 'List refused callbacks, newest first',
  description:
    'Counted by minute, reason, path and address, at most five seconds behind. At most 1,000 entries are kept, for a week. ' +
    'Nothing of a body or a credential is stored, so a refused callback cannot be replayed.',
  querystring: Type.Object(
    { ...pageQuery, id: Type.Optional(boundedText({ maxLength: 255, description: 'The id of an entry.' })) },
    { additionalProperties: false },
  ),
  response: { 200: pageOf(RefusedCallback) },
}

export const getCallback = {
  operationId: 'getCallback',
  tags,
  summary: 'Get a callback with its body',
  params: pathParams('id', 'The callback’s id.'),
  response: { 200: Callback },
}

export const replayCallback = {
  operationId: 'replayCallback',
  tags,
  summary: 'Process a stored callback again',
  params: pathParams('id', 'The callback’s id.'),
  response: { 200: received },
}
