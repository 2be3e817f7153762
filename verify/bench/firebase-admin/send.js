import { createRequire, syncBuiltinESMExports } from 'node:module'
import { CONTENT, deviceToken } from '../push/push-task.ts'

const { url, ca, credentials } = JSON.parse(process.env.PROVIDER)
const BATCH = 500

/**
 * The host of the library is fixed and cannot be configured. It connects with `http2.connect`, so in this process that
 * function connects to the sandbox instead and trusts its certificate. Everything else of the library stays as it is. This
 * must run before the library is imported.
 */
const http2 = createRequire(import.meta.url)('node:http2')
const { connect } = http2
http2.connect = (_authority, options, listener) => {
  const session = connect(url, { ...options, ca }, listener)
  const { request } = session
  // The library sends the scheme `https:`. The real provider accepts it, Node's server does not.
  session.request = (headers, more) => request.call(session, Object.assign(headers, { ':scheme': 'https' }), more)
  return session
}
syncBuiltinESMExports()

const { initializeApp } = await import('firebase-admin/app')
const { getMessaging } = await import('firebase-admin/messaging')

// Its own credentials would fetch an access token from a fixed address too. That fetch is not measured.
const credential = { getAccessToken: async () => ({ access_token: process.env.ACCESS_TOKEN, expires_in: 3600 }) }
const messaging = getMessaging(initializeApp({ credential, projectId: credentials.projectId }))

process.on('message', async ({ messages, tag }) => {
  const startedMs = performance.now()
  const before = process.cpuUsage()
  for (let sent = 0; sent < messages; sent += BATCH) {
    const length = Math.min(BATCH, messages - sent)
    const batch = Array.from({ length }, (_, n) => toMessage(deviceToken(sent + n), tag))
    const { failureCount, responses } = await messaging.sendEach(batch)
    if (failureCount > 0) throw responses.find(({ error }) => error).error
  }
  const { user, system } = process.cpuUsage(before)
  process.send({ elapsedMs: performance.now() - startedMs, cpuMs: (user + system) / 1_000 })
})

/** The message of the service, in the form that this library takes. */
function toMessage(token, tag) {
  const { title, body, data, link, ttlSeconds } = CONTENT
  return {
    token,
    notification: { title, body },
    data: { ...data, link },
    android: { priority: 'high', ttl: ttlSeconds * 1000, notification: { tag } },
    apns: {
      headers: {
        'apns-collapse-id': tag,
        'apns-expiration': String(Math.floor(Date.now() / 1000) + ttlSeconds),
        'apns-priority': '10',
      },
      payload: { aps: { sound: 'default' } },
    },
    webpush: {
      headers: { Topic: tag, TTL: String(ttlSeconds), Urgency: 'high' },
      notification: { tag },
      fcm_options: { link },
    },
  }
}
