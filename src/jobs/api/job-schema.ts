import { type Static, Type } from 'typebox'
import type { JsonObject } from '../../core/json.ts'
import { eventSchema } from '../../events/event-schema.ts'
import { EVENT_TYPES } from '../../events/event-store.ts'
import { onePage, pageOf } from '../../http/paging.ts'
import { jsonDocument, nullableObject, nullableTextField, nullableTimeField, timeField } from '../../http/schemas.ts'
import {
  FAILURE_CODES,
  type FailureCode,
  JOB_STATUSES,
  type JobStatus,
  TERMINAL_STATUSES,
  VIAS,
  type Via,
} from '../job.ts'
import { LIVE_MODES, type LiveMode } from '../job-types.ts'
import type { SchemaJson } from '../schemas/document-schema.ts'
import { TIMELINE_KINDS, TIMELINE_VIAS, type TimelineRow } from '../settlement/timeline-store.ts'

const started = {
  id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc',
  retry_of: null,
  retried_as: null,
  continues: null,
  queued_behind: null,
  run_at: null,
  answer_by: null,
  type: 'report',
  status: 'processing',
  input: { topic: 'sales' },
  output: null,
  error: null,
  interrupts: null,
  configurable: null,
  project_id: null,
  created_by: '8f14e45f-ceea-467f-a0e6-000000000001',
  actor: null,
  thread_id: '9a4bcb3e-4d5c-4b9e-8f00-000000000001',
  run_id: null,
  trace_id: null,
  tracer_trace_id: null,
  settled_by: null,
  reconcile: { checked_at: null, next_at: '2026-01-31T12:00:05.000Z', attempts: 0, last_error: null },
  created_at: '2026-01-31T12:00:00.000Z',
  started_at: null,
  finished_at: null,
  updated_at: '2026-01-31T12:00:00.000Z',
}
const generating = {
  ...started,
  status: 'generating',
  run_id: '1efcf3a0-0000-6000-8000-000000000001',
  started_at: '2026-01-31T12:00:00.100Z',
  updated_at: '2026-01-31T12:00:00.100Z',
}
const ended = {
  ...generating,
  reconcile: { ...started.reconcile, next_at: null },
  finished_at: '2026-01-31T12:00:09.000Z',
  updated_at: '2026-01-31T12:00:09.000Z',
}

/** Example jobs, one for each request that answers with a job. */
export const JOB_EXAMPLES = {
  started,
  generating,
  cancelled: { ...ended, status: 'cancelled' },
  completed: { ...ended, status: 'completed', output: { title: 'done', n: 42 }, settled_by: 'callback' },
}

const inCode = (words: readonly string[]) => words.map((word) => `\`${word}\``).join(', ')

export const jobStatus = Type.Unsafe<JobStatus>({
  title: 'JobStatus',
  type: 'string',
  enum: [...JOB_STATUSES],
  description: `Final: ${inCode(TERMINAL_STATUSES)}.`,
})

const JobError = Type.Object(
  {
    code: Type.Unsafe<FailureCode>({
      title: 'JobErrorCode',
      type: 'string',
      enum: [...FAILURE_CODES],
      description: 'Stable; branch on this, not on the message.',
    }),
    message: Type.String({ description: 'What went wrong, for a person to read.' }),
  },
  { title: 'JobError', description: 'Why a job failed.' },
)

const jobError = nullableObject(JobError, 'Why it failed; null otherwise.')

const settledBy = Type.Unsafe<Via | null>({
  type: ['string', 'null'],
  enum: [...VIAS, null],
  description: 'What revealed first that the run had ended.',
})

/** A question as the runtime sends it. It may have more fields. */
export const Interrupt = Type.Object(
  {
    id: Type.Optional(Type.String({ description: 'The key of its answer in `answers`. Older runtimes give none.' })),
    value: Type.Optional(Type.Unknown({ description: 'What the graph asks: any JSON.' })),
  },
  { title: 'Interrupt', description: 'One question of the graph.', additionalProperties: true },
)

export const Job = Type.Object(
  {
    id: Type.String({ description: 'Begins with `job_`.' }),
    retry_of: nullableTextField('The job that this one repeats.'),
    retried_as: nullableTextField('The newest job that repeats this one, also if that job was deleted since.'),
    continues: nullableTextField('The job whose conversation this one continues.'),
    queued_behind: nullableTextField('The unfinished job before it, while it waits for its turn; null otherwise.'),
    run_at: nullableTimeField('When it was to start; null: at once.'),
    answer_by: nullableTimeField(
      'While the job awaits input: it fails with `answer_expired` if it is not answered before. Null: at no time.',
    ),
    type: Type.String({ description: 'Its job type.' }),
    status: jobStatus,
    input: jsonDocument({ description: 'The input of its first run.' }),
    output: jsonDocument({ description: 'The result once it is completed; its fields are documented per job type.' }),
    error: jobError,
    interrupts: jsonDocument({
      type: ['array', 'null'],
      items: Interrupt,
      description: 'What the graph asks, while the job awaits input. Empty: it waits to be continued. Null otherwise.',
    }),
    configurable: jsonDocument({
      type: ['object', 'null'],
      additionalProperties: true,
      description: 'What the client configured for the graph; null: nothing.',
    }),
    project_id: nullableTextField('The project it belongs to.'),
    created_by: nullableTextField('The user or service account that owns it; null: only admins see it.'),
    actor: nullableTextField('The user or service account that asked for its newest run, if that was not the owner.'),
    thread_id: Type.String({
      description:
        'The runtime’s id of the conversation. It changes if the start of the first turn has to be repeated.',
    }),
    run_id: nullableTextField('The runtime’s id of its newest run; null before the first one.'),
    trace_id: nullableTextField('The trace id that the graph reported.'),
    tracer_trace_id: nullableTextField('The id of the trace in the tracing tool, as the graph reported it.'),
    settled_by: settledBy,
    reconcile: Type.Object(
      {
        checked_at: nullableTimeField('When the runtime was last asked.'),
        next_at: nullableTimeField('When it will be asked next, unless a callback comes first.'),
        attempts: Type.Integer({ description: 'The number of checks in a row without a change.' }),
        last_error: nullableTextField(
          'Why the last check failed, or that the question was answered elsewhere; null otherwise.',
        ),
      },
      {
        title: 'Reconciliation',
        description: 'When the service checked the run at the runtime, and when it will check again.',
      },
    ),
    created_at: timeField('When it was created.'),
    started_at: nullableTimeField(
      'When the runtime accepted its first run. The run may still have waited for a worker of the runtime.',
    ),
    finished_at: nullableTimeField('When it ended.'),
    updated_at: timeField('When it last changed.'),
  },
  {
    title: 'Job',
    examples: [JOB_EXAMPLES.completed],
  },
)
export type Job = Static<typeof Job>

export const JobEvent = eventSchema({
  title: 'JobEvent',
  types: EVENT_TYPES.filter((type) => type.startsWith('job.')),
  description: 'A job has changed. Input and output are not in it: get the job.',
  data: Type.Object(
    {
      job_id: Type.String({ description: 'The job.' }),
      type: Type.String({ description: 'Its job type.' }),
      status: jobStatus,
      project_id: nullableTextField('The project it belongs to.'),
      thread_id: Type.String({ description: 'Its conversation.' }),
      error: jobError,
      settled_by: settledBy,
      link: nullableTextField('Where a client shows the job: the `link` of its type, with the ids of the job.'),
    },
    { title: 'JobEventData', description: 'The state of the job after the change.' },
  ),
})

export const jobEventExample = {
  id: '7',
  type: 'job.completed',
  created_at: '2026-01-31T12:00:09.000Z',
  data: {
    job_id: JOB_EXAMPLES.completed.id,
    type: 'report',
    status: 'completed',
    project_id: null,
    thread_id: JOB_EXAMPLES.completed.thread_id,
    error: null,
    settled_by: 'callback',
    link: `https://app.example.com/jobs/${JOB_EXAMPLES.completed.id}`,
  },
}

const schemaField = (description: string, without = 'anything') =>
  Type.Unsafe<SchemaJson | null>({
    type: ['object', 'boolean', 'null'],
    additionalProperties: true,
    description: `${description} JSON Schema, draft 2020-12; null: ${without}.`,
  })

const jobTypeExample = {
  name: 'report',
  description: 'Writes a report',
  assistant_id: 'report',
  output_key: 'report',
  may_pause: false,
  deadline_seconds: 3600,
  max_running: null,
  max_running_per_owner: null,
  answer_within_seconds: null,
  remind_after_seconds: null,
  live: ['messages', 'custom'],
  output_fields: { title: 'What it is called' },
  input_schema: { type: 'object', properties: { title: { type: 'string' } }, required: ['title'] },
  output_schema: null,
  resume_schema: null,
  configurable_schema: null,
}

const JobType = Type.Object(
  {
    name: Type.String({ description: 'The `type` of its jobs.' }),
    description: nullableTextField('What a job of this type does.'),
    assistant_id: Type.String({ description: 'The assistant or graph of the runtime that runs it.' }),
    output_key: Type.Unsafe<string | null>({
      type: ['string', 'null'],
      description: 'A key or JSON Pointer into the graph’s values; null is the last assistant message.',
    }),
    may_pause: Type.Boolean({ description: 'Whether its jobs may await input.' }),
    deadline_seconds: Type.Integer({ description: 'A job that takes longer fails with `deadline_exceeded`.' }),
    max_running: Type.Union([Type.Integer(), Type.Null()], {
      description: 'How many of its runs are active at once; further jobs wait. Null is any number.',
    }),
    max_running_per_owner: Type.Union([Type.Integer(), Type.Null()], {
      description: 'How many runs of one owner are active at once; further jobs wait. Null is any number.',
    }),
    answer_within_seconds: Type.Union([Type.Integer(), Type.Null()], {
      description: 'A question that is open for longer fails its job with `answer_expired`. Null is any time.',
    }),
    remind_after_seconds: Type.Union([Type.Integer(), Type.Null()], {
      description: 'After this time the owner is reminded of an open question, once. Null is never.',
    }),
    live: Type.Array(Type.Unsafe<LiveMode>({ type: 'string', enum: [...LIVE_MODES] }), {
      description:
        'The parts of a run that `GET /jobs/{id}/live` shows in addition to the names of its steps. Empty: only its end.',
    }),
    output_fields: Type.Record(Type.String(), Type.String(), { description: 'What each field of the output means.' }),
    input_schema: schemaField('The schema that `input` of its jobs must match.'),
    output_schema: schemaField(
      'The schema of `output` of its jobs. An output that does not match is kept, and the timeline records that.',
    ),
    resume_schema: schemaField('The schema that each answer to its questions must match.'),
    configurable_schema: schemaField('The schema that `configurable` must match.', 'not allowed'),
  },
  {
    title: 'JobType',
    examples: [jobTypeExample],
  },
)

export const JobTypeList = Type.Object(
  { ...pageOf(JobType).properties, data: Type.Array(JobType, { description: 'Every job type, by name.' }) },
  { title: 'JobTypeList', examples: [onePage([jobTypeExample])] },
)

export const TimelineEntry = Type.Object(
  {
    id: Type.String({ description: 'Begins with `tml_`.' }),
    at: timeField('When it happened.'),
    kind: Type.Unsafe<TimelineRow['kind']>({
      title: 'TimelineKind',
      type: 'string',
      enum: [...TIMELINE_KINDS],
      description: 'What happened.',
    }),
    via: Type.Unsafe<TimelineRow['via']>({
      type: ['string', 'null'],
      enum: [...TIMELINE_VIAS, null],
      description: 'What caused it; null: the service itself, or the owner.',
    }),
    detail: Type.Unsafe<JsonObject>({
      type: 'object',
      additionalProperties: true,
      description: 'Details; the fields depend on `kind`.',
    }),
    times: Type.Integer({ description: 'How often this entry was repeated in a row.' }),
    last_at: timeField('When it was last repeated.'),
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
