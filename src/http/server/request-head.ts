import type { IncomingMessage } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../core/errors.ts'
import { isLoopbackAuthority } from '../../core/loopback.ts'
import type { App } from '../app-instance.ts'

/** Gives every answer its headers, and refuses a request without a valid head. */
export function checkHeads(app: App, { loopbackOnly = false }: { loopbackOnly?: boolean }): void {
  app.addHook('onRequest', (request, reply, done) => {
    setAnswerHeaders(request, reply)
    done(faultOfHead(request.raw) ?? (loopbackOnly ? faultOfForeignHost(request.raw) : undefined))
  })
}

export function setAnswerHeaders(request: FastifyRequest, reply: FastifyReply): void {
  reply.header('x-request-id', request.id).header('x-content-type-options', 'nosniff')
}

/**
 * Finds heads that the parser accepts but that no correct client sends. If a header is repeated, a proxy in front of this
 * service might use the other one, and so see another host or another body length.
 */
function faultOfHead(raw: IncomingMessage): ApiError | undefined {
  const { headers, rawHeaders } = raw
  if (raw.httpVersionMajor !== 1) return new ApiError('invalid_request', 'The request must be HTTP/1')
  if (headers.host === undefined && raw.httpVersionMinor === 1) {
    return new ApiError('invalid_request', 'headers/host must be given')
  }
  if (!hasReadableQuery(raw.url ?? '')) {
    return new ApiError('invalid_request', 'The query is not a valid URL query')
  }
  if (countHeader(rawHeaders, 'host') > 1) return new ApiError('invalid_request', 'headers/host must be given once')
  const coding = headers['transfer-encoding']
  if (coding === undefined || coding.toLowerCase() === 'chunked') return undefined
  return new ApiError('invalid_request', 'headers/transfer-encoding must be chunked', {
    headers: { connection: 'close' },
  })
}

/** The framework refuses a path that cannot be decoded, but keeps such a query as it came. */
function hasReadableQuery(url: string): boolean {
  const start = url.indexOf('?')
  if (start < 0 || !url.includes('%', start)) return true
  try {
    decodeURIComponent(url.slice(start))
    return true
  } catch {
    return false
  }
}

/**
 * For a service that only this machine may use. With DNS rebinding, a web page in a browser on this machine could send
 * requests to it. Only the `Host` header reveals that.
 */
function faultOfForeignHost({ headers }: IncomingMessage): ApiError | undefined {
  if (isLoopbackAuthority(headers.host)) return undefined
  return new ApiError('invalid_request', 'headers/host must be a loopback name or address')
}

/** Counts in the raw headers, because Node keeps only the first of some repeated headers and joins others. */
export function countHeader(rawHeaders: readonly string[], name: string): number {
  let count = 0
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const candidate = rawHeaders[i]
    if (candidate?.length === name.length && candidate.toLowerCase() === name) count++
  }
  return count
}
