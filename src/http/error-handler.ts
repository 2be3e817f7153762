import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify'
import { ApiError, type ErrorCode } from '../core/errors.ts'
import type { Log } from '../core/log.ts'
import type { Envelope } from './envelope.ts'
import { describeValidationError } from './validation.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** The code of the error that the request was answered with. */
    errorCode?: ErrorCode
  }
}

/** Errors of the framework, with our codes and messages. */
const FRAMEWORK_ERRORS: Record<string, { code: ErrorCode; message: string }> = {
  FST_ERR_CTP_BODY_TOO_LARGE: { code: 'payload_too_large', message: 'Request body is too large' },
  FST_ERR_CTP_INVALID_MEDIA_TYPE: { code: 'unsupported_media_type', message: 'Content-Type must be application/json' },
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: { code: 'invalid_request', message: 'Content-Length does not match the body' },
  FST_ERR_BAD_URL: { code: 'invalid_request', message: 'The path is not a valid URL path' },
  FST_ERR_MAX_PARAM_LENGTH: { code: 'not_found', message: 'No such path' },
}

/** Renders every thrown error, once. An unexpected error is logged in full, and the client sees `Internal error` only. */
export function createErrorHandler({ envelope, log }: { envelope: Envelope; log: Log }) {
  return (error: unknown, request: FastifyRequest, reply: FastifyReply) => {
    const shown = asApiError(error)
    request.errorCode = shown.code
    if (shown.status >= 500) logFailure(log, request, shown)
    // Fastify would close the connection while the client still sends, and the client's system would discard the answer.
    if (shown.code === 'payload_too_large') reply.removeHeader('connection')
    return reply
      .code(shown.status)
      .headers(shown.headers)
      .type('application/json; charset=utf-8')
      .serializer(JSON.stringify)
      .send(envelope.render({ code: shown.code, message: shown.message, requestId: request.id }))
  }
}

function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error
  // JavaScript can throw any value, also undefined.
  const fastifyError = (error ?? {}) as Partial<FastifyError>
  if (fastifyError.validation) return new ApiError('invalid_request', describeValidationError(fastifyError))
  const known = FRAMEWORK_ERRORS[fastifyError.code ?? '']
  if (known) return new ApiError(known.code, known.message)
  const status = fastifyError.statusCode ?? 500
  if (status >= 400 && status < 500)
    return new ApiError('invalid_request', 'The request could not be understood', { cause: error })
  return new ApiError('internal_error', 'Internal error', { cause: error })
}

function logFailure(log: Log, request: FastifyRequest, error: ApiError): void {
  const fields = {
    requestId: request.id,
    method: request.method,
    route: request.routeOptions.url,
    err: error.cause ?? error,
  }
  if (error.code === 'service_unavailable') log.warn(fields, 'request.refused')
  else log.error(fields, 'request.failed')
}
