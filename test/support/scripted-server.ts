import { createServer, type IncomingHttpHeaders, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Clock } from '../../client/src/http/clock.ts'
import { atEnd } from './at-end.ts'

export interface SeenRequest {
  method: string
  path: string
  headers: IncomingHttpHeaders
  body: string
}

/** A whole answer, or a function that writes it: for streams and for answers that never come. */
export type ScriptedAnswer =
  | { status: number; headers?: Record<string, string>; body?: unknown }
  | ((response: ServerResponse, request: SeenRequest) => void)

/** Answers each request with the next line of its script, and the last one for ever. */
export class ScriptedServer {
  readonly requests: SeenRequest[] = []
  readonly #server: Server
  #script: ScriptedAnswer[]

  constructor(script: ScriptedAnswer[]) {
    this.#script = script
    this.#server = createServer(async (incoming, response) => {
      const chunks: Buffer[] = []
      for await (const chunk of incoming) chunks.push(chunk)
      const { method = '', url: path = '', headers } = incoming
      const request = { method, path, headers, body: Buffer.concat(chunks).toString() }
      this.requests.push(request)
      const answer = this.#script.length > 1 ? this.#script.shift() : this.#script[0]
      if (typeof answer === 'function') return answer(response, request)
      const body = answer?.body
      const isText = typeof body === 'string'
      response.writeHead(answer?.status ?? 500, {
        'content-type': isText ? 'text/html' : 'application/json',
        ...answer?.headers,
      })
      response.end(isText ? body : JSON.stringify(body))
    })
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`
  }

  async listen(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve))
    return this
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise((resolve) => this.#server.close(resolve))
  }
}

const servers: ScriptedServer[] = []
atEnd(() => Promise.all(servers.map((server) => server.close())))

export async function startScriptedServer(...script: ScriptedAnswer[]): Promise<ScriptedServer> {
  const server = await new ScriptedServer(script).listen()
  servers.push(server)
  return server
}

/** Sleeps end at once and are recorded. Timeouts, which are sleeps of exactly these lengths, never end. */
export class QuickClock implements Clock {
  readonly pauses: number[] = []
  readonly #limitsMs: ReadonlySet<number>

  constructor(limitsMs: readonly number[] = [20_000, 45_000]) {
    this.#limitsMs = new Set(limitsMs)
  }

  now(): number {
    return Date.UTC(2026, 0, 1)
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    if (!this.#limitsMs.has(ms)) {
      this.pauses.push(ms)
      return new Promise((resolve) => setImmediate(resolve))
    }
    return new Promise((resolve) => {
      if (signal?.aborted) resolve()
      else signal?.addEventListener('abort', () => resolve(), { once: true })
    })
  }
}
