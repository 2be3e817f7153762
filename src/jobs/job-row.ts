import { Columns, type ColumnTable, initialValues } from '../db/columns.ts'
import type { FailureCode, JobStatus, Via } from './job.ts'
import type { JobType } from './job-types.ts'

/** A job as it is stored. */
export type JobRow = {
  id: string
  retry_of: string | null
  continues: string | null
  type: string
  status: JobStatus
  input: string | null
  output: string | null
  error_code: FailureCode | null
  error_message: string | null
  project_id: string | null
  created_by: string | null
  thread_id: string
  run_id: string | null
  trace_id: string | null
  tracer_trace_id: string | null
  settled_by: Via | null
  first_hint: Via | null
  doubt_code: FailureCode | null
  doubt_at: number | null
  run_seq: number
  start_attempts: number
  resume_input: string | null
  resume_questions: string | null
  interrupts: string | null
  cancel_requested_at: number | null
  checked_at: number | null
  next_check_at: number | null
  check_attempts: number
  last_error: string | null
  lease_token: string | null
  lease_until: number | null
  deadline_at: number
  created_at: number
  started_at: number | null
  finished_at: number | null
  updated_at: number
}

/** The columns of the table `jobs`. Every statement and the values of a new job derive from here. */
const COLUMNS = {
  id: { type: 'text', fixed: true },
  retry_of: { type: 'text', fixed: true, initial: null },
  continues: { type: 'text', fixed: true, initial: null },
  type: { type: 'text', fixed: true },
  status: { type: 'text', initial: 'processing' },
  input: { type: 'text', fixed: true, large: true },
  output: { type: 'text', large: true, initial: null },
  error_code: { type: 'text', initial: null },
  error_message: { type: 'text', initial: null },
  project_id: { type: 'text' },
  created_by: { type: 'text' },
  thread_id: { type: 'text', fixed: true },
  run_id: { type: 'text' },
  trace_id: { type: 'text', initial: null },
  tracer_trace_id: { type: 'text', initial: null },
  settled_by: { type: 'text', initial: null },
  first_hint: { type: 'text', initial: null },
  doubt_code: { type: 'text', initial: null },
  doubt_at: { type: 'bigint', initial: null },
  run_seq: { type: 'bigint', initial: 1 },
  start_attempts: { type: 'bigint', initial: 0 },
  resume_input: { type: 'text', large: true, initial: null },
  resume_questions: { type: 'text', initial: null },
  interrupts: { type: 'text', large: true, initial: null },
  cancel_requested_at: { type: 'bigint', initial: null },
  checked_at: { type: 'bigint', initial: null },
  next_check_at: { type: 'bigint' },
  check_attempts: { type: 'bigint', initial: 0 },
  last_error: { type: 'text', initial: null },
  lease_token: { type: 'text', initial: null },
  lease_until: { type: 'bigint', initial: null },
  deadline_at: { type: 'bigint' },
  created_at: { type: 'bigint', fixed: true },
  started_at: { type: 'bigint' },
  finished_at: { type: 'bigint', initial: null },
  updated_at: { type: 'bigint' },
} as const satisfies ColumnTable<JobRow>

export const JOBS = new Columns<JobRow>(COLUMNS)

const { resume_input: _notShown, ...LISTED } = COLUMNS
const { input: _input, output: _output, ...SUMMARY } = LISTED

/** What a list reads of a job. */
export type ListedJob = Omit<JobRow, 'resume_input'>
export const JOB_LIST = new Columns<ListedJob>(LISTED)
export const JOB_SUMMARIES = new Columns<Omit<ListedJob, 'input' | 'output'>>(SUMMARY)

type Given = Pick<JobRow, 'id' | 'input' | 'project_id' | 'created_by' | 'thread_id' | 'run_id'>

/** A new job: accepted, its run not yet seen running, its first check due at once. */
export function newJob(type: JobType, given: Given, atMs: number): JobRow {
  return {
    ...initialValues(COLUMNS),
    ...given,
    type: type.name,
    next_check_at: atMs,
    deadline_at: atMs + type.deadlineMs,
    created_at: atMs,
    started_at: given.run_id === null ? null : atMs,
    updated_at: atMs,
  }
}
