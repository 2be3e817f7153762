import { createHmac } from 'node:crypto'
import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http'
import type { Socket } from 'node:net'
import { type Clock, systemClock, toRfc3339 } from '../../core/clock.ts'
import type { JsonObject } from '../../core/json.ts'
import { readChanges } from '../fault-settings.ts'
import { type HttpResponse, json } from '../http-response.ts'
import { authorityOf, isForeign, listenOnLoopback } from '../loopback.ts'
import { type PageResponse, preparePage } from '../page.ts'
import { NO_RECEIVER_FAULTS, RECEIVER_FAULTS, type ReceiverFaults } from './faults.ts'

const HOST = '127.0.0.1'
const MAX_BODY_BYTES = 1024 * 1024
const MAX_ARRIVALS = 2_000
const MAX_LISTED = 200
const MAX_SECRETS = 10
const render = preparePage({ file: 'webhook-receiver/page.html', isPanel: true })

interface ReceiverOptions {
  /** Default 0: any free port. */
  port?: number
  /** Take any other port when another program has this one. Default: fail. */
  anyIfTaken?: boolean
  clock?: Clock
  /** The page links to it. */
  consoleUrl?: string
}

/** One webhook that arrived. */
export interface ReceivedWebhook {
  at: string
  path: string
  /** Its `webhook-id`: the same at each attempt. */
  id: string | null
  type: string | null
  /** Null while the receiver has no secret. */
  signed: boolean | null
  /** A webhook with this id arrived before. */
  repeated: boolean
  answer: ReceiverFaults['answer']
  headers: Record<string, string>
  body: string
}

/** A receiver of webhooks on loopback, for development and tests. It lists what arrived, and answers as its faults say. */
export async function startWebhookReceiver(options: ReceiverOptions = {}): Promise<WebhookReceiver> {
  const { port = 0, anyIfTaken } = options
  const server = createServer()
  await listenOnLoopback(server, { host: HOST, port, anyIfTaken })
  return new WebhookReceiver(server, { ...options, url: `http://${authorityOf(server, HOST)}` })
}

export class WebhookReceiver {
  /** Webhooks are accepted at every path of it. */
  readonly url: string
  readonly #server: Server
  readonly #clock: Clock
  readonly #consoleUrl: string | null
  readonly #closing = new AbortController()
  readonly #sockets = new Set<Socket>()
  #arrivals: ReceivedWebhook[] = []
  #ids = new Set<string>()
  #secrets: string[] = []
  #faults: ReceiverFaults = NO_RECEIVER_FAULTS

  constructor(server: Server, { url, clock, consoleUrl }: ReceiverOptions & { url: string }) {
    this.url = url
    this.#server = server
    this.#clock = clock ?? systemClock
    this.#consoleUrl = consoleUrl ?? null
    server.on('connection', (socket) => {
      this.#sockets.add(socket)
      socket.once('close', () => this.#sockets.delete(socket))
    })
    server.on('request', (request, response) => void this.#serve(request, response))
  }

  /** Every webhook that arrived, oldest first. */
  get arrivals(): readonly ReceivedWebhook[] {
    return this.#arrivals
  }

  /** Throws when a value is not allowed. */
  setFaults(changes: Partial<ReceiverFaults>): void {
    const read = readChanges(RECEIVER_FAULTS, changes)
    if ('problems' in read) throw new Error(read.problems.join('; '))
    this.#faults = { ...this.#faults, ...read.changes }
  }

  /** The secrets that signatures are checked with. */
  setSecrets(secrets: readonly string[]): void {
    this.#secrets = secrets.slice(0, MAX_SECRETS)
  }

  /** Default settings, nothing arrived. The secrets stay. */
  reset(): void {
    this.#faults = NO_RECEIVER_FAULTS
    this.#arrivals = []
    this.#ids = new Set()
  }

  async close(): Promise<void> {
    this.#closing.abort()
    const closed = new Promise((resolve) => this.#server.close(resolve))
    for (const socket of this.#sockets) socket.destroy()
    await closed
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const body = await bodyOf(request)
    if (this.#closing.signal.aborted || body === undefined) return void request.socket.destroy()
    const path = request.url ?? '/'
    const isControl = request.method !== 'POST' || path.startsWith('/sandbox/')
    if (!isControl) return this.#receive({ request, response, path, body })
    const { host, origin } = request.headers
    if (isForeign({ host, origin }))
      return reply(response, json(403, { message: 'The sandbox serves this machine only' }))
    reply(response, this.#control(`${request.method} ${path}`, body))
  }

  async #receive({ request, response, path, body }: Exchange): Promise<void> {
    const { answer, latency_ms: latencyMs, retry_after_seconds: seconds } = this.#faults
    const headers = textOf(request.headers)
    const id = headers['webhook-id'] ?? null
    this.#note({ at: toRfc3339(this.#clock.now()), path, id, answer, headers, body, ...this.#read(headers, body) })
    if (latencyMs > 0) await this.#clock.sleep(latencyMs, this.#closing.signal)
    if (answer === 'none') return
    if (answer === 'cut') return void request.socket.destroy()
    if (answer === 'redirect')
      return reply(response, { status: 302, headers: { location: `${this.url}/elsewhere` }, body: '' })
    const retryAfter: Record<string, string> = answer === '500' && seconds > 0 ? { 'retry-after': String(seconds) } : {}
    reply(response, json(Number(answer), { received: answer === '200' }, retryAfter))
  }

  #read(headers: Record<string, string>, body: string): Pick<ReceivedWebhook, 'signed' | 'type' | 'repeated'> {
    const event = parse(body)
    const id = headers['webhook-id'] ?? ''
    const content = `${id}.${headers['webhook-timestamp']}.${body}`
    const given = (headers['webhook-signature'] ?? '').split(' ')
    const isBy = (secret: string) => {
      const key = Buffer.from(secret.replace(/^whsec_/, ''), 'base64')
      return given.includes(`v1,${createHmac('sha256', key).update(content).digest('base64')}`)
    }
    const type = typeof event?.type === 'string' ? event.type : null
    return { type, signed: this.#secrets.length === 0 ? null : this.#secrets.some(isBy), repeated: this.#ids.has(id) }
  }

  #note(webhook: ReceivedWebhook): void {
    this.#ids.add(webhook.id ?? '')
    this.#arrivals.push(webhook)
    if (this.#arrivals.length > MAX_ARRIVALS) {
      this.#arrivals = this.#arrivals.slice(-MAX_ARRIVALS / 2)
      this.#ids = new Set(this.#arrivals.map(({ id }) => id ?? ''))
    }
  }

  #control(call: string, body: string): HttpResponse | PageResponse {
    switch (call) {
      case 'GET /':
        return render({ consoleUrl: this.#consoleUrl, faults: RECEIVER_FAULTS, url: `${this.url}/webhooks` })
      case 'GET /sandbox/faults':
        return json(200, { ...this.#faults })
      case 'PATCH /sandbox/faults': {
        const read = readChanges(RECEIVER_FAULTS, parse(body))
        if ('problems' in read) return json(400, { problems: read.problems })
        this.setFaults(read.changes)
        return json(200, { ...this.#faults })
      }
      case 'GET /sandbox/webhooks': {
        const newest = this.#arrivals.slice(-MAX_LISTED).reverse()
        return json(200, { data: newest.map((one) => ({ ...one })) })
      }
      case 'PUT /sandbox/secrets': {
        const secrets = parse(body)?.secrets
        const fits = Array.isArray(secrets) && secrets.every((one) => typeof one === 'string' && one !== '')
        if (!fits) return json(400, { problems: ['secrets must be a list of secrets'] })
        this.setSecrets(secrets as string[])
        return json(200, { secrets: this.#secrets.length })
      }
      case 'POST /sandbox/reset':
        this.reset()
        return json(200, { ...this.#faults })
      default:
        return json(404, { message: 'No such path' })
    }
  }
}

interface Exchange {
  request: IncomingMessage
  response: ServerResponse
  path: string
  body: string
}

/** Undefined if it is too long, or if the connection breaks. */
async function bodyOf(request: IncomingMessage): Promise<string | undefined> {
  const chunks: Buffer[] = []
  let bytes = 0
  try {
    for await (const chunk of request) {
      bytes += chunk.length
      if (bytes > MAX_BODY_BYTES) return undefined
      chunks.push(chunk)
    }
  } catch {
    return undefined
  }
  return Buffer.concat(chunks).toString('utf8')
}

function reply(response: ServerResponse, { status, headers = {}, body }: HttpResponse): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(body)
}

function textOf(headers: IncomingHttpHeaders): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, String(value)]))
}

function parse(text: string): JsonObject | null {
  try {
    return JSON.parse(text) as JsonObject | null
  } catch {
    return null
  }
}
