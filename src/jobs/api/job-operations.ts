import { Type } from 'typebox'
import { lastEventIdHeader, streamDescription, streamQuery, streamResponse } from '../../events/event-schema.ts'
import { pageOf, pageQuery } from '../../http/paging.ts'
import {
  boundedText,
  idempotencyHeader,
  jsonDocument,
  nullableText,
  pathParams,
  withExample,
} from '../../http/schemas.ts'
import { ON_BUSY, type OnBusy } from '../actions/conversation.ts'
import { JOB_EXAMPLES, Job, JobEvent, JobTypeList, jobEventExample, TimelineEntry } from './job-schema.ts'

const tags = ['Jobs']
const params = pathParams('id', 'The job’s id.')
const uuid = (description: string) => Type.Optional(Type.String({ format: 'uuid', description }))

const configurable = Type.Optional(
  jsonDocument({
    type: 'object',
    additionalProperties: true,
    description:
      'Values for the graph, such as a model or a language: it finds them in its `config.configurable`. At most 16 KB. ' +
      'Only for a type with a `configurable_schema`.',
  }),
)

export const createJob = {
  operationId: 'startJob',
  tags,
  summary: 'Start a job, continue a conversation, or follow a run',
  description:
    'With `input`, a run is started on the runtime; with `thread_id` and `run_id`, a run started elsewhere is followed. ' +
    'Following needs `admin:*`, or a run or thread whose metadata names the caller in `user_id`, `owner` or `created_by`, ' +
    'and the run must be of the type’s graph. ' +
    'With `continues`, the run is the next turn on the thread of an earlier job. While a job on the thread is unfinished, ' +
    '`on_busy` decides: `reject` answers 409; `enqueue` lets up to five turns wait, each until the one before it has ended; ' +
    '`interrupt` cancels the unfinished turns and starts when the runtime has ended them. ' +
    'With `run_at`, the job is accepted now and starts then; until then its input can be replaced. A turn keeps its place in ' +
    'the conversation while it waits, and `on_busy` cannot be `interrupt`. If its owner is blocked then, or was erased, it ' +
    'ends `cancelled`. ' +
    'The job is durable before the runtime is called. If the runtime is down, the start is retried. ' +
    'At a limit of the month of its owner the answer is 429 `usage_limit_exceeded`. An owner with too many unfinished jobs ' +
    'gets it too; a caller with `admin:*` is exempt from that quota.',
  headers: idempotencyHeader,
  body: Type.Object(
    {
      type: boundedText({ minLength: 1, maxLength: 64, description: 'A job type: `GET /v1/job-types` lists them.' }),
      input: Type.Optional(jsonDocument({ description: 'The graph’s input.' })),
      configurable,
      thread_id: uuid('The thread of the run to follow.'),
      run_id: uuid('The run to follow.'),
      continues: Type.Optional(
        boundedText({
          minLength: 1,
          maxLength: 64,
          description: 'A job of the caller, of the same type, whose conversation this one continues.',
        }),
      ),
      on_busy: Type.Optional(
        Type.Unsafe<OnBusy>({
          title: 'OnBusy',
          type: 'string',
          enum: [...ON_BUSY],
          description: 'With `continues`: what happens while a job on the thread is unfinished. Absent: `reject`.',
        }),
      ),
      run_at: Type.Optional(
        Type.String({
          format: 'date-time',
          description:
            'With `input`: the time at which it starts, at most 30 days ahead. A time in the past starts it at once.',
        }),
      ),
      project_id: Type.Optional(nullableText({ maxLength: 255, description: 'The project it belongs to.' })),
      created_by: Type.Optional(
        boundedText({ minLength: 1, maxLength: 255, description: 'The user it is for; only with `admin:*`.' }),
      ),
    },
    { title: 'JobInput', additionalProperties: false, examples: [{ type: 'report', input: { topic: 'sales' } }] },
  ),
  response: { 202: withExample(Job, JOB_EXAMPLES.started) },
}

export const getJob = {
  operationId: 'getJob',
  tags,
  summary: 'Get a job',
  description:
    'An unfinished job is first brought up to date with the runtime, within three seconds. A job that awaits input is ' +
    'checked every ten seconds at most: if its question was answered elsewhere, it goes on with that run.',
  params,
  response: { 200: Job },
}

export const replaceJobInput = {
  operationId: 'replaceJobInput',
  tags,
  summary: 'Replace the input of a turn that waits',
  description: 'Only before its `run_at`, and while `queued_behind` names the job before it; afterwards 409.',
  params,
  body: Type.Object(
    { input: jsonDocument({ description: 'The graph’s new input.' }) },
    { title: 'JobChange', additionalProperties: false, examples: [{ input: { topic: 'costs' } }] },
  ),
  response: { 200: withExample(Job, { ...JOB_EXAMPLES.started, queued_behind: 'job_01kq3v7m2x8n4r6t0w9y5z1abb' }) },
}

export const deleteJob = {
  operationId: 'deleteJob',
  tags,
  summary: 'Delete a job that has ended',
  description:
    'With everything it holds: input, output, callbacks, timeline, events, notifications. Its usage stays counted. ' +
    'A late callback of its runs is answered `stale`.',
  params,
  response: { 204: Type.Null({ description: 'Deleted' }) },
}

export const cancelJob = {
  operationId: 'cancelJob',
  tags,
  summary: 'Cancel a job',
  description: '200 when the job is cancelled, 202 when the runtime still has to confirm it.',
  params,
  response: { 200: withExample(Job, JOB_EXAMPLES.cancelled), 202: withExample(Job, JOB_EXAMPLES.generating) },
}

export const resumeJob = {
  operationId: 'resumeJob',
  tags,
  summary: 'Answer a job that awaits input',
  params,
  description:
    'The state of the thread is read first, within three seconds. 409: the question was answered elsewhere meanwhile (the ' +
    'job then goes on with that answer), its thread is gone (the job then fails `run_lost`), or `answer_by` is over. If ' +
    'the runtime cannot be asked, the answer is kept and sent later. `configurable` replaces that of the job; without it, ' +
    'that of the job is sent again.',
  body: Type.Object(
    {
      input: Type.Optional(
        jsonDocument({
          description:
            'The answer to a single question: what the graph’s interrupt returns. Null continues a job that asks nothing: ' +
            'after a breakpoint, or when its question was closed elsewhere.',
        }),
      ),
      answers: Type.Optional(
        jsonDocument({
          type: 'object',
          additionalProperties: true,
          description: 'The answers to several questions, by the ids in `interrupts`.',
        }),
      ),
      configurable,
    },
    { title: 'JobAnswer', additionalProperties: false, examples: [{ input: 'approved' }] },
  ),
  response: { 202: withExample(Job, JOB_EXAMPLES.generating) },
}

export const retryJob = {
  operationId: 'retryJob',
  tags,
  summary: 'Repeat a job that has ended',
  description:
    'A new job with exactly the same input, `configurable`, type, project and owner; its `retry_of` names this one. A turn of a ' +
    'conversation is repeated on the same thread. It counts towards the usage limit of the owner and the quota of unfinished jobs. ' +
    '409 if the job was retried already and `again` is not true. The body may be left out.',
  params,
  headers: idempotencyHeader,
  body: Type.Optional(
    Type.Unsafe<{ again?: boolean } | null>({
      title: 'JobRetry',
      type: ['object', 'null'],
      properties: {
        again: {
          type: 'boolean',
          default: false,
          description: 'Repeat the job also if it was retried already.',
        },
      },
      additionalProperties: false,
      examples: [{ again: true }],
    }),
  ),
  response: { 202: withExample(Job, { ...JOB_EXAMPLES.started, retry_of: 'job_01kq3v7m2x8n4r6t0w9y5z1abb' }) },
}

export const checkJob = {
  operationId: 'checkJob',
  tags,
  summary: 'Ask the runtime about a job now',
  description:
    'Answers with the job after the check, within three seconds. A job that has ended is answered as it is stored.',
  params,
  response: { 200: withExample(Job, JOB_EXAMPLES.generating) },
}

export const listTimeline = {
  operationId: 'listJobTimeline',
  tags,
  summary: 'Get the history of a job, in order',
  params,
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
  response: { 200: pageOf(TimelineEntry) },
}

export const listJobTypes = {
  operationId: 'listJobTypes',
  tags,
  summary: 'List the job types and the fields of their output',
  response: { 200: JobTypeList },
}

export const streamJob = {
  operationId: 'streamJobEvents',
  tags: ['Realtime'],
  summary: 'Stream the events of a job',
  description: streamDescription,
  params,
  querystring: Type.Object(streamQuery, { additionalProperties: false }),
  headers: lastEventIdHeader,
  response: streamResponse('JobStreamEvent', [JobEvent], jobEventExample),
}
