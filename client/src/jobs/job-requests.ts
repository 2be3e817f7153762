import { NotProjectApi } from '../errors.ts'
import { type Connection, idempotency, type RequestOptions } from '../http/connection.ts'
import type { CallOptions } from '../resources/pages.ts'
import type { SharedEvents } from '../streams/shared-events.ts'
import type { Job } from '../types.ts'

/** The connection and the event stream that all parts of one client share. */
export interface ClientContext {
  connection: Connection
  events: SharedEvents
}

/** `Configurable`: the type of the configuration that the job type allows. */
export interface AnswerOptions<Configurable = Record<string, unknown>> extends CallOptions {
  /** Values for the graph, such as a model or a language. The job type must have a `configurable_schema`. */
  configurable?: Configurable | undefined
}

export interface StartOptions<Configurable = Record<string, unknown>> extends AnswerOptions<Configurable> {
  /** The project of the job. */
  projectId?: string
  /** The user who owns the job. Needs `admin:*`. */
  createdBy?: string
  /** When the job starts, at most 30 days ahead. Default: now. A followed run has started already. */
  runAt?: Date
  /**
   * Calls with the same key start one job, even after a restart of your program. 1 to 255 visible ASCII characters. Default:
   * a new key for each call.
   */
  idempotencyKey?: string
}

export interface ContinueOptions<Configurable = Record<string, unknown>> extends StartOptions<Configurable> {
  /**
   * What happens while a turn of the conversation is unfinished. `reject`: a `conflict`. `enqueue`: the new turn waits.
   * `interrupt`: the unfinished turns are cancelled first, so it does not fit `runAt`. Default: `reject`.
   */
  onBusy?: 'reject' | 'enqueue' | 'interrupt'
}

export interface Work {
  type: string
  input?: unknown
  /** The job whose conversation is continued. */
  continues?: string
  on_busy?: 'reject' | 'enqueue' | 'interrupt' | undefined
  thread_id?: string
  run_id?: string
}

export const pathOf = (id: string) => `/jobs/${encodeURIComponent(id)}`

/** Sends a request whose answer is a job. Checks the answer, because another server may answer at this address. */
export async function requestJob(
  { connection }: ClientContext,
  method: 'GET' | 'POST' | 'PATCH',
  path: string,
  options: RequestOptions & { recover?: () => Promise<{ body: Job } | undefined> } = {},
): Promise<Job> {
  const { body } = await connection.send<Job>(method, path, options)
  if (typeof body.id === 'string' && typeof body.status === 'string') return body
  throw new NotProjectApi({ url: path, problem: 'the body is not a job' })
}

/** Creates one job, however often the request is sent. */
export function startJob(context: ClientContext, work: Work, options: StartOptions<unknown>): Promise<Job> {
  const { configurable, projectId, createdBy, runAt, idempotencyKey, signal } = options
  const body = { ...work, configurable, project_id: projectId, created_by: createdBy, run_at: runAt?.toISOString() }
  return requestJob(context, 'POST', '/jobs', { body, headers: idempotency(idempotencyKey), signal })
}
