import { toRfc3339 } from '../../core/clock.ts'
import { JsonText, writeJson } from '../../core/json/json-text.ts'
import type { JsonObject } from '../../core/json.ts'
import { CHECK_ERRORS } from '../../runtime/check-errors.ts'
import type { JobRow, ListedJob } from '../job-row.ts'
import type { JobType } from '../job-types.ts'
import type { PauseRow } from '../settlement/pause-store.ts'
import type { TimelineRow } from '../settlement/timeline-store.ts'
import type { Pause } from './conversation-operations.ts'
import type { Job, TimelineEntry } from './job-schema.ts'

/** A job as clients see it. */
export function toJob(row: ListedJob): Job {
  return {
    id: row.id,
    retry_of: row.retry_of,
    retried_as: row.retried_as,
    continues: row.continues,
    queued_behind: row.queued_behind,
    run_at: orNull(row.run_at, toRfc3339),
    answer_by: orNull(row.answer_by, toRfc3339),
    type: row.type,
    status: row.status,
    input: toDocument(row.input),
    output: toDocument(row.output),
    error: row.error_code === null ? null : { code: row.error_code, message: row.error_message ?? '' },
    interrupts: toDocument(isAnsweredElsewhere(row) ? '[]' : row.interrupts),
    configurable: toDocument(row.configurable),
    project_id: row.project_id,
    created_by: row.created_by,
    actor: row.actor,
    thread_id: row.thread_id,
    run_id: row.run_id,
    trace_id: row.trace_id,
    tracer_trace_id: row.tracer_trace_id,
    settled_by: row.settled_by,
    reconcile: {
      checked_at: orNull(row.checked_at, toRfc3339),
      next_at: orNull(row.next_check_at, toRfc3339),
      attempts: row.check_attempts,
      last_error: row.last_error ?? (isAnsweredElsewhere(row) ? CHECK_ERRORS.answered_elsewhere : null),
    },
    created_at: toRfc3339(row.created_at),
    started_at: orNull(row.started_at, toRfc3339),
    finished_at: orNull(row.finished_at, toRfc3339),
    updated_at: toRfc3339(row.updated_at),
  }
}

/** What is kept of an answer for an `Idempotency-Key`: the documents, which may be large, are stored with the job only. */
export function withoutDocuments(job: Job): Job {
  const none = toDocument(null)
  return { ...job, input: none, output: none, interrupts: none, configurable: none }
}

/** The kept answer with the documents of its job. Output and questions are shown only in the status that had them. */
export function withDocuments(kept: string, row: JobRow): string {
  const first = JSON.parse(kept) as Job
  const { input, output, interrupts, configurable, status } = toJob(row)
  return writeJson({ ...first, input, configurable, ...(status === first.status && { output, interrupts }) })
}

/** Its questions were closed at the runtime, and no run followed. */
function isAnsweredElsewhere({ status, interrupts }: ListedJob): boolean {
  return status === 'awaiting_input' && interrupts === null
}

export function toPause({ run_seq, questions, answers, answered_at }: PauseRow): Pause {
  return {
    run: run_seq,
    questions: toDocument(questions),
    answers: toDocument(answers),
    answered_at: orNull(answered_at, toRfc3339),
  }
}

export function toTimelineEntry(entry: TimelineRow): TimelineEntry {
  return {
    id: entry.id,
    at: toRfc3339(entry.at),
    kind: entry.kind,
    via: entry.via,
    detail: JSON.parse(entry.detail) as JsonObject,
    times: entry.times,
    last_at: toRfc3339(entry.last_at),
  }
}

export function toJobType(type: JobType) {
  return {
    name: type.name,
    description: type.description,
    assistant_id: type.assistantId,
    output_key: type.outputKey,
    may_pause: type.mayPause,
    deadline_seconds: type.deadlineMs / 1000,
    max_running: type.maxRunning,
    max_running_per_owner: type.maxRunningPerOwner,
    answer_within_seconds: orNull(type.answerWithinMs, toSeconds),
    remind_after_seconds: orNull(type.remindAfterMs, toSeconds),
    live: [...type.live],
    output_fields: type.outputFields,
    input_schema: type.inputSchema?.json ?? null,
    output_schema: type.outputSchema?.json ?? null,
    resume_schema: type.resumeSchema?.json ?? null,
    configurable_schema: type.configurableSchema?.json ?? null,
  }
}

function toDocument(text: string | null): JsonText {
  return new JsonText(text ?? 'null')
}

function toSeconds(ms: number): number {
  return ms / 1000
}

function orNull<T, U>(value: T | null, convert: (value: T) => U): U | null {
  return value === null ? null : convert(value)
}
