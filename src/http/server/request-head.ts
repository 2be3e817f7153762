import type { IncomingMessage } from 'node:http'
import { ApiError } from '../../core/errors.ts'
import { isLoopbackAuthority } from '../../core/loopback.ts'

/**
 * What the parser lets pass and no honest client sends: whom or how much a proxy before us took the request for must not
 * depend on which of two headers it read.
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
 * For a service that only this machine may use: a page in a browser here reaches it under its own name once its DNS
 * points to loopback (DNS rebinding), and only the `Host` header shows that.
 */
export function faultOfForeignHost({ headers }: IncomingMessage): ApiError | undefined {
  if (isLoopbackAuthority(headers.host)) return undefined
  return new ApiError('invalid_request', 'headers/host must be a loopback name or address')
}

/** Node keeps the first of some, joins others, and hides that there were more. */
export function countHeader(rawHeaders: readonly string[], name: string): number {
  let count = 0
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const candidate = rawHeaders[i]
    if (candidate?.length === name.length && candidate.toLowerCase() === name) count++
  }
  return count
}
