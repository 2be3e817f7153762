import type { EventType, NewEvent } from '../../events/event-store.ts'
import type { SlimJob } from '../job-row.ts'
import { type JobTypes, linkOf } from '../job-types.ts'

/** The event that clients stream about a job. It never holds the input or the output: clients fetch the job. */
export function jobEvent(
  job: SlimJob,
  type: EventType,
  { cause, atMs, types }: { cause: string; atMs: number; types: JobTypes },
): NewEvent {
  const data = {
    job_id: job.id,
    type: job.type,
    status: job.status,
    project_id: job.project_id,
    thread_id: job.thread_id,
    error: job.error_code === null ? null : { code: job.error_code, message: job.error_message },
    settled_by: job.settled_by,
    link: linkOf(types.get(job.type), job),
  }
  return { subject: job.created_by, job_id: job.id, type, cause, data: JSON.stringify(data), created_at: atMs }
}
