import { Agent, type IncomingMessage, request as send } from 'node:http'
import type { TestResponse } from './http-client.ts'

export interface RawRequest {
  method: string
  /** As it goes on the request line. */
  target: string
  headers: readonly (readonly [name: string, value: string])[]
  body: string | null
}

/** Shorter than the server's own timeouts: a request without an answer by then hangs. */
const STALL_MS = 20_000

/** Sends generated requests, also with repeated headers. Reads the start of an event stream and closes it. */
export class FuzzClient {
  readonly #url: URL
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 16 })

  constructor(url: string) {
    this.#url = new URL(url)
  }

  request({ method, target, headers, body }: RawRequest): Promise<TestResponse> {
    const { promise, resolve, reject } = Promise.withResolvers<TestResponse>()
    const { hostname, port } = this.#url
    const outgoing = send({ agent: this.#agent, hostname, port, method, path: target, timeout: STALL_MS })
    for (const [name, value] of headers) outgoing.appendHeader(name, value)
    outgoing.once('timeout', () => outgoing.destroy(new Error(`No answer to ${method} ${target}`)))
    outgoing.once('error', reject)
    outgoing.once('response', (incoming) => {
      read(incoming).then(resolve, reject)
    })
    const bytes = Buffer.from(body ?? '')
    // Node leaves it out where it expects no body, and the bytes would then be read as the next request.
    if (body !== null) outgoing.setHeader('content-length', bytes.length)
    outgoing.end(bytes)
    return promise
  }

  close(): void {
    this.#agent.destroy()
  }
}

async function read(incoming: IncomingMessage): Promise<TestResponse> {
  const { statusCode: status = 0, headers } = incoming
  const type = headers['content-type'] ?? ''
  if (status === 200 && type.startsWith('text/event-stream')) {
    incoming.destroy()
    return { status, headers, body: '', text: '' }
  }
  const chunks: Buffer[] = []
  for await (const chunk of incoming) chunks.push(chunk)
  const text = Buffer.concat(chunks).toString()
  return { status, headers, text, body: text !== '' && /^application\/json\b/.test(type) ? JSON.parse(text) : text }
}
