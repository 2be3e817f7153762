import { Server as HttpServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo, Server } from 'node:net'
import { isLoopbackAuthority, isLoopbackHost } from '../core/loopback.ts'

const KEEP_ALIVE_MS = 72_000

/**
 * Starts a sandbox server on this machine only. Rejects for any other address. If the port is in use, it rejects too,
 * unless `anyIfTaken` is set.
 */
export async function listenOnLoopback(
  server: Server,
  { host, port, anyIfTaken = false }: { host: string; port: number; anyIfTaken?: boolean | undefined },
): Promise<void> {
  if (!isLoopbackHost(host)) throw new Error(`The sandbox listens on loopback only, not on ${host}`)
  // Node closes an idle connection after 5 s. A busy client may send its next request at that moment and lose it.
  if (server instanceof HttpServer) server.keepAliveTimeout = KEEP_ALIVE_MS
  await listen(server, host, port).catch((error: NodeJS.ErrnoException) => {
    if (!anyIfTaken || error.code !== 'EADDRINUSE') throw error
    return listen(server, host, 0)
  })
}

async function listen(server: Server, host: string, port: number): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

/** Host and port, as in a URL. */
export function authorityOf(server: Server, host: string): string {
  const { port } = server.address() as AddressInfo
  return `${host.includes(':') ? `[${host}]` : host}:${port}`
}

/**
 * Whether a request comes from a web page of another origin, or uses a host name that is not this machine's. A web page in
 * the developer's browser must not control the sandbox.
 */
export function isForeign({ host, origin }: { host?: string | undefined; origin?: string | undefined }): boolean {
  if (!isLoopbackAuthority(host)) return true
  return origin !== undefined && origin !== `http://${host}` && origin !== `https://${host}`
}

/**
 * Whether a web page of another site sent the request, by its host, its origin or the browser's fetch metadata. Pages of
 * this machine may send requests from any port, and any site may link to a page.
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
