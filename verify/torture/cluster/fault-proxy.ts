import {
  Agent,
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type ServerResponse,
  request as send,
} from 'node:http'
import { createServer as createHttp2Server, type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo, Server, Socket } from 'node:net'

const MAX_BODY_BYTES = 12 * 1024 * 1024
const KEEP_ALIVE_MS = 60_000
/** Headers of one connection are not forwarded, and those of HTTP/2 itself; the proxy sets the length. */
const HOP_BY_HOP = new Set(['connection', 'keep-alive', 'transfer-encoding', 'content-length'])

export interface Target {
  readonly name: string
  readonly url: string
}

/** A request to this node or from it. */
export interface ProxiedRequest {
  node: string
  method: string
  path: string
  body: Buffer
}

export interface ProxiedResponse {
  status: number
  headers: IncomingHttpHeaders
  body: Buffer
}

/** Called for every request and response. May delay it; `false` breaks the connection instead. */
export interface ProxyHooks {
  onRequest?: (request: ProxiedRequest) => boolean | Promise<boolean>
  onResponse?: (request: ProxiedRequest, answer: ProxiedResponse) => boolean | Promise<boolean>
}

export interface FaultProxyOptions {
  /** The target of the next request; undefined when there is none. */
  choose: () => Target | undefined
  hooks?: ProxyHooks
  onUnreachable?: (target: Target) => void
  /** Accept HTTP/2 without TLS instead of HTTP/1.1. The target gets HTTP/1.1. */
  http2?: boolean
}

/** Starts an HTTP proxy on loopback without retries: when its target fails, the client gets a 502. */
export async function startFaultProxy(options: FaultProxyOptions): Promise<FaultProxy> {
  const server = options.http2
    ? createHttp2Server()
    : createServer({ keepAliveTimeout: KEEP_ALIVE_MS, requestTimeout: 0 })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return new FaultProxy(server, options)
}

export class FaultProxy {
  readonly url: string
  readonly #server: Server
  readonly #options: FaultProxyOptions
  readonly #agent = new Agent({ keepAlive: true })
  readonly #sockets = new Set<Socket>()

  constructor(server: Server, options: FaultProxyOptions) {
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    this.#server = server
    this.#options = options
    // Requests over HTTP/2 have the same methods.
    server.on('request', (request: IncomingMessage, response: ServerResponse) => {
      this.#pass(request, response).catch(() => response.destroy())
    })
    server.on('connection', (socket: Socket) => {
      this.#sockets.add(socket)
      socket.once('close', () => this.#sockets.delete(socket))
    })
  }

  async close(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve))
    for (const socket of this.#sockets) socket.destroy()
    this.#agent.destroy()
    await closed
  }

  async #pass(received: IncomingMessage, response: ServerResponse): Promise<void> {
    response.on('error', () => {})
    const { method = 'GET', url: path = '/' } = received
    const body = await readAll(received)
    const target = this.#options.choose()
    if (!target) return refuse(response, 503)
    const request: ProxiedRequest = { node: target.name, method, path, body }
    const { hooks } = this.#options
    if (hooks?.onRequest && !(await hooks.onRequest(request))) return void response.destroy()

    const headers = { ...endToEnd(received.headers), 'content-length': String(body.byteLength) }
    const outgoing = send(`${target.url}${path}`, { method, headers, agent: this.#agent })
    // When the client hangs up, the request to the target ends too; a stream would stay open for ever.
    response.once('close', () => outgoing.destroy())
    outgoing.on('error', () => {
      this.#options.onUnreachable?.(target)
      refuse(response, 502)
    })
    outgoing.on('response', (incoming) => {
      const streams = incoming.headers['content-type']?.startsWith('text/event-stream')
      const passed = streams ? passStream(incoming, response) : this.#passWhole(request, incoming, response)
      passed.catch(() => refuse(response, 502))
    })
    outgoing.end(body)
  }

  async #passWhole(request: ProxiedRequest, incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const answer: ProxiedResponse = {
      status: incoming.statusCode ?? 502,
      headers: endToEnd(incoming.headers),
      body: await readAll(incoming),
    }
    const { hooks } = this.#options
    if (hooks?.onResponse && !(await hooks.onResponse(request, answer))) return void response.destroy()
    if (isGone(response)) return
    response.writeHead(answer.status, { ...answer.headers, 'content-length': answer.body.byteLength }).end(answer.body)
  }
}

async function passStream(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
  response.writeHead(incoming.statusCode ?? 502, endToEnd(incoming.headers))
  response.flushHeaders()
  incoming.on('data', (chunk: Buffer) => response.write(chunk))
  incoming.on('end', () => response.end())
  incoming.on('error', () => response.destroy())
}

function refuse(response: ServerResponse, status: 502 | 503): void {
  if (response.headersSent || isGone(response)) return void response.destroy()
  response.writeHead(status, { 'content-type': 'application/json', 'retry-after': '1' }).end('{"proxy":"unavailable"}')
}

/** Whether the client has left. Over HTTP/2 only the stream knows. */
function isGone(response: ServerResponse & { stream?: ServerHttp2Stream }): boolean {
  return response.stream?.destroyed ?? response.destroyed
}

function endToEnd(headers: IncomingHttpHeaders): IncomingHttpHeaders {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !HOP_BY_HOP.has(name) && !name.startsWith(':')))
}

async function readAll(message: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of message) {
    bytes += chunk.byteLength
    if (bytes > MAX_BODY_BYTES) throw new Error('the body is too large')
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}
