import type { IncomingMessage } from 'node:http'
import { isLoopbackAddress, isLoopbackAuthority } from '../../core/loopback.ts'

/** The headers that proxies add to a request: `Forwarded`, `X-Forwarded-…`, `Via`, `X-Real-IP`, `True-Client-IP` and so on. */
const FORWARDING = /forwarded|^via$|-(?:client)?ip$/

/**
 * Whether a request was sent on this machine. A proxy on this machine connects from a loopback address too, so a request
 * that names another host or has a header of a proxy does not count.
 */
export function isFromThisMachine({ socket, headers }: Pick<IncomingMessage, 'socket' | 'headers'>): boolean {
  if (!isLoopbackAddress(socket.remoteAddress) || !isLoopbackAuthority(headers.host)) return false
  return !Object.keys(headers).some((name) => FORWARDING.test(name))
}
