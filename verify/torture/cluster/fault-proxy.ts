import {
  Agent,
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type Server,
  type ServerResponse,
  request as send,
} from 'node:http'
import type { AddressInfo } from 'node:net'

const MAX_BODY_BYTES = 12 * 1024 * 1024
const KEEP_ALIVE_MS = 60_000
/** What concerns one connection is not passed on; lengths are stated anew. */
const HOP_BY_HOP = new Set(['connection', 'keep-alive', 'transfer-encoding', 'content-length'])

export interface Target {
  readonly name: string
  readonly url: string
}

/** A request on its way: to the node of this name, or from it. */
export interface Passing {
  node: string
  method: string
  path: string
  body: Buffer
}

export interface Answer {
  status: number
  headers: IncomingHttpHeaders
  body: Buffer
}

/** Sees what passes, may hold it, and with `false` breaks the connection instead. */
export interface Watch {
  arriving?: (passing: Passing) => boolean | Promise<boolean>
  answering?: (passing: Passing, answer: Answer) => boolean | Promise<boolean>
}

export interface GateOptions {
  /** Where this request goes; undefined when there is nowhere. */
  choose: () => Target | undefined
  watch?: Watch
  onUnreachable?: (target: Target) => void
}

/** Starts an HTTP proxy on loopback that tries nothing twice: what breaks behind it is broken for its client, as a 502. */
export async function startGate(options: GateOptions): Promise<Gate> {
  const server = createServer({ keepAliveTimeout: KEEP_ALIVE_MS, requestTimeout: 0 })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return new Gate(server, options)
}

export class Gate {
  readonly url: string
  readonly #server: Server
  readonly #options: GateOptions
  readonly #agent = new Agent({ keepAlive: true })

  constructor(server: Server, options: GateOptions) {
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    this.#server = server
    this.#options = options
    server.on('request', (request, response) => {
      this.#pass(request, response).catch(() => response.destroy())
    })
  }

  async close(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve))
    this.#server.closeAllConnections()
    this.#agent.destroy()
    await closed
  }

  async #pass(request: IncomingMessage, response: ServerResponse): Promise<void> {
    response.on('error', () => {})
    const { method = 'GET', url: path = '/' } = request
    const body = await readAll(request)
    const target = this.#options.choose()
    if (!target) return refuse(response, 503)
    const passing: Passing = { node: target.name, method, path, body }
    const { watch } = this.#options
    if (watch?.arriving && !(await watch.arriving(passing))) return void response.destroy()

    const headers = { ...endToEnd(request.headers), 'content-length': String(body.byteLength) }
    const outgoing = send(`${target.url}${path}`, { method, headers, agent: this.#agent })
    // A client that left has nothing more to ask; a stream behind it would stay open for ever.
    response.once('close', () => outgoing.destroy())
    outgoing.on('error', () => {
      this.#options.onUnreachable?.(target)
      refuse(response, 502)
    })
    outgoing.on('response', (incoming) => {
      const streams = incoming.headers['content-type']?.startsWith('text/event-stream')
      const passed = streams ? passStream(incoming, response) : this.#passWhole(passing, incoming, response)
      passed.catch(() => refuse(response, 502))
    })
    outgoing.end(body)
  }

  async #passWhole(passing: Passing, incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const answer: Answer = {
      status: incoming.statusCode ?? 502,
      headers: endToEnd(incoming.headers),
      body: await readAll(incoming),
    }
    const { watch } = this.#options
    if (watch?.answering && !(await watch.answering(passing, answer))) return void response.destroy()
    if (response.destroyed) return
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
  if (response.headersSent || response.destroyed) return void response.destroy()
  response.writeHead(status, { 'content-type': 'application/json', 'retry-after': '1' }).end('{"proxy":"unavailable"}')
}

function endToEnd(headers: IncomingHttpHeaders): IncomingHttpHeaders {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !HOP_BY_HOP.has(name)))
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
