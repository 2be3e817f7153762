import type { Json } from '../../core/json.ts'
import { type Static, Type } from '../../core/schema.ts'
import { streamDescription, streamQuery, streamResponse } from '../../events/event-routes.ts'
import { pageOf, pageQuery } from '../../http/paging.ts'
import { idempotencyHeader, nullableTimestamp, pathParams, text, timestamp } from '../../http/schemas.ts'
import {
  FAILURE_CODES,
  type FailureCode,
  JOB_STATUSES,
  type JobStatus,
  TERMINAL_STATUSES,
  VIAS,
  type Via,
  WATCHED_STATUSES,
} from '../job.ts'
import { TIMELINE_KINDS, TIMELINE_VIAS, type TimelineRow } from '../settlement/timeline-store.ts'

const nullableString = Type.Unsafe<string | null>({ type: ['string', 'null'] })
const inCode = (words: readonly string[]) => words.map((word) => `\`${word}\``).join(', ')
const anyJson = (description: string) => Type.Unsafe<Json>({ description })

export const Job = Type.Object(
  {
    id: Type.String(),
    type: Type.String(),
    status: Type.Unsafe<JobStatus>({
      type: 'string',
      enum: [...JOB_STATUSES],
      description: `Final: ${inCode(TERMINAL_STATUSES)}.`,
    }),
    input: anyJson('What it was started with.'),
    output: anyJson('The result once it is completed; its fields are documented per job type.'),
    error: Type.Unsafe<{ code: FailureCode; message: string } | null>({
      type: ['object', 'null'],
      properties: { code: { type: 'string', enum: [...FAILURE_CODES] }, message: { type: 'string' } },
      required: ['code', 'message'],
    }),
    interrupts: anyJson('What the graph asks, while the job awaits input.'),
    project_id: nullableString,
    created_by: nullableString,
    thread_id: Type.String(),
    run_id: nullableString,
    trace_id: nullableString,
    tracer_trace_id: nullableString,
    settled_by: Type.Unsafe<Via | null>({
      type: ['string', 'null'],
      enum: [...VIAS, null],
      description: 'What revealed first that the run had ended.',
    }),
    reconcile: Type.Object(
      {
        checked_at: nullableTimestamp,
        next_at: nullableTimestamp,
        attempts: Type.Integer(),
        last_error: nullableString,
      },
      { description: 'How the service keeps itself informed of the run.' },
    ),
    created_at: timestamp,
    started_at: nullableTimestamp,
    finished_at: nullableTimestamp,
    updated_at: timestamp,
  },
  {
    title: 'Job',
    examples: [
      {
        id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc',
        type: 'report',
        status: 'completed',
        input: { topic: 'sales' },
        output: { title: 'done', n: 42 },
        error: null,
        interrupts: null,
        project_id: null,
        created_by: '8f14e45f-ceea-467f-a0e6-000000000001',
        thread_id: '9a4bcb3e-4d5c-4b9e-8f00-000000000001',
        run_id: '1efcf3a0-0000-6000-8000-000000000001',
        trace_id: null,
        tracer_trace_id: null,
        settled_by: 'callback',
        reconcile: { checked_at: null, next_at: null, attempts: 0, last_error: null },
        created_at: '2026-01-31T12:00:00.000Z',
        started_at: '2026-01-31T12:00:00.100Z',
        finished_at: '2026-01-31T12:00:09.000Z',
        updated_at: '2026-01-31T12:00:09.000Z',
      },
    ],
  },
)
export type Job = Static<typeof Job>

const jobTypeExample = {
  name: 'report',
  description: 'Writes a report',
  assistant_id: 'report',
  output_key: 'report',
  may_pause: false,
  deadline_seconds: 3600,
  output_fields: { title: 'What it is called' },
}

const JobType = Type.Object(
  {
    name: Type.String(),
    description: nullableString,
    assistant_id: Type.String(),
    output_key: Type.Unsafe<string | null>({
      type: ['string', 'null'],
      description: 'A key or JSON Pointer into the graph’s values; null is the last assistant message.',
    }),
    may_pause: Type.Boolean(),
    deadline_seconds: Type.Integer(),
    output_fields: Type.Record(Type.String(), Type.String()),
  },
  {
    title: 'JobType',
    examples: [jobTypeExample],
  },
)

const JobTypeList = Type.Object(
  { data: Type.Array(JobType) },
  { title: 'JobTypeList', examples: [{ data: [jobTypeExample] }] },
)

const TimelineEntry = Type.Object(
  {
    id: Type.String(),
    at: timestamp,
    kind: Type.Unsafe<TimelineRow['kind']>({ type: 'string', enum: [...TIMELINE_KINDS] }),
    via: Type.Unsafe<TimelineRow['via']>({ type: ['string', 'null'], enum: [...TIMELINE_VIAS, null] }),
    detail: Type.Unsafe<Json>({ type: 'object', additionalProperties: true }),
    times: Type.Integer({ description: 'How often the same was found in a row.' }),
    last_at: timestamp,
  },
  {
    title: 'TimelineEntry',
    examples: [
      {
        id: 'tml_01kq3v7m2x8n4r6t0w9y5z1abc',
        at: '2026-01-31T12:00:09.000Z',
        kind: 'transition',
        via: 'callback',
        detail: { from: 'generating', to: 'completed' },
        times: 1,
        last_at: '2026-01-31T12:00:09.000Z',
      },
    ],
  },
)
export type TimelineEntry = Static<typeof TimelineEntry>

const tags = ['Jobs']
const params = pathParams('id')
const id = text({ minLength: 1, maxLength: 255 })

export const createJob = {
  operationId: 'startJob',
  tags,
  summary: 'Start a job, or follow a run',
  description:
    'With `input`, a run is started on the runtime; with `thread_id` and `run_id`, a run started elsewhere is followed. ' +
    'The job is durable before the runtime is called, and a runtime that is down is tried again.',
  headers: idempotencyHeader,
  body: Type.Object(
    {
      type: text({ minLength: 1, maxLength: 64 }),
      input: Type.Optional(anyJson('The graph’s input.')),
      thread_id: Type.Optional(id),
      run_id: Type.Optional(id),
      project_id: Type.Optional(
        Type.Unsafe<string | null>({ type: ['string', 'null'], format: 'text', maxLength: 255 }),
      ),
      created_by: Type.Optional(
        text({ minLength: 1, maxLength: 255, description: 'The user it is for; only with `admin:*`.' }),
      ),
    },
    { title: 'JobInput', additionalProperties: false, examples: [{ type: 'report', input: { topic: 'sales' } }] },
  ),
  response: { 202: Job },
}

export const listJobs = {
  operationId: 'listJobs',
  tags,
  summary: 'List your jobs, newest first',
  description:
    'With `admin:*`, everybody’s. Lists show what is stored and do not ask the runtime. ' +
    'A page ends early where its jobs come to more than 8 MB: `has_more` says whether there are more.',
  querystring: Type.Object(
    {
      ...pageQuery,
      status: Type.Optional(Type.Unsafe<JobStatus>({ type: 'string', enum: [...JOB_STATUSES] })),
      type: Type.Optional(text({ maxLength: 64 })),
      project: Type.Optional(text({ maxLength: 255, description: 'A project’s id.' })),
      project_id: Type.Optional(text({ maxLength: 255, description: 'The same as `project`, by the field’s name.' })),
    },
    { additionalProperties: false },
  ),
  response: { 200: pageOf(Job) },
}

export const getJob = {
  operationId: 'getJob',
  tags,
  summary: 'Get a job',
  description: `A job in status ${inCode(WATCHED_STATUSES)} is first brought up to date with the runtime, within three seconds.`,
  params,
  response: { 200: Job },
}

export const cancelJob = {
  operationId: 'cancelJob',
  tags,
  summary: 'Cancel a job',
  description: '200 when it is cancelled now, 202 when the runtime has yet to confirm it.',
  params,
  response: { 200: Job, 202: Job },
}

export const resumeJob = {
  operationId: 'resumeJob',
  tags,
  summary: 'Answer a job that awaits input',
  params,
  body: Type.Object(
    { input: anyJson('What the graph’s interrupt returns.') },
    { title: 'JobAnswer', additionalProperties: false, examples: [{ input: 'approved' }] },
  ),
  response: { 202: Job },
}

export const listTimeline = {
  operationId: 'listJobTimeline',
  tags,
  summary: 'See what happened to a job, in order',
  params,
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
  response: { 200: pageOf(TimelineEntry) },
}

export const listJobTypes = {
  operationId: 'listJobTypes',
  tags,
  summary: 'List the job types and what their output holds',
  response: { 200: JobTypeList },
}

export const streamJob = {
  operationId: 'streamJobEvents',
  tags: ['Realtime'],
  summary: 'Stream the events of a job',
  description: streamDescription,
  params,
  querystring: Type.Object(streamQuery, { additionalProperties: false }),
  response: streamResponse,
}
