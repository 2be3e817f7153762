import type { Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { ApiError, type ErrorCode } from '../../core/errors.ts'
import type { IdGenerator } from '../../core/ids.ts'
import { type Meter, silentMeter } from '../../core/metrics/meter.ts'
import type { Envelope } from '../envelope.ts'

const REFUSALS: Record<string, { code: ErrorCode; reason: string; message: string }> = {
  ERR_HTTP_REQUEST_TIMEOUT: {
    code: 'request_timeout',
    reason: 'Request Timeout',
    message: 'The request took too long to arrive',
  },
  HPE_HEADER_OVERFLOW: {
    code: 'headers_too_large',
    reason: 'Request Header Fields Too Large',
    message: 'The headers are too large',
  },
}
const MALFORMED = { code: 'invalid_request', reason: 'Bad Request', message: 'The request is not valid HTTP' } as const

export interface ClientErrorOptions {
  envelope: Envelope
  ids: IdGenerator
  answers: LastAnswers
  meter?: Meter
}

/** What never becomes a request (broken HTTP, headers too large, too slow) still gets an envelope, then the line is cut. */
export function createClientErrorHandler({ envelope, ids, answers, meter = silentMeter }: ClientErrorOptions) {
  return (error: Error & { code?: string }, socket: Socket): void => {
    const { code, reason, message } = REFUSALS[error.code ?? ''] ?? MALFORMED
    if (error.code !== 'ECONNRESET') meter.count('http_malformed_requests_total', { code })
    if (error.code === 'ECONNRESET' || !socket.writable) {
      socket.destroy()
      return
    }
    // What was answered before still leaves.
    if (!answers.mayAnswer(socket)) {
      socket.destroySoon()
      return
    }
    const requestId = ids.next('req')
    const body = JSON.stringify(envelope.render({ code, message, requestId }))
    const head = [
      `HTTP/1.1 ${new ApiError(code, message).status} ${reason}`,
      'Content-Type: application/json; charset=utf-8',
      `Content-Length: ${Buffer.byteLength(body)}`,
      `X-Request-Id: ${requestId}`,
      'X-Content-Type-Options: nosniff',
      'Connection: close',
    ]
    socket.end(`${head.join('\r\n')}\r\n\r\n${body}`)
  }
}

/** The last answer begun on each connection, so that no request is ever answered twice. */
export class LastAnswers {
  readonly #bySocket = new WeakMap<Socket, ServerResponse>()

  watch(server: Server): void {
    server.prependListener('request', (request, response) => void this.#bySocket.set(request.socket, response))
  }

  /**
   * A fault belongs to the request that is still arriving; where none is, to one that has not begun. Either may be
   * answered, but not while an earlier one waits for its answer, nor when it has had its own: a refusal may well come
   * before the body it does not want.
   */
  mayAnswer(socket: Socket): boolean {
    const last = this.#bySocket.get(socket)
    if (last === undefined) return true
    return last.req.complete ? last.writableFinished : !last.headersSent
  }
}
