import type { IncomingHttpHeaders, Server } from 'node:http'
import type { Http2SecureServer } from 'node:http2'
import type { AddressInfo } from 'node:net'
import { isLoopbackAuthority, isLoopbackHost } from '../core/loopback.ts'

/** The path of the fault settings was `/sandbox/dials` once. Both work. */
export const FORMER_FAULTS_PATH = /^\/sandbox\/dials$/

/** Starts a sandbox server on this machine only. Rejects for any other address, and when the port is taken. */
export async function listenOnLoopback(
  server: Server | Http2SecureServer,
  { host, port }: { host: string; port: number },
): Promise<void> {
  if (!isLoopbackHost(host)) throw new Error(`The sandbox listens on loopback only, not on ${host}`)
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

/** Host and port, as in a URL. */
export function authorityOf(server: Server | Http2SecureServer, host: string): string {
  const { port } = server.address() as AddressInfo
  return `${host.includes(':') ? `[${host}]` : host}:${port}`
}

/**
 * Whether a request comes from a web page of another origin, or by a name that is not this machine's. A page that the
 * developer happens to have open must not be able to control the sandbox.
 */
export function isForeign({ host, origin }: { host?: string | undefined; origin?: string | undefined }): boolean {
  if (!isLoopbackAuthority(host)) return true
  return origin !== undefined && origin !== `http://${host}` && origin !== `https://${host}`
}

/**
 * Whether a web page of another site sends the request: its host, its origin or the browser itself says so. Pages of this
 * machine are welcome, whatever their port, and so is a link to a page from anywhere.
 */
export function isFromOtherSite(headers: IncomingHttpHeaders): boolean {
  const { host, origin } = headers
  if (!isLoopbackAuthority(host)) return true
  if (origin !== undefined) return !isLoopbackOrigin(origin)
  return headers['sec-fetch-site'] === 'cross-site' && headers['sec-fetch-mode'] !== 'navigate'
}

function isLoopbackOrigin(origin: string): boolean {
  const { protocol = '', hostname = '' } = URL.parse(origin) ?? {}
  return /^https?:$/.test(protocol) && isLoopbackHost(hostname)
}
