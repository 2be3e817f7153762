import { type ClientHttp2Session, connect as startHttp2 } from 'node:http2'
import { connect as startTls, type TLSSocket } from 'node:tls'
import type { Attempt } from './fcm-attempts.ts'
import { hostOf, type TlsOptions } from './fcm-transport.ts'

export interface Http2Connection {
  session: ClientHttp2Session
  /** Used to end the connection at once: a session waits until the peer closes its side, which may never happen. */
  socket: TLSSocket
}

export interface ConnectOptions {
  url: URL
  tls: TlsOptions
  attempt: Attempt
}

/**
 * Opens a TLS connection and lets the provider choose the protocol. Resolves with an HTTP/2 session whose limits are
 * known, or with null when the provider speaks HTTP/1.1 only. Rejects when there is no connection.
 */
export function openHttp2({ url, tls, attempt }: ConnectOptions): Promise<Http2Connection | null> {
  return new Promise((resolve, reject) => {
    const closedTooSoon = () => reject(new Error('the connection was closed before it was ready'))
    const socket = startTls({
      host: hostOf(url),
      port: url.port === '' ? 443 : Number(url.port),
      ALPNProtocols: ['h2', 'http/1.1'],
      ...tls,
    })
    attempt.onStop((reason) => {
      reject(reason)
      socket.destroy()
    })
    socket.setNoDelay(true)
    socket.on('error', reject)
    socket.once('close', closedTooSoon)
    socket.once('secureConnect', () => {
      if (socket.alpnProtocol !== 'h2') {
        socket.destroy()
        return resolve(null)
      }
      const session = startHttp2(url.origin, { createConnection: () => socket, settings: { enablePush: false } })
      session.on('error', reject)
      session.once('close', closedTooSoon)
      // Ready when the provider has sent the number of streams that it allows.
      session.once('remoteSettings', () => resolve({ session, socket }))
    })
  })
}
