/** Every error that a client can see has one stable code. The HTTP status follows from the code. */
export const STATUS_BY_CODE = {
  invalid_request: 400,
  unauthorized: 401,
  forbidden: 403,
  not_found: 404,
  method_not_allowed: 405,
  request_timeout: 408,
  conflict: 409,
  precondition_failed: 412,
  payload_too_large: 413,
  unsupported_media_type: 415,
  idempotency_key_reused: 422,
  rate_limit_exceeded: 429,
  usage_limit_exceeded: 429,
  headers_too_large: 431,
  internal_error: 500,
  service_unavailable: 503,
} as const

export type ErrorCode = keyof typeof STATUS_BY_CODE

interface ApiErrorOptions {
  cause?: unknown
  /** Extra response headers, such as `Retry-After` or `Allow`. */
  headers?: Record<string, string>
}

/** `message` is for the client, `cause` for the log. */
export class ApiError extends Error {
  readonly code: ErrorCode
  readonly headers: Record<string, string>

  constructor(code: ErrorCode, message: string, options: ApiErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.name = 'ApiError'
    this.code = code
    this.headers = options.headers ?? {}
  }

  get status(): number {
    return STATUS_BY_CODE[this.code]
  }
}

/** The owner has as many records as it may have at once. A new one is possible when one of them has ended or is deleted. */
export class QuotaExceeded extends ApiError {
  constructor(limit: number, records: string) {
    super('usage_limit_exceeded', `The limit of ${limit} ${records} is reached`, { headers: { 'retry-after': '60' } })
    this.name = 'QuotaExceeded'
  }
}

/** A dependency (database, identity provider, …) is unavailable; the client should retry shortly. */
export class UnavailableError extends ApiError {
  constructor(message: string, options: { cause?: unknown; retryAfterSeconds?: number } = {}) {
    super('service_unavailable', message, {
      cause: options.cause,
      headers: { 'retry-after': String(options.retryAfterSeconds ?? 1) },
    })
    this.name = 'UnavailableError'
  }
}

/** One line for any error. A refused dual-stack connection is an AggregateError without a message, so its code is used. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.message || (error as NodeJS.ErrnoException).code || error.name
}
