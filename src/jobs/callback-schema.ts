import type { Json } from '../core/json.ts'
import { type Static, Type } from '../core/schema.ts'
import { pageOf, pageQuery } from '../http/paging.ts'
import { pathParams, text, timestamp } from '../http/schemas.ts'
import type { CallbackOutcome } from './callback-store.ts'

const outcome = Type.Unsafe<CallbackOutcome>({
  type: 'string',
  enum: ['applied', 'duplicate', 'stale', 'adopted', 'deferred'],
  description:
    'applied: it settled the job. duplicate, stale: known already. adopted: a job was made for a run nobody knew. ' +
    'deferred: stored, and the runtime is asked.',
})

const received = Type.Object({ received: Type.Literal(true), outcome, job_id: Type.String() })

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
    body: Type.Unsafe<Json>({ description: 'As it came, with our token redacted.' }),
  },
  { title: 'Callback' },
)
export type Callback = Static<typeof Callback>

const tags = ['Callbacks']

const querystring = Type.Object({
  token: Type.Optional(Type.String()),
  job_id: Type.Optional(text({ maxLength: 255 })),
})

const description =
  'JSON whatever the content type says: `thread_id`, `run_id`, `status`, and `values` or `error` where there are any. ' +
  'Durable before it is answered. A 5xx is worth a retry, a 4xx is not.'

export const agentCallback = {
  tags,
  summary: 'The end of a run of type `agent`',
  description,
  querystring,
  response: { 200: received },
}

export const jobCallback = {
  tags,
  summary: 'The end of a run of a job type',
  description,
  querystring,
  params: pathParams('type'),
  response: { 200: received },
}

export const listCallbacks = {
  tags,
  summary: 'List received callbacks, newest first',
  querystring: Type.Object(
    { ...pageQuery, job_id: Type.Optional(text({ maxLength: 255 })) },
    { additionalProperties: false },
  ),
  response: { 200: pageOf(Callback) },
}

export const replayCallback = {
  tags,
  summary: 'Look at a stored callback again',
  params: pathParams('id'),
  response: { 200: received },
}
