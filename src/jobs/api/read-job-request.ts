import type { FastifyRequest } from 'fastify'
import { principalId } from '../../auth/principal.ts'
import { ADMIN_SCOPE } from '../../auth/scopes.ts'
import { ApiError } from '../../core/errors.ts'
import type { JsonText } from '../../core/json/json-text.ts'
import { callerOf, insufficientScope } from '../../http/gate/access.ts'
import type { OnBusy } from '../actions/conversation.ts'
import type { NewJobRequest } from '../actions/jobs.ts'
import type { GivenAnswer } from '../answers.ts'
import { askerOf } from '../runs/caller.ts'
import { isAdmin } from './job-access.ts'

interface NewJobBody {
  type: string
  input?: JsonText
  configurable?: JsonText
  thread_id?: string
  run_id?: string
  continues?: string
  on_busy?: OnBusy
  run_at?: string
  project_id?: string | null
  created_by?: string
}

/** A request whose body is well-formed. Its type, its project and its run are not checked yet. */
export type GivenJob = Omit<NewJobRequest, 'type'> & { type: string }

export function readNewJob(request: FastifyRequest, body: NewJobBody): GivenJob {
  if (body.created_by !== undefined && !isAdmin(request)) throw insufficientScope([ADMIN_SCOPE])
  return {
    type: body.type,
    createdBy: body.created_by ?? principalId(callerOf(request)),
    asker: askerOf(callerOf(request)),
    projectId: body.project_id ?? null,
    byAdmin: isAdmin(request),
    work: readWork(body),
  }
}

function readWork(body: NewJobBody): NewJobRequest['work'] {
  const { input, configurable, thread_id, run_id, continues, on_busy, run_at } = body
  const follows = thread_id !== undefined || run_id !== undefined
  if (input !== undefined && follows) {
    throw new ApiError('invalid_request', 'body must have either "input" or "thread_id" and "run_id", not both')
  }
  if (continues !== undefined && (input === undefined || input.text === 'null')) {
    // On a thread that waits at a breakpoint, an input of null would continue the previous turn.
    throw new ApiError('invalid_request', 'body/continues needs the field "input", which must not be null')
  }
  if (on_busy !== undefined && continues === undefined) {
    throw new ApiError('invalid_request', 'body/on_busy needs the field "continues"')
  }
  if (configurable !== undefined && input === undefined) {
    throw new ApiError(
      'invalid_request',
      'body/configurable needs the field "input": a run started elsewhere has its own',
    )
  }
  if (run_at !== undefined && input === undefined) {
    throw new ApiError('invalid_request', 'body/run_at needs the field "input"')
  }
  if (run_at !== undefined && on_busy === 'interrupt') {
    throw new ApiError('invalid_request', 'body/on_busy must not be "interrupt" with "run_at": nothing starts now')
  }
  if (input !== undefined) {
    const turn = { continues: continues ?? null, ...(on_busy && { onBusy: on_busy }) }
    const runAt = run_at === undefined ? {} : { runAtMs: Date.parse(run_at) }
    return { input, ...turn, ...(configurable && { configurable }), ...runAt }
  }
  if (thread_id !== undefined && run_id !== undefined) {
    return { threadId: thread_id.toLowerCase(), runId: run_id.toLowerCase() }
  }
  throw new ApiError('invalid_request', 'body must have the field "input", or "thread_id" and "run_id"')
}

export function readGivenAnswer({ input, answers }: { input?: JsonText; answers?: JsonText }): GivenAnswer {
  if (input !== undefined && answers !== undefined) {
    throw new ApiError('invalid_request', 'body must have either "input" or "answers", not both')
  }
  if (input !== undefined) return { input }
  if (answers === undefined) throw new ApiError('invalid_request', 'body must have the field "input", or "answers"')
  return { answers }
}
