import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { generateKeyPairSync } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer as createPlainHttp1Server } from 'node:http'
import {
  createServer as createPlainServer,
  createSecureServer,
  type Http2ServerRequest,
  type Http2ServerResponse,
} from 'node:http2'
import { createServer as createHttp1Server } from 'node:https'
import { type AddressInfo, createServer as createTcpServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, beforeEach, test } from 'node:test'
import { promisify } from 'node:util'
import type { Log } from '../../src/core/log.ts'
import { createFcmSender, type FcmSenderOptions, GOOGLE } from '../../src/push/fcm/fcm-sender.ts'
import type { PushMessage, PushSender, PushVerdict } from '../../src/push/push-provider.ts'
import { type Certificate, selfSignedCertificate } from '../../src/sandbox/certificate.ts'
import { type SandboxPushProvider, startPushProvider } from '../../src/sandbox/push-provider/push-provider.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { PATIENCE_MS } from '../support/patience.ts'
import { until } from '../support/until.ts'

const never = new AbortController().signal
const clock = new ManualClock()
const lines: string[] = []
const keep = (fields: object, event: string) =>
  void lines.push(JSON.stringify([event, fields, String(Object.values(fields))]))
const log: Log = { debug: keep, info: keep, warn: keep, error: keep }
const opened: { close(): Promise<void> }[] = []
let provider: SandboxPushProvider
let certificate: Certificate

before(async () => {
  provider = await startPushProvider({ clock })
  certificate = await selfSignedCertificate(['localhost', '127.0.0.1'], Date.now())
})
beforeEach(async () => {
  for (const one of opened.splice(0)) await one.close()
  while (provider.stats.open_sessions > 0) await new Promise(setImmediate)
  provider.reset()
})
after(async () => {
  for (const one of opened.splice(0)) await one.close()
  await provider.close()
  const { privateKey } = provider.credentials
  const key = privateKey.split('\n')[1] ?? ''
  assert.ok(lines.length > 0)
  for (const line of lines) assert.ok(!line.includes(key) && !line.includes('ya29.') && !line.includes('eyJ'))
})

function senderWith(more: Partial<FcmSenderOptions> = {}): PushSender {
  const { url: apiUrl, tokenUrl, credentials, ca } = provider
  const sender = createFcmSender({ credentials, apiUrl, tokenUrl, ca, clock, log, ...more })
  opened.push(sender)
  return sender
}

const messageTo = (token: string, more: Partial<PushMessage> = {}): PushMessage => ({
  token,
  title: 'Report ready',
  body: 'Your report is finished',
  data: { job_id: 'job_1' },
  tag: `ntf_${token}`,
  link: null,
  priority: 'high',
  ttlSeconds: 3600,
  dryRun: false,
  ...more,
})

const sendTo = (sender: PushSender, token: string) => sender.send(messageTo(token), never)
const sendMany = (sender: PushSender, count: number, prefix = 'phone') =>
  Array.from({ length: count }, (_, n) => sendTo(sender, `${prefix}-${n}`))

function tally(verdicts: readonly PushVerdict[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const { kind } of verdicts) counts[kind] = (counts[kind] ?? 0) + 1
  return counts
}

async function untilTrue(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise(setImmediate)
}

/**
 * Lets time pass for as long as it takes, in steps with a pause between them. In turns of the event loop alone, 15 s would
 * pass within milliseconds, while the system still hands over the bytes of an answer.
 */
async function withTime<Value>(work: Promise<Value>, stepMs: number): Promise<Value> {
  let isDone = false
  const done = work.finally(() => {
    isDone = true
  })
  await until(async () => {
    if (!isDone) await clock.advance(stepMs)
    return isDone
  })
  return done
}

/** A provider of another make, on a free port. */
async function listen(server: Server) {
  const sockets = new Set<Socket>()
  server.on('connection', (socket: Socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  opened.push({
    close: async () => {
      const closed = once(server, 'close')
      server.close()
      for (const socket of sockets) socket.destroy()
      await closed
    },
  })
  return (server.address() as AddressInfo).port
}

const plainServer = async (answer: (request: Http2ServerRequest, response: Http2ServerResponse) => void) =>
  `http://127.0.0.1:${await listen(createPlainServer(answer))}`

/** The connections for messages: one more is for access tokens. */
const connections = () => provider.stats.sessions - 1
const openConnections = () => provider.stats.open_sessions - 1

test('a message is sent over HTTP/2, with its tag on every platform', async () => {
  const sender = senderWith()
  const verdict = await sendTo(sender, 'phone')
  const [arrival] = provider.arrivals
  assert.deepEqual(verdict, { kind: 'sent', messageId: arrival?.message_id })
  assert.equal(arrival?.protocol, 'h2')
  assert.equal(arrival?.tag, 'ntf_phone')
  assert.equal(connections(), 1)
})

const byPrefix: [prefix: string, verdict: Partial<PushVerdict>][] = [
  ['dead-', { kind: 'disable', reason: 'unregistered' }],
  ['bad-', { kind: 'disable', reason: 'invalid_token' }],
  ['mismatch-', { kind: 'disable', reason: 'sender_mismatch' }],
  ['thirdparty-', { kind: 'drop', alert: true }],
  ['quota-', { kind: 'retry', afterMs: 60_000 }],
  ['down-', { kind: 'retry', afterMs: null }],
  ['internal-', { kind: 'retry', afterMs: null }],
  ['html-', { kind: 'retry', afterMs: null }],
  ['delivered503-', { kind: 'retry', afterMs: null }],
  ['truncated-', { kind: 'retry', afterMs: null }],
  ['goaway-', { kind: 'retry', afterMs: null }],
  ['rst-', { kind: 'retry', afterMs: null }],
]
for (const scheme of ['https', 'http'] as const) {
  const apiUrl = () => (scheme === 'https' ? provider.url : provider.plainUrl)
  for (const [prefix, expected] of byPrefix) {
    test(`a message over ${scheme} to the token ${prefix}1 ends in ${expected.kind}, and the next message is sent`, async () => {
      const sender = senderWith({ apiUrl: apiUrl() })
      assert.partialDeepStrictEqual(await sendTo(sender, `${prefix}1`), expected)
      assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
      assert.equal(provider.stats.sends, 2)
    })
  }

  test(`a message over ${scheme} without an answer within 15 s gets the verdict retry`, async () => {
    const sender = senderWith({ apiUrl: apiUrl() })
    const sending = sendTo(sender, 'hang-1')
    await provider.untilArrivals(1)
    await clock.advance(15_000)
    assert.deepEqual(await sending, { kind: 'retry', reason: 'no answer within 15000 ms', afterMs: null })
    assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
  })

  test(`an aborted message over ${scheme} ends at once`, async () => {
    const sender = senderWith({ apiUrl: apiUrl() })
    const stop = new AbortController()
    const sending = sender.send(messageTo('hang-1'), stop.signal)
    await provider.untilArrivals(1)
    stop.abort()
    assert.equal((await sending).kind, 'retry')
    assert.equal((await sender.send(messageTo('phone'), stop.signal)).kind, 'retry')
    assert.equal(provider.stats.sends, 1)
  })
}

test('a slow answer within the timeout counts', async () => {
  provider.setFaults({ slow_ms: 14_000 })
  const sending = sendTo(senderWith(), 'slow-1')
  await provider.untilArrivals(1)
  await clock.advance(14_000)
  assert.equal((await sending).kind, 'sent')
})

test('the verdict carries the Retry-After of the provider', async () => {
  provider.setFaults({ retry_after_seconds: 30 })
  const sender = senderWith()
  for (const token of ['quota-1', 'down-1', 'internal-1']) {
    assert.partialDeepStrictEqual(await sendTo(sender, token), { kind: 'retry', afterMs: 30_000 })
  }
})

test('a dry run is validated and not delivered', async () => {
  const verdict = await senderWith().send(messageTo('phone', { dryRun: true }), never)
  assert.equal(verdict.kind, 'sent')
  assert.partialDeepStrictEqual(provider.stats, { delivered: 0, validated: 1 })
})

test('2,000 messages at once share four connections, each within its limit, and all are sent', async () => {
  provider.setFaults({ slow_ms: 60 })
  const sender = senderWith()
  const sending = sendMany(sender, 2_000, 'slow')
  await provider.untilArrivals(400)
  assert.deepEqual([openConnections(), provider.arrivals.length], [4, 400])
  assert.deepEqual(tally(await withTime(Promise.all(sending), 60)), { sent: 2_000 })
  assert.equal(connections(), 4)
  assert.equal(provider.stats.delivered, 2_000)
  assert.equal(provider.stats.repeated, 0)
})

test('a few messages use one connection', async () => {
  const sender = senderWith()
  assert.deepEqual(tally(await Promise.all(sendMany(sender, 50))), { sent: 50 })
  assert.equal(connections(), 1)
})

test('a connection still brings its answers after GOAWAY, and the next message uses another', async () => {
  const sender = senderWith()
  provider.setFaults({ slow_ms: 60 })
  const sending = sendMany(sender, 80, 'slow')
  await provider.untilArrivals(80)
  provider.goAway()
  // A message that crosses the GOAWAY is refused.
  while ((await sendTo(sender, 'next')).kind !== 'sent');
  assert.equal(connections(), 2)
  assert.deepEqual(tally(await withTime(Promise.all(sending), 60)), { sent: 80 })
  await untilTrue(() => provider.stats.open_sessions === 1)
  assert.equal(provider.stats.delivered, 81)
})

test('an idle connection closes after GOAWAY', async () => {
  const sender = senderWith()
  await sendTo(sender, 'phone')
  provider.goAway()
  await untilTrue(() => provider.stats.open_sessions === 0)
  assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
})

test('GOAWAY during traffic loses no message silently: each is sent or gets the verdict retry', async () => {
  const sender = senderWith()
  await sendTo(sender, 'first')
  const tokens = Array.from({ length: 600 }, (_, n) => (n % 97 === 50 ? `goaway-${n}` : `phone-${n}`))
  const verdicts = await Promise.all(tokens.map((token) => sendTo(sender, token)))
  assert.equal(verdicts.length, 600)
  const delivered = new Set(provider.arrivals.filter((one) => one.delivered).map(({ token }) => token))
  for (const [n, { kind }] of verdicts.entries()) {
    assert.ok(kind === 'sent' || kind === 'retry')
    assert.equal(kind === 'sent' && !delivered.has(tokens[n] ?? ''), false)
  }
  assert.ok((tally(verdicts).retry ?? 0) >= 6)
  assert.ok((tally(verdicts).sent ?? 0) > 0)
  assert.equal((await sendTo(sender, 'last')).kind, 'sent')
})

test('every message has a verdict after connections break, and the sender still works', async () => {
  const sender = senderWith()
  const sending = sendMany(sender, 300, 'hang')
  await provider.untilArrivals(300)
  provider.cut()
  assert.deepEqual(tally(await Promise.all(sending)), { retry: 300 })
  assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
})

test('a silent connection gets no further message', async () => {
  const sender = senderWith()
  const sending = sendTo(sender, 'hang-1')
  await provider.untilArrivals(1)
  await clock.advance(15_000)
  await sending
  assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
  assert.equal(connections(), 2)
})

test('an idle connection is closed after a minute, one in use is not', async () => {
  const sender = senderWith()
  await sendTo(sender, 'phone')
  await clock.advance(59_000)
  await sendTo(sender, 'phone')
  await clock.advance(59_000)
  // The connection for access tokens is idle from the beginning.
  await untilTrue(() => provider.stats.open_sessions === 1)
  assert.equal(connections(), 1)
  await clock.advance(1_000)
  await untilTrue(() => provider.stats.open_sessions === 0)
  assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
})

test('200 messages at once share one access token, and so do all others within the hour', async () => {
  const sender = senderWith()
  assert.deepEqual(tally(await Promise.all(sendMany(sender, 200))), { sent: 200 })
  await clock.advance(54 * 60_000)
  assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
  assert.equal(provider.stats.exchanges, 1)
  await clock.advance(60_000)
  assert.deepEqual(tally(await Promise.all(sendMany(sender, 200))), { sent: 200 })
  await untilTrue(() => provider.stats.exchanges >= 2)
  assert.equal(provider.stats.exchanges, 2)
})

test('no message waits for a new access token while the old one is valid', async () => {
  const sender = senderWith()
  await sendTo(sender, 'phone')
  provider.setFaults({ exchange: 'hanging' })
  await clock.advance(56 * 60_000)
  assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
  await untilTrue(() => provider.stats.exchanges === 2)
  assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
})

test('a token endpoint that asks for a pause gets it, and verdicts carry the time that is left', async () => {
  let asked = 0
  const url = await plainServer((_request, response) => {
    asked += 1
    response.writeHead(503, { 'retry-after': '1800' }).end()
  })
  const sender = senderWith({ tokenUrl: `${url}/token` })
  assert.partialDeepStrictEqual(await sendTo(sender, 'phone'), { kind: 'retry', afterMs: 1_800_000 })
  await clock.advance(600_000)
  assert.partialDeepStrictEqual(await sendTo(sender, 'phone'), { kind: 'retry', afterMs: 1_200_000 })
  assert.equal(asked, 1)
})

test('credentials are checked without a message', async () => {
  const sender = senderWith()
  assert.equal(await sender.checkCredentials(), null)
  assert.deepEqual([provider.stats.exchanges, provider.arrivals.length], [1, 0])
  provider.setFaults({ exchange: 'refused' })
  assert.match((await senderWith().checkCredentials()) ?? '', /^the push credentials are refused: 400 invalid_grant/)
  // No answer says nothing about the credentials.
  provider.setFaults({ exchange: 'down' })
  assert.equal(await senderWith().checkCredentials(), null)
})

test('a revoked access token is replaced once for all messages', async () => {
  const sender = senderWith()
  await sendTo(sender, 'phone')
  provider.revokeTokens()
  assert.deepEqual(tally(await Promise.all(sendMany(sender, 90))), { sent: 90 })
  assert.equal(provider.stats.exchanges, 2)
})

test('a message that is refused late uses the access token that was renewed meanwhile', async () => {
  const sender = senderWith()
  await sendTo(sender, 'phone')
  provider.revokeTokens()
  provider.setFaults({ latency_ms: 60 })
  const idle = clock.sleeping
  const first = sendTo(sender, 'first')
  // Beside the provider's own pause, the sender watches the time of what is in flight.
  await untilTrue(() => clock.sleeping === idle + 2)
  await clock.advance(30)
  const second = sendTo(sender, 'second')
  await untilTrue(() => clock.sleeping === idle + 3)
  await clock.advance(30)
  await untilTrue(() => provider.stats.exchanges === 2)
  assert.deepEqual(tally(await withTime(Promise.all([first, second]), 30)), { sent: 2 })
  assert.deepEqual([provider.stats.exchanges, provider.stats.refused], [2, { 401: 2 }])
})

test('a valid access token is used while an exchange fails', async () => {
  const sender = senderWith()
  await sendTo(sender, 'phone')
  provider.setFaults({ exchange: 'down' })
  await clock.advance(56 * 60_000)
  assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
  await clock.advance(4 * 60_000)
  assert.partialDeepStrictEqual(await sendTo(sender, 'phone'), { kind: 'retry', afterMs: null })
  await clock.advance(5_000)
  provider.setFaults({ exchange: 'issued' })
  assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
})

test('a short-lived access token is not exchanged for every message', async () => {
  provider.setFaults({ token_seconds: 60 })
  const sender = senderWith()
  for (let n = 0; n < 5; n++) await sendTo(sender, `phone-${n}`)
  assert.equal(provider.stats.exchanges, 1)
})

test('a fresh access token that is refused too halts everything, after one renewal', async () => {
  const stranger = await startPushProvider({ clock })
  opened.push(stranger)
  const { tokenUrl, credentials } = stranger
  // Each trusts itself alone, so the exchange goes over plain HTTP.
  const plainTokenUrl = tokenUrl.replace(stranger.url, stranger.plainUrl)
  const sender = senderWith({ tokenUrl: plainTokenUrl, credentials })
  const verdict = await sendTo(sender, 'phone')
  assert.ok(verdict.kind === 'halt')
  assert.match(verdict.reason, /access token is refused: 401 UNAUTHENTICATED/)
  assert.equal(stranger.stats.exchanges, 2)
})

const otherKey = generateKeyPairSync('rsa', { modulusLength: 2048 })
  .privateKey.export({ type: 'pkcs8', format: 'pem' })
  .toString()
const ellipticKey = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  .privateKey.export({ type: 'pkcs8', format: 'pem' })
  .toString()

test('a wrong private key halts everything with a reason that does not show the key', async () => {
  const sender = senderWith({ credentials: { ...provider.credentials, privateKey: otherKey } })
  const verdicts = await Promise.all(sendMany(sender, 50))
  for (const verdict of verdicts) {
    const reason = 'the push credentials are refused: 400 invalid_grant: Invalid JWT Signature.'
    assert.deepEqual(verdict, { kind: 'halt', reason })
  }
  assert.equal(provider.stats.exchanges, 1)
  await sendTo(sender, 'phone')
  assert.equal(provider.stats.exchanges, 1)
  await clock.advance(5_000)
  await sendTo(sender, 'phone')
  assert.equal(provider.stats.exchanges, 2)
})

for (const [name, privateKey] of [
  ['nonsense', 'BEGIN nothing'],
  ['an elliptic curve', ellipticKey],
]) {
  test(`a private key of ${name} halts everything without a request`, async () => {
    const sender = senderWith({ credentials: { ...provider.credentials, privateKey: privateKey ?? '' } })
    const verdict = await sendTo(sender, 'phone')
    assert.deepEqual(verdict, { kind: 'halt', reason: 'PUSH_PRIVATE_KEY is not an RSA private key in PEM form' })
    assert.equal(provider.stats.exchanges, 0)
  })
}

test('the wrong project and a missing permission halt everything until they are fixed', async () => {
  const wrong = senderWith({ credentials: { ...provider.credentials, projectId: 'other/../project' } })
  assert.partialDeepStrictEqual(await sendTo(wrong, 'phone'), { kind: 'halt' })
  const sender = senderWith()
  provider.setFaults({ refuse: 'permission' })
  const verdict = await sendTo(sender, 'phone')
  assert.ok(verdict.kind === 'halt')
  assert.match(verdict.reason, /may not send: 403 PERMISSION_DENIED/)
  provider.setFaults({ refuse: 'nothing' })
  assert.equal((await sendTo(sender, 'phone')).kind, 'sent')
})

test('a token endpoint that is down or hangs gives the verdict retry', async () => {
  provider.setFaults({ exchange: 'down' })
  assert.deepEqual(await sendTo(senderWith(), 'phone'), {
    kind: 'retry',
    reason: 'no access token: 503 internal_failure',
    afterMs: null,
  })
  provider.setFaults({ exchange: 'hanging' })
  const sending = sendTo(senderWith(), 'phone')
  await untilTrue(() => provider.stats.exchanges === 2)
  await clock.advance(10_000)
  assert.partialDeepStrictEqual(await sending, { kind: 'retry', reason: 'no access token: no answer within 10000 ms' })
})

test('any other answer of the token endpoint gives the verdict retry', async () => {
  for (const body of [
    '',
    '<html>',
    '{}',
    '{"access_token":"","expires_in":1}',
    '{"access_token":"x","expires_in":"1"}',
  ]) {
    const url = await plainServer((_request, response) => response.end(body))
    assert.equal((await sendTo(senderWith({ tokenUrl: `${url}/token` }), 'phone')).kind, 'retry')
  }
})

test('an unreachable provider gives the verdict retry', async () => {
  const gone = await startPushProvider({ clock })
  await gone.close()
  assert.partialDeepStrictEqual(await sendTo(senderWith({ apiUrl: gone.url }), 'phone'), { kind: 'retry' })
  assert.partialDeepStrictEqual(await sendTo(senderWith({ apiUrl: gone.plainUrl }), 'phone'), { kind: 'retry' })
  assert.partialDeepStrictEqual(await sendTo(senderWith({ tokenUrl: gone.tokenUrl }), 'phone'), { kind: 'retry' })
})

test('an untrusted certificate is refused', async () => {
  const { credentials, url: apiUrl, plainUrl } = provider
  const sender = createFcmSender({ credentials, apiUrl, tokenUrl: `${plainUrl}/token`, clock, log })
  opened.push(sender)
  const verdict = await sendTo(sender, 'phone')
  assert.ok(verdict.kind === 'retry')
  assert.match(verdict.reason, /^self-signed certificate/)
})

test('a peer that accepts connections and stays silent costs all waiting messages ten seconds', async () => {
  const server = createTcpServer()
  const sender = senderWith({ apiUrl: `https://127.0.0.1:${await listen(server)}` })
  const connected = once(server, 'connection')
  const sending = sendMany(sender, 20)
  await connected
  await clock.advance(10_000)
  for (const verdict of await Promise.all(sending)) {
    assert.deepEqual(verdict, { kind: 'retry', reason: 'no connection within 10000 ms', afterMs: null })
  }
})

test('a peer that closes every connection gives the verdict retry', async () => {
  const port = await listen(createTcpServer((socket) => socket.destroy()))
  assert.equal((await sendTo(senderWith({ apiUrl: `https://127.0.0.1:${port}` }), 'phone')).kind, 'retry')
})

test('a provider or a token endpoint without HTTP/2 halts everything with a reason', async () => {
  const secure = `https://127.0.0.1:${await listen(createHttp1Server({ ...certificate }))}`
  const plain = `http://127.0.0.1:${await listen(createPlainHttp1Server())}`
  for (const url of [secure, plain]) {
    const reason = `${new URL(url).host} does not speak HTTP/2`
    const sender = senderWith({ apiUrl: url, ca: certificate.cert, tokenUrl: `${provider.plainUrl}/token` })
    assert.deepEqual(await Promise.all(sendMany(sender, 20)), Array(20).fill({ kind: 'halt', reason }))
    const withoutToken = senderWith({ tokenUrl: `${url}/token`, ca: certificate.cert })
    assert.equal(await withoutToken.checkCredentials(), `no access token: ${reason}`)
  }
})

test('an endless answer is aborted', async () => {
  const endless = 'x'.repeat(70_000)
  const server = createSecureServer({ ...certificate }, (_request, response) => response.end(endless))
  const secure = `https://127.0.0.1:${await listen(server)}`
  const plain = await plainServer((_request, response) => response.end(endless))
  for (const apiUrl of [secure, plain]) {
    const sender = senderWith({ apiUrl, ca: certificate.cert, tokenUrl: `${provider.plainUrl}/token` })
    const verdict = { kind: 'retry', reason: 'the answer is over 65536 bytes', afterMs: null }
    assert.deepEqual(await sendTo(sender, 'phone'), verdict)
  }
})

test('a provider that quotes the request reveals nothing', async () => {
  const apiUrl = await plainServer((request, response) => {
    const message = `secret-phone said ${request.headers.authorization}`
    response.writeHead(403).end(JSON.stringify({ error: { code: 403, message } }))
  })
  const verdict = await sendTo(senderWith({ apiUrl }), 'secret-phone')
  assert.deepEqual(verdict, { kind: 'halt', reason: 'the credentials may not send: 403: … said Bearer …' })
})

test('a sender that closes ends messages in flight, waiting messages and later messages with a verdict', async () => {
  const sender = senderWith()
  const sending = sendMany(sender, 500, 'hang')
  await provider.untilArrivals(400)
  await sender.close()
  assert.deepEqual(tally(await Promise.all(sending)), { retry: 500 })
  assert.equal((await sendTo(sender, 'phone')).kind, 'retry')
  await untilTrue(() => provider.stats.open_sessions === 0)
})

test('the default addresses of messages and access tokens are those of Google', () => {
  assert.deepEqual(GOOGLE, { apiUrl: 'https://fcm.googleapis.com', tokenUrl: 'https://oauth2.googleapis.com/token' })
})

test('a process trusts the certificate by NODE_EXTRA_CA_CERTS, and ends after close', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'fcm-sender-'))
  const file = join(folder, 'ca.pem')
  writeFileSync(file, provider.ca)
  const { url: apiUrl, tokenUrl, credentials } = provider
  const modules = ['push/fcm/fcm-sender.ts', 'core/log.ts'].map(
    (path) => new URL(`../../src/${path}`, import.meta.url).href,
  )
  const program = `
    import { createFcmSender } from ${JSON.stringify(modules[0])}
    import { silentLog as log } from ${JSON.stringify(modules[1])}
    const now = () => ${clock.now()}
    const clock = { now, calendar: now, sleep: (ms, signal) => new Promise((resolve) => {
      const timer = setTimeout(resolve, ms)
      signal?.addEventListener('abort', () => { clearTimeout(timer); resolve() })
    }) }
    const sender = createFcmSender({ ...${JSON.stringify({ apiUrl, tokenUrl, credentials })}, clock, log })
    const messages = ${JSON.stringify(Array.from({ length: 20 }, (_, n) => messageTo(`phone-${n}`)))}
    const verdicts = await Promise.all(messages.map((message) => sender.send(message, new AbortController().signal)))
    await sender.close()
    console.log(JSON.stringify(verdicts.map(({ kind, reason }) => reason ?? kind)))`
  try {
    const run = promisify(execFile)
    const options = { env: { ...process.env, NODE_EXTRA_CA_CERTS: file }, timeout: PATIENCE_MS }
    const { stdout } = await run(process.execPath, ['--input-type=module', '--eval', program], options)
    assert.deepEqual(JSON.parse(stdout), Array(20).fill('sent'))
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})
