import type { components } from './openapi.ts'
import type { FailureCode, Interrupt, Job } from './types.ts'

/** The service's codes, and two of the client: no answer (`network_error`), or an answer of another server. */
export type ErrorCode = components['schemas']['ErrorCode'] | 'network_error' | 'not_project_api'

export interface ApiErrorFields {
  code: ErrorCode
  message: string
  status?: number
  requestId?: string | null
  /** Seconds. */
  retryAfter?: number | null
  cause?: unknown
}

/** The error of every failed request: with either error envelope of the service, or without an answer. */
export class ApiError extends Error {
  override readonly name: string = 'ApiError'
  readonly code: ErrorCode
  /** The HTTP status; 0 when there was no answer. */
  readonly status: number
  /** Quote it when you ask for help. */
  readonly requestId: string | null
  /** Seconds to wait before the next attempt, if the service gave them. */
  readonly retryAfter: number | null

  constructor({ code, message, status = 0, requestId = null, retryAfter = null, cause }: ApiErrorFields) {
    super(message, cause === undefined ? {} : { cause })
    this.code = code
    this.status = status
    this.requestId = requestId
    this.retryAfter = retryAfter
  }
}

/** The answer is not from the service: the `url` is wrong, or a login page or a proxy's error page came instead. */
export class NotProjectApi extends ApiError {
  override readonly name = 'NotProjectApi'

  constructor({ url, status = 200, problem }: { url: string; status?: number; problem: string }) {
    super({ code: 'not_project_api', status, message: `${url} does not answer as Project API: ${problem}` })
  }
}

/** The job has no result. `job` has everything that is known about it. */
abstract class NoResult<Status extends Job['status']> extends Error {
  readonly job: Extract<Job, { status: Status }>

  constructor(message: string, job: Extract<Job, { status: Status }>) {
    super(message)
    this.job = job
  }
}

export class JobFailed extends NoResult<'failed'> {
  override readonly name = 'JobFailed'

  get code(): FailureCode {
    return this.job.error.code
  }
}

export class JobCancelled extends NoResult<'cancelled'> {
  override readonly name = 'JobCancelled'
}

/** The job asks a question and continues after `answer()`. */
export class JobAwaitingInput extends NoResult<'awaiting_input'> {
  override readonly name = 'JobAwaitingInput'

  get interrupts(): readonly Interrupt[] {
    return this.job.interrupts
  }
}

/** `request_timeout` is also the client's own timeout. */
const WORTH_RETRYING = ['network_error', 'request_timeout', 'rate_limit_exceeded', 'service_unavailable']

/** Whether the same request may succeed soon. A spent usage limit lasts until next month. */
export function isTemporary(error: unknown): error is ApiError {
  return error instanceof ApiError && WORTH_RETRYING.includes(error.code)
}

/** Whether waiting may help, once a request has worked: after any server error, or if the token provider fails offline. */
export function mayPass(error: unknown): boolean {
  return !(error instanceof ApiError) || error.status >= 500 || isTemporary(error)
}

const STATUS_OF_PROXIES = new Set([408, 429, 502, 503, 504])

/** Reads the error of an answer that is not 2xx: in the envelope of variant A or B, or from a proxy. */
export function readError(response: Response, text: string): ApiError {
  const { status, url, headers } = response
  const seconds = Number(headers.get('retry-after') ?? Number.NaN)
  const common = {
    status,
    requestId: headers.get('x-request-id'),
    retryAfter: seconds >= 0 ? seconds : null,
  }
  const { code, message } = envelopeIn(text)
  if (typeof code === 'string' && typeof message === 'string') {
    return new ApiError({ ...common, code: code as ErrorCode, message })
  }
  if (!STATUS_OF_PROXIES.has(status)) {
    return new NotProjectApi({ url, status, problem: `status ${status} without an error envelope` })
  }
  const code_ = status === 429 ? 'rate_limit_exceeded' : 'service_unavailable'
  return new ApiError({ ...common, code: code_, message: `The service answered with status ${status}` })
}

function envelopeIn(text: string): { code?: unknown; message?: unknown } {
  const body = parseJson(text) as { error?: object; detail?: object } | undefined
  return body?.error ?? body?.detail ?? {}
}

/** Undefined if the text is not JSON. */
export function parseJson(text: string, parse: (text: string) => unknown = JSON.parse): unknown {
  try {
    return parse(text)
  } catch {
    return undefined
  }
}
