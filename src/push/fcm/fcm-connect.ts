import { type ClientHttp2Session, connect as startHttp2 } from 'node:http2'
import { isIP, type Socket, connect as startTcp } from 'node:net'
import { type SecureContext, connect as startTls, TLSSocket } from 'node:tls'
import type { Attempt } from './fcm-attempts.ts'

export interface Http2Connection {
  session: ClientHttp2Session
  /** Used to end the connection at once: a session waits until the peer closes its side, which may never happen. */
  socket: Socket
}

interface ConnectOptions {
  /** An http URL means HTTP/2 without TLS. */
  url: URL
  /** Null: the certificates that the process trusts. */
  trust: SecureContext | null
  attempt: Attempt
}

/** The peer speaks HTTP/1.1 only. The operator must fix the address, or the proxy in between. */
export class NoHttp2Error extends Error {
  constructor({ host }: URL) {
    super(`${host} does not speak HTTP/2`)
  }
}

/** Resolves with an HTTP/2 session whose limits are known. Rejects when there is no connection, or no HTTP/2. */
export function openHttp2({ url, trust, attempt }: ConnectOptions): Promise<Http2Connection> {
  return new Promise((resolve, reject) => {
    // An HTTP/1.1 server answers in text, which is no HTTP/2 frame.
    const fail = (error: NodeJS.ErrnoException) =>
      reject(error.code === 'ERR_HTTP2_ERROR' ? new NoHttp2Error(url) : error)
    const closedTooSoon = () => reject(new Error('the connection was closed before it was ready'))
    const socket = openSocket(url, trust)
    attempt.onStop((reason) => {
      reject(reason)
      socket.destroy()
    })
    socket.setNoDelay(true)
    socket.on('error', fail)
    socket.once('close', closedTooSoon)
    socket.once(socket instanceof TLSSocket ? 'secureConnect' : 'connect', () => {
      if (socket instanceof TLSSocket && socket.alpnProtocol !== 'h2') {
        reject(new NoHttp2Error(url))
        return socket.destroy()
      }
      const session = startHttp2(url.origin, { createConnection: () => socket, settings: { enablePush: false } })
      session.on('error', fail)
      session.once('close', closedTooSoon)
      // Ready when the provider has sent the number of streams that it allows.
      session.once('remoteSettings', () => resolve({ session, socket }))
    })
  })
}

function openSocket(url: URL, trust: SecureContext | null): Socket {
  const host = url.hostname.replace(/^\[|\]$/g, '')
  if (url.protocol === 'http:') return startTcp({ host, port: Number(url.port || 80) })
  return startTls({
    host,
    port: Number(url.port || 443),
    // With HTTP/1.1 in the list, a peer without HTTP/2 is told apart from one that is down.
    ALPNProtocols: ['h2', 'http/1.1'],
    // SNI cannot carry an IP address. The certificate is still checked against the address.
    ...(isIP(host) === 0 ? { servername: host } : {}),
    ...(trust === null ? {} : { secureContext: trust }),
  })
}
