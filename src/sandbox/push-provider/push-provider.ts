import { generateKeyPair, type KeyObject } from 'node:crypto'
import { createServer as createHttp1Server, type Server as Http1Server } from 'node:http'
import {
  createServer as createHttp2Server,
  createSecureServer,
  type Http2SecureServer,
  type Http2Server,
  type ServerHttp2Session,
} from 'node:http2'
import { createServer, type Server, type Socket } from 'node:net'
import { promisify } from 'node:util'
import { type Clock, systemClock, toRfc3339 } from '../../core/clock.ts'
import { isJsonObject, type JsonObject } from '../../core/json.ts'
import { systemRandom } from '../../core/random.ts'
import { type Certificate, selfSignedCertificate } from '../certificate.ts'
import { readChanges } from '../fault-settings.ts'
import { type HttpResponse, json } from '../http-response.ts'
import { authorityOf, isForeign, listenOnLoopback } from '../loopback.ts'
import { failed, invalid, type MessageOutcome, outcomeOf } from './answers.ts'
import { NO_PUSH_FAULTS, PUSH_FAULTS, type PushFaults } from './faults.ts'
import { type Arrival, ArrivalLog, type PushStats } from './log.ts'
import { readMessage, type SentMessage } from './message.ts'
import { renderPushProviderPage } from './page.ts'
import { AccessTokens } from './tokens.ts'
import { Http1Exchange, Http2Exchange, type WireExchange } from './wire.ts'

const SEND = /^\/v1\/projects\/([^/]+)\/messages:send$/
const MAX_BODY_BYTES = 64 * 1024
const MAX_LISTED = 200
/** The limit of the real provider for one connection. */
const MAX_STREAMS = 100
const PROJECT_ID = 'sandbox-project'
const CLIENT_EMAIL = 'push@sandbox-project.iam.gserviceaccount.com'
const generateRsa = promisify(generateKeyPair)

interface PushProviderOptions {
  host?: string
  /** Default 0: any free port. */
  port?: number
  /** Take any other port when another program has this one. Default: fail. */
  anyIfTaken?: boolean
  /** The port of the page and of plain HTTP. Default 0: any free port. */
  plainPort?: number
  clock?: Clock
  /** The page links to it. */
  consoleUrl?: string
}

/**
 * A push provider on loopback for development and tests. It speaks the real protocol (HTTP/2 or HTTP/1.1), with TLS on one
 * port and without on the other. It answers by the prefix of the registration token, and lists the messages that arrived.
 */
export async function startPushProvider(options: PushProviderOptions = {}): Promise<SandboxPushProvider> {
  const { host = '127.0.0.1', port = 0, plainPort = 0, anyIfTaken } = options
  const { publicKey, privateKey } = await generateRsa('rsa', { modulusLength: 2048 })
  // Clients check the certificate by the system's time, not by the clock given here.
  const certificate = await selfSignedCertificate(['localhost', '127.0.0.1', '::1'], Date.now())
  const settings = { maxConcurrentStreams: MAX_STREAMS }
  const secure = createSecureServer({ ...certificate, allowHTTP1: true, settings })
  const plainHttp1 = createHttp1Server()
  const plainHttp2 = createHttp2Server({ settings })
  const plain = createServer((socket) => {
    socket.once('readable', () => {
      const head: Buffer | null = socket.read()
      if (head === null) return
      socket.unshift(head)
      // Every HTTP/2 connection begins with `PRI * HTTP/2.0`.
      const server = head.toString('latin1').startsWith('PRI ') ? plainHttp2 : plainHttp1
      server.emit('connection', socket)
    })
  })
  await listenOnLoopback(secure, { host, port, anyIfTaken })
  await listenOnLoopback(plain, { host, port: plainPort, anyIfTaken })
  const servers = { secure, plain, plainHttp1, plainHttp2 }
  return new SandboxPushProvider({ ...servers, certificate, publicKey, privateKey, host, options })
}

interface Parts {
  secure: Http2SecureServer
  /** Passes each connection to one of the two next. */
  plain: Server
  plainHttp1: Http1Server
  plainHttp2: Http2Server
  certificate: Certificate
  publicKey: KeyObject
  privateKey: KeyObject
  host: string
  options: PushProviderOptions
}

export class SandboxPushProvider {
  /** For `PUSH_API_URL`: https, with the certificate below. */
  readonly url: string
  /** For `PUSH_TOKEN_URL`. */
  readonly tokenUrl: string
  /** The same without TLS; a browser opens its page without a certificate warning. */
  readonly plainUrl: string
  /** The three settings, as they are given to the service. */
  readonly credentials: { projectId: string; clientEmail: string; privateKey: string }
  /** The certificate to trust, in PEM form. */
  readonly ca: string
  readonly #secure: Server
  readonly #plain: Server
  readonly #clock: Clock
  readonly #consoleUrl: string | null
  readonly #accessTokens: AccessTokens
  readonly #log = new ArrivalLog()
  readonly #closing = new AbortController()
  readonly #sockets = new Set<Socket>()
  readonly #sessions = new Set<ServerHttp2Session>()
  #sessionCount = 0
  #faults: PushFaults = NO_PUSH_FAULTS

  constructor({ secure, plain, plainHttp1, plainHttp2, certificate, publicKey, privateKey, host, options }: Parts) {
    const { clock = systemClock, consoleUrl = null } = options
    this.url = `https://${authorityOf(secure, host)}`
    this.plainUrl = `http://${authorityOf(plain, host)}`
    this.tokenUrl = `${this.url}/token`
    this.ca = certificate.cert
    this.credentials = {
      projectId: PROJECT_ID,
      clientEmail: CLIENT_EMAIL,
      privateKey: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
    }
    this.#secure = secure
    this.#plain = plain
    this.#clock = clock
    this.#consoleUrl = consoleUrl
    this.#accessTokens = new AccessTokens({
      clock,
      clientEmail: CLIENT_EMAIL,
      publicKey,
      audiences: [this.tokenUrl, `${this.plainUrl}/token`],
      tokenSeconds: () => this.#faults.token_seconds,
    })
    // HTTP/1.1 requests arrive as 'request', with HTTP/2 types. With a 'request' listener, Node also turns HTTP/2 streams
    // into requests; removing Node's 'stream' listener prevents that.
    secure.on(
      'request',
      (request, response) => void this.#serve(new Http1Exchange(request as never, response as never)),
    )
    secure.removeAllListeners('stream')
    plainHttp1.on('request', (request, response) => void this.#serve(new Http1Exchange(request, response)))
    for (const server of [secure, plainHttp2]) {
      server.on('stream', (stream, headers) => void this.#serve(new Http2Exchange(stream, headers)))
      server.on('session', (session) => this.#follow(session))
    }
    for (const server of [secure, plain]) {
      server.on('connection', (socket: Socket) => {
        this.#sockets.add(socket)
        socket.on('error', () => {})
        socket.once('close', () => this.#sockets.delete(socket))
      })
    }
  }

  /** Throws when a value is not allowed. */
  setFaults(changes: Partial<PushFaults>): void {
    const read = readChanges(PUSH_FAULTS, changes)
    if ('problems' in read) throw new Error(read.problems.join('; '))
    this.#faults = { ...this.#faults, ...read.changes }
  }

  get stats(): PushStats {
    return { ...this.#log.stats, sessions: this.#sessionCount, open_sessions: this.#sessions.size }
  }

  /** Every readable message that arrived, oldest first. */
  get arrivals(): readonly Arrival[] {
    return this.#log.arrivals
  }

  /** Resolves once this many messages have arrived since the last reset. */
  untilArrivals(count: number): Promise<void> {
    return this.#log.untilSends(count)
  }

  /** Makes all access tokens invalid. */
  revokeTokens(): void {
    this.#accessTokens.revokeAll()
  }

  /** Sends GOAWAY on every connection, and closes it once its requests in flight are answered. */
  goAway(): void {
    for (const session of this.#sessions) session.close()
  }

  /** Closes every connection at once. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy()
  }

  /** Default settings, nothing arrived, counters at zero. Access tokens stay valid. */
  reset(): void {
    this.#faults = NO_PUSH_FAULTS
    this.#log.clear()
    this.#sessionCount = this.#sessions.size
  }

  async close(): Promise<void> {
    this.#closing.abort()
    const closed = [this.#secure, this.#plain].map((server) => new Promise((resolve) => server.close(resolve)))
    this.cut()
    await Promise.all(closed)
  }

  #follow(session: ServerHttp2Session): void {
    this.#sessionCount += 1
    this.#sessions.add(session)
    session.on('error', () => {})
    session.once('close', () => this.#sessions.delete(session))
  }

  async #serve(wire: WireExchange): Promise<void> {
    const { method, path } = wire
    const body = await wire.body(MAX_BODY_BYTES)
    if (this.#closing.signal.aborted) return
    const { host, headers } = wire
    if (isForeign({ host, origin: headers.origin })) {
      return wire.reply(json(403, { message: 'The sandbox serves this machine only' }))
    }
    const project = SEND.exec(path)?.[1]
    if (method === 'POST' && project !== undefined) return this.#send(wire, { project, body })
    if (method === 'POST' && path === '/token') return this.#exchange(wire, body)
    wire.reply(this.#control(`${method} ${path}`, body))
  }

  async #exchange(wire: WireExchange, body: string | null): Promise<void> {
    this.#log.exchanged()
    const { exchange } = this.#faults
    if (exchange === 'hanging') return
    if (exchange === 'down') return wire.reply(json(503, { error: 'internal_failure' }))
    if (exchange === 'refused') {
      return wire.reply(json(400, { error: 'invalid_grant', error_description: 'Invalid grant: account not found' }))
    }
    wire.reply(this.#accessTokens.exchange(body ?? ''))
  }

  async #send(wire: WireExchange, { project, body }: { project: string; body: string | null }): Promise<void> {
    const { latency_ms: latencyMs } = this.#faults
    if (latencyMs > 0) await this.#clock.sleep(latencyMs, this.#closing.signal)
    const refusal = this.#refusal(wire, project)
    const read = refusal ? null : readMessage(body ?? '')
    if (read && 'token' in read) return this.#handle(wire, read)
    const response = refusal ?? (read && invalid(read.says, read.field)) ?? failed('internal')
    this.#log.refused(response.status)
    wire.reply(response)
  }

  /** The refusal of the request before its message is read; null if there is none. */
  #refusal({ headers }: WireExchange, project: string): HttpResponse | null {
    const { refuse } = this.#faults
    if (!this.#accessTokens.admits(headers.authorization)) return failed('unauthenticated')
    if (project !== PROJECT_ID) return failed('wrong_project')
    return refuse === 'nothing' ? null : failed(refuse, this.#retryAfter())
  }

  async #handle(wire: WireExchange, sent: SentMessage): Promise<void> {
    const { token, validateOnly, message } = sent
    const name = `projects/${PROJECT_ID}/messages/${validateOnly ? 'fake_message_id' : this.#newMessageId()}`
    const result = outcomeOf(token, { accepted: json(200, { name }), retryAfter: this.#retryAfter() })
    const isAnswered = result.way === 'answer' || result.way === 'truncated'
    this.#log.add({
      at: toRfc3339(this.#clock.now()),
      token,
      tag: tagOf(message),
      outcome: result.outcome,
      status: isAnswered ? result.response.status : null,
      delivered: result.delivered && !validateOnly,
      validate_only: validateOnly,
      protocol: wire.protocol,
      message_id: result.response.status === 200 && isAnswered ? name : null,
      message,
    })
    if (result.outcome === 'slow') await this.#clock.sleep(this.#faults.slow_ms, this.#closing.signal)
    this.#conclude(wire, result)
  }

  #conclude(wire: WireExchange, { way, response }: MessageOutcome): void {
    if (way === 'answer') wire.reply(response)
    else if (way === 'truncated') wire.replyTruncated(response)
    else if (way === 'goaway') wire.goAway()
    else if (way === 'rst') wire.reset()
  }

  #retryAfter(): Record<string, string> {
    const { retry_after_seconds: seconds } = this.#faults
    return seconds === 0 ? {} : { 'retry-after': String(seconds) }
  }

  #newMessageId(): string {
    return `0:${this.#clock.now()}%${Buffer.from(systemRandom.bytes(12)).toString('hex')}`
  }

  #control(call: string, body: string | null): HttpResponse {
    switch (call) {
      case 'GET /':
        return renderPushProviderPage(this.#consoleUrl)
      case 'GET /sandbox/faults':
        return json(200, { ...this.#faults })
      case 'PATCH /sandbox/faults':
        return this.#changeFaults(body)
      case 'GET /sandbox/stats':
        return json(200, { ...this.stats })
      case 'GET /sandbox/messages': {
        const newest = this.arrivals.slice(-MAX_LISTED).reverse()
        return json(200, { data: newest.map((arrival) => ({ ...arrival })) })
      }
      case 'POST /sandbox/revoke':
        this.revokeTokens()
        return json(200, { revoked: true })
      case 'POST /sandbox/goaway':
        this.goAway()
        return json(200, { said: true })
      case 'POST /sandbox/reset':
        this.reset()
        return json(200, { ...this.#faults })
      default:
        return json(404, { error: { code: 404, message: 'No such path', status: 'NOT_FOUND' } })
    }
  }

  #changeFaults(body: string | null): HttpResponse {
    const read = readChanges(PUSH_FAULTS, parse(body))
    if ('problems' in read) return json(400, { problems: read.problems })
    this.setFaults(read.changes)
    return json(200, { ...this.#faults })
  }
}

function tagOf({ android }: JsonObject): string | null {
  const notification = isJsonObject(android) ? android.notification : null
  const tag = isJsonObject(notification) ? notification.tag : null
  return typeof tag === 'string' ? tag : null
}

function parse(text: string | null): unknown {
  try {
    return JSON.parse(text ?? '')
  } catch {
    return null
  }
}
