import { bytesOf } from '../db/bounded-page.ts'
import { Columns, type ColumnTable, initialValues } from '../db/columns.ts'
import { join, type Sql, sql } from '../db/sql.ts'
import type { Evidence, FailureCode, JobStatus, Via } from './job.ts'
import { deadlineFrom, type JobType } from './job-types.ts'
import { IS_UNFINISHED } from './uncommon-jobs.ts'

/** A job as it is stored, in the table `jobs` and, while the runtime is asked about it, in `job_checks`. */
export type JobRow = {
  id: string
  retry_of: string | null
  /** The newest job that repeats this one. It may be deleted. */
  retried_as: string | null
  continues: string | null
  type: string
  status: JobStatus
  input: string | null
  output: string | null
  error_code: FailureCode | null
  error_message: string | null
  project_id: string | null
  created_by: string | null
  /** Who asked for the current run, if that was not the owner. */
  actor: string | null
  /** The scopes of the owner's request for the current run: a JSON list. Null if another principal asked. */
  scopes: string | null
  thread_id: string
  run_id: string | null
  trace_id: string | null
  tracer_trace_id: string | null
  /** The trace context of the request that started the job. Clients never see it. */
  trace_context: string | null
  settled_by: Via | null
  /** `failed`: the output does not fit the schema of the type, or is too large to be checked. */
  output_check: 'failed' | null
  first_hint: Via | null
  /** Seen once at the runtime, and to be confirmed. */
  awaiting_confirmation: Evidence | null
  awaiting_confirmation_since: number | null
  /** Tokens that the graph reported; null for none. */
  input_tokens: number | null
  output_tokens: number | null
  total_tokens: number | null
  run_seq: number
  resume_input: string | null
  resume_questions: string | null
  /** The open questions. Null while the job awaits input: another client of the runtime closed them without a run. */
  interrupts: string | null
  /** What the client configured for the graph: a JSON object. */
  configurable: string | null
  cancel_requested_at: number | null
  checked_at: number | null
  check_attempts: number
  deadline_at: number
  /** When its owner wanted it to start, by the calendar. */
  run_at: number | null
  /** When its owner is reminded of the open question; null once that was done. */
  remind_at: number | null
  /** When the job fails without an answer. */
  answer_by: number | null
  created_at: number
  started_at: number | null
  finished_at: number | null
  updated_at: number
  /** When its documents were erased with its owner. */
  erased_at: number | null
  // Columns of the table `job_checks`.
  start_attempts: number
  next_check_at: number | null
  last_error: string | null
  lease_token: string | null
  lease_until: number | null
  /** The thread on which it waits for its turn. */
  waits_on: string | null
  /** The unfinished job before it, while it waits for its turn. */
  queued_behind: string | null
}

/** In place of an actor who was erased. */
export const ERASED_ACTOR = 'erased'

type OfChecks =
  | 'start_attempts'
  | 'next_check_at'
  | 'last_error'
  | 'lease_token'
  | 'lease_until'
  | 'waits_on'
  | 'queued_behind'
export type StoredJob = Omit<JobRow, OfChecks>

/** The columns of the table `jobs`. Every statement and the values of a new job derive from here. */
const COLUMNS = {
  id: { type: 'text', fixed: true },
  retry_of: { type: 'text', fixed: true, initial: null },
  retried_as: { type: 'text', initial: null },
  continues: { type: 'text', fixed: true, initial: null },
  type: { type: 'text', fixed: true },
  status: { type: 'text', initial: 'processing' },
  input: { type: 'text', fixed: true, large: true },
  output: { type: 'text', large: true, initial: null },
  error_code: { type: 'text', initial: null },
  error_message: { type: 'text', initial: null },
  project_id: { type: 'text' },
  created_by: { type: 'text' },
  actor: { type: 'text', initial: null },
  scopes: { type: 'text', initial: null },
  thread_id: { type: 'text' },
  run_id: { type: 'text' },
  trace_id: { type: 'text', initial: null },
  tracer_trace_id: { type: 'text', initial: null },
  trace_context: { type: 'text', fixed: true, initial: null },
  settled_by: { type: 'text', initial: null },
  output_check: { type: 'text', initial: null },
  first_hint: { type: 'text', initial: null },
  awaiting_confirmation: { type: 'text', initial: null },
  awaiting_confirmation_since: { type: 'bigint', initial: null },
  input_tokens: { type: 'bigint', initial: null },
  output_tokens: { type: 'bigint', initial: null },
  total_tokens: { type: 'bigint', initial: null },
  run_seq: { type: 'bigint', initial: 1 },
  resume_input: { type: 'text', large: true, initial: null },
  resume_questions: { type: 'text', initial: null },
  interrupts: { type: 'text', large: true, initial: null },
  configurable: { type: 'text', large: true, initial: null },
  cancel_requested_at: { type: 'bigint', initial: null },
  checked_at: { type: 'bigint', initial: null },
  check_attempts: { type: 'bigint', initial: 0 },
  deadline_at: { type: 'bigint' },
  run_at: { type: 'bigint', fixed: true, initial: null },
  remind_at: { type: 'bigint', initial: null },
  answer_by: { type: 'bigint', initial: null },
  created_at: { type: 'bigint', fixed: true },
  started_at: { type: 'bigint' },
  finished_at: { type: 'bigint', initial: null },
  updated_at: { type: 'bigint' },
  erased_at: { type: 'bigint', initial: null },
} as const satisfies ColumnTable<StoredJob>

export const JOBS = new Columns<StoredJob>(COLUMNS)

export const STORED_NAMES = Object.keys(COLUMNS) as (keyof StoredJob)[]

/** For a `from`: the jobs, each with its check if it has one. No column has the same name in both tables. */
export const JOBS_WITH_CHECKS = sql`jobs left join job_checks on job_id = id`

/** For a `select` from `JOBS_WITH_CHECKS`. A job that is no longer checked keeps its last check in its own row. */
const CHECK_FIELDS = sql`
  coalesce(last_check_at, checked_at) as checked_at, coalesce(checks, check_attempts) as check_attempts,
  coalesce(starts, 0) as start_attempts, case when waits_on is null then due_at end as next_check_at, last_error,
  lease_id as lease_token, leased_until as lease_until, waits_on, case when waits_on is not null then (
    select max(earlier.id) from jobs as earlier join uncommon_jobs on uncommon_jobs.id = earlier.id
    where earlier.thread_id = jobs.thread_id and earlier.id < jobs.id and ${IS_UNFINISHED}) end as queued_behind`

const { checked_at: _checkedAt, check_attempts: _checkAttempts, ...READ } = COLUMNS
const { resume_input: _resumeInput, ...LISTED } = READ
const { input: _input, output: _output, ...SUMMARY } = LISTED
const { interrupts: _interrupts, configurable: _configurable, ...SLIM } = SUMMARY

/** All fields of a job. */
export const JOB_FIELDS = sql`${new Columns(READ).list}, ${CHECK_FIELDS}`

/** Documents of a job that are larger in sum are fetched on their own. */
export const INLINE_BYTES = 256 * 1024
/** No documents are larger. PostgreSQL compares lengths as numbers of 32 bits. */
export const ANY_BYTES = 2 ** 31 - 1
const DOCUMENT_BYTES = bytesOf(JOBS.large)
/** All fields of a job; its documents are null if they are large. */
export type SizedJob = JobRow & { document_bytes: number }
export const SIZED_JOB_FIELDS = sizedJobFields(INLINE_BYTES)

/** All fields of a job; its documents are null if they have more than `maxBytes`. */
export function sizedJobFields(maxBytes: number): Sql {
  const ifSmall = (document: Sql) => sql`case when ${DOCUMENT_BYTES} <= ${maxBytes} then ${document} end as ${document}`
  return sql`
    ${new Columns(SLIM).list}, ${CHECK_FIELDS}, ${DOCUMENT_BYTES} as document_bytes, ${join(JOBS.large.map(ifSmall), ', ')}`
}

/** What a list reads of a job. */
export type ListedJob = Omit<JobRow, 'resume_input'>
export const JOB_LIST = { list: sql`${new Columns(LISTED).list}, ${CHECK_FIELDS}`, large: new Columns(LISTED).large }
export const JOB_SUMMARIES = {
  list: sql`${new Columns(SUMMARY).list}, ${CHECK_FIELDS}`,
  large: new Columns(SUMMARY).large,
}

/** A job without its documents, which may be large. */
export type SlimJob = Omit<JobRow, 'input' | 'output' | 'resume_input' | 'interrupts' | 'configurable'> & {
  /** 1 if the job has no input, because its run was started elsewhere. */
  is_followed?: number
}
export const SLIM_FIELDS = sql`
  ${new Columns(SLIM).list}, ${CHECK_FIELDS}, case when input is null then 1 else 0 end as is_followed`

/**
 * Whether the thread may have messages of earlier turns. A job that this service started on a new thread has none. The
 * thread of a run that was started elsewhere is not known.
 */
export function isLaterTurn(job: SlimJob & Partial<Pick<JobRow, 'input'>>): boolean {
  return job.continues !== null || job.is_followed === 1 || job.input === null
}

type Given = Pick<JobRow, 'id' | 'input' | 'project_id' | 'created_by' | 'thread_id' | 'run_id'> & {
  continues?: JobRow['continues']
  retry_of?: JobRow['retry_of']
  run_at?: JobRow['run_at']
  trace_context?: JobRow['trace_context']
  actor?: JobRow['actor']
  scopes?: JobRow['scopes']
  configurable?: JobRow['configurable']
}

/** A new job: accepted, its run not yet seen running, its first check due at once. */
export function newJob(type: JobType, given: Given, atMs: number): JobRow {
  return {
    ...initialValues(COLUMNS),
    ...given,
    continues: given.continues ?? null,
    retry_of: given.retry_of ?? null,
    run_at: given.run_at ?? null,
    trace_context: given.trace_context ?? null,
    actor: given.actor ?? null,
    scopes: given.scopes ?? null,
    configurable: given.configurable ?? null,
    type: type.name,
    start_attempts: 0,
    next_check_at: atMs,
    last_error: null,
    lease_token: null,
    lease_until: null,
    waits_on: null,
    queued_behind: null,
    deadline_at: deadlineFrom(atMs, type),
    created_at: atMs,
    started_at: given.run_id === null ? null : atMs,
    updated_at: atMs,
  }
}
