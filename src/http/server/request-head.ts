import type { IncomingMessage } from 'node:http'
import { ApiError } from '../../core/errors.ts'
import { isLoopbackAuthority } from '../../core/loopback.ts'

/**
 * Finds heads that the parser accepts but that no correct client sends. A proxy before this service might read another
 * of two headers, and so see another host or another length of the body.
 */
export function faultOfHead(raw: IncomingMessage): ApiError | undefined {
  const { headers, rawHeaders } = raw
  if (raw.httpVersionMajor !== 1) return new ApiError('invalid_request', 'The request must be HTTP/1')
  if (headers.host === undefined && raw.httpVersionMinor === 1) {
    return new ApiError('invalid_request', 'headers/host must be given')
  }
  if (countHeader(rawHeaders, 'host') > 1) return new ApiError('invalid_request', 'headers/host must be given once')
  const coding = headers['transfer-encoding']
  if (coding === undefined || coding.toLowerCase() === 'chunked') return undefined
  return new ApiError('invalid_request', 'headers/transfer-encoding must be chunked', {
    headers: { connection: 'close' },
  })
}

/**
 * For a service that only this machine may use. A web page whose host name resolves to loopback (DNS rebinding) could
 * send requests to it from a browser on this machine. Only the `Host` header shows that.
 */
export function faultOfForeignHost({ headers }: IncomingMessage): ApiError | undefined {
  if (isLoopbackAuthority(headers.host)) return undefined
  return new ApiError('invalid_request', 'headers/host must be a loopback name or address')
}

/** Counted in the raw headers: Node keeps the first of some repeated headers and joins others. */
export function countHeader(rawHeaders: readonly string[], name: string): number {
  let count = 0
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const candidate = rawHeaders[i]
    if (candidate?.length === name.length && candidate.toLowerCase() === name) count++
  }
  return count
}
