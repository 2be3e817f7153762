import { once } from 'node:events'
import { Agent, type IncomingHttpHeaders, type OutgoingHttpHeaders, request as send } from 'node:http'
import { connect } from 'node:net'

export interface TestRequest {
  /** Goes into `Authorization: Bearer`. */
  token?: string
  /** Goes into `X-API-Key`. */
  key?: string
  headers?: OutgoingHttpHeaders
  /** Sent as JSON. */
  body?: unknown
  /** Sent as it is; the caller names its content type. */
  raw?: string | Buffer
}

export interface TestResponse<Body = unknown> {
  status: number
  headers: IncomingHttpHeaders
  /** Parsed where the answer says it is JSON, else the text. */
  body: Body
  text: string
}

/** Idle connections are closed long before the service closes them, so that no request meets a connection that just ended. */
const IDLE_MS = 10_000

/** Sends real HTTP requests to one service over its own connections. It never retries and never follows redirects. */
export class HttpClient {
  readonly url: string
  readonly #agent = new Agent({ keepAlive: true, timeout: IDLE_MS })

  constructor(url: string) {
    this.url = url
  }

  async request<Body = unknown>(method: string, path: string, options: TestRequest = {}): Promise<TestResponse<Body>> {
    const { hostname, port } = new URL(this.url)
    const json = options.body === undefined ? undefined : JSON.stringify(options.body)
    const headers = {
      ...(options.token === undefined ? {} : { authorization: `Bearer ${options.token}` }),
      ...(options.key === undefined ? {} : { 'x-api-key': options.key }),
      ...(json === undefined ? {} : { 'content-type': 'application/json' }),
      ...options.headers,
    }
    const outgoing = send({ agent: this.#agent, hostname, port, method, path, headers })
    outgoing.end(options.raw ?? json)
    const [incoming] = await once(outgoing, 'response')
    const chunks: Buffer[] = []
    for await (const chunk of incoming) chunks.push(chunk)
    return toResponse<Body>(incoming.statusCode, incoming.headers, Buffer.concat(chunks).toString())
  }

  /** Writes these bytes to a socket and reads one answer, which must end the connection. */
  async exchange<Body = unknown>(bytes: string | Buffer): Promise<TestResponse<Body>> {
    const { hostname, port } = new URL(this.url)
    const socket = connect({ host: hostname, port: Number(port) })
    const chunks: Buffer[] = []
    socket.on('data', (chunk) => chunks.push(chunk))
    // A server that refuses early closes while the client still writes; only its answer matters.
    socket.on('error', () => {})
    const closed = new Promise((resolve) => socket.once('close', resolve))
    socket.write(bytes)
    await closed
    return parseAnswer<Body>(Buffer.concat(chunks).toString())
  }

  close(): void {
    this.#agent.destroy()
  }
}

function parseAnswer<Body>(answer: string): TestResponse<Body> {
  const [head = '', ...rest] = answer.split('\r\n\r\n')
  const [statusLine = '', ...lines] = head.split('\r\n')
  const headers: IncomingHttpHeaders = {}
  for (const line of lines) {
    const [name = '', ...value] = line.split(':')
    headers[name.toLowerCase()] = value.join(':').trim()
  }
  return toResponse<Body>(Number(statusLine.split(' ')[1]), headers, rest.join('\r\n\r\n'))
}

function toResponse<Body>(status: number, headers: IncomingHttpHeaders, text: string): TestResponse<Body> {
  const isJson = text !== '' && /^application\/json\b/.test(headers['content-type'] ?? '')
  return { status, headers, text, body: (isJson ? JSON.parse(text) : text) as Body }
}
