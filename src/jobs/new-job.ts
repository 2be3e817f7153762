import type { JobRow } from './job.ts'
import type { JobType } from './job-types.ts'

type Given = Pick<JobRow, 'id' | 'input' | 'project_id' | 'created_by' | 'thread_id' | 'run_id'>

/** A job as it first is: accepted, its run not yet seen running, its first look due at once. */
export function newJob(type: JobType, given: Given, atMs: number): JobRow {
  return {
    ...given,
    type: type.name,
    status: 'processing',
    output: null,
    error_code: null,
    error_message: null,
    trace_id: null,
    tracer_trace_id: null,
    settled_by: null,
    run_seq: 1,
    start_attempts: 0,
    resume_input: null,
    interrupts: null,
    cancel_requested_at: null,
    checked_at: null,
    next_check_at: atMs,
    check_attempts: 0,
    last_error: null,
    lease_token: null,
    lease_until: null,
    deadline_at: atMs + type.deadlineMs,
    created_at: atMs,
    started_at: given.run_id === null ? null : atMs,
    finished_at: null,
    updated_at: atMs,
  }
}
