import { type Static, Type } from 'typebox'
import type { JsonObject } from '../../core/json.ts'
import { jsonDocument, nullableString, nullableTimestamp, timestamp } from '../../http/schemas.ts'
import {
  FAILURE_CODES,
  type FailureCode,
  JOB_STATUSES,
  type JobStatus,
  TERMINAL_STATUSES,
  VIAS,
  type Via,
} from '../job.ts'
import { TIMELINE_KINDS, TIMELINE_VIAS, type TimelineRow } from '../settlement/timeline-store.ts'

export const inCode = (words: readonly string[]) => words.map((word) => `\`${word}\``).join(', ')

export const Job = Type.Object(
  {
    id: Type.String(),
    retry_of: Type.Unsafe<string | null>({ type: ['string', 'null'], description: 'The job that this one repeats.' }),
    continues: Type.Unsafe<string | null>({
      type: ['string', 'null'],
      description: 'The job whose conversation this one continues.',
    }),
    type: Type.String(),
    status: Type.Unsafe<JobStatus>({
      type: 'string',
      enum: [...JOB_STATUSES],
      description: `Final: ${inCode(TERMINAL_STATUSES)}.`,
    }),
    input: jsonDocument({ description: 'The input of its first run.' }),
    output: jsonDocument({ description: 'The result once it is completed; its fields are documented per job type.' }),
    error: Type.Unsafe<{ code: FailureCode; message: string } | null>({
      type: ['object', 'null'],
      properties: { code: { type: 'string', enum: [...FAILURE_CODES] }, message: { type: 'string' } },
      required: ['code', 'message'],
    }),
    interrupts: jsonDocument({ description: 'What the graph asks, while the job awaits input.' }),
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
      { description: 'When the runtime was and will be asked about the run.' },
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
        retry_of: null,
        continues: null,
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

export const JobTypeList = Type.Object(
  { data: Type.Array(JobType) },
  { title: 'JobTypeList', examples: [{ data: [jobTypeExample] }] },
)

export const TimelineEntry = Type.Object(
  {
    id: Type.String(),
    at: timestamp,
    kind: Type.Unsafe<TimelineRow['kind']>({ type: 'string', enum: [...TIMELINE_KINDS] }),
    via: Type.Unsafe<TimelineRow['via']>({ type: ['string', 'null'], enum: [...TIMELINE_VIAS, null] }),
    detail: Type.Unsafe<JsonObject>({ type: 'object', additionalProperties: true }),
    times: Type.Integer({ description: 'How often this entry was repeated in a row.' }),
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
