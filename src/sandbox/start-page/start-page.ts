import { createServer, type IncomingMessage, type Server } from 'node:http'
import type { AgentRuntime } from '../agent-runtime/agent-runtime.ts'
import { type HttpResponse, json } from '../http-response.ts'
import type { IdentityProvider } from '../identity-provider/identity-provider.ts'
import { authorityOf, isFromOtherSite, listenOnLoopback } from '../loopback.ts'
import { preparePage } from '../page.ts'
import type { SandboxPushProvider } from '../push-provider/push-provider.ts'
import type { WebhookReceiver } from '../webhook-receiver/webhook-receiver.ts'

const HOST = '127.0.0.1'
const TOKEN_SECONDS = 12 * 3600
const render = preparePage({ file: 'start-page/page.html' })

interface StartPageOptions {
  apiUrl: string
  consoleUrl: string
  port: number
  identity: IdentityProvider
  runtime: AgentRuntime
  push: SandboxPushProvider
  receiver: WebhookReceiver
}

/** A page with links to all parts of `dev`, and `/environment` with addresses and tokens for `dev-env`. */
export async function startStartPage(options: StartPageOptions): Promise<StartPage> {
  const server = createServer({ requestTimeout: 10_000 })
  await listenOnLoopback(server, { host: HOST, port: options.port, anyIfTaken: true })
  return new StartPage(server, options)
}

export class StartPage {
  readonly url: string
  readonly #server: Server
  readonly #options: StartPageOptions

  constructor(server: Server, options: StartPageOptions) {
    this.url = `http://${authorityOf(server, HOST)}`
    this.#server = server
    this.#options = options
    server.on('request', (request, response) => {
      request.resume()
      const { status, headers = {}, body } = this.#answer(request)
      const defaults = { 'content-type': 'application/json', 'x-content-type-options': 'nosniff' }
      response.writeHead(status, { ...defaults, ...headers }).end(body)
    })
  }

  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()))
    this.#server.closeAllConnections()
    await closed
  }

  #answer(request: IncomingMessage): HttpResponse {
    // The page and the variables contain tokens, which pages of other sites must not read.
    if (isFromOtherSite(request.headers)) return json(403, { error: 'The sandbox serves this machine only' })
    const { pathname } = new URL(request.url ?? '/', this.url)
    if (request.method !== 'GET' && request.method !== 'HEAD') return json(405, { error: 'Wrong method' })
    if (pathname === '/') return this.#page()
    if (pathname === '/environment') return json(200, this.#variables(), { 'cache-control': 'no-store' })
    return json(404, { error: 'No such path' })
  }

  #page(): HttpResponse {
    const { apiUrl, consoleUrl, identity, runtime, push, receiver } = this.#options
    const { ADA } = this.#variables()
    return render({
      startUrl: this.url,
      apiUrl,
      runtimeUrl: runtime.url,
      links: {
        console: consoleUrl,
        reference: `${apiUrl}/docs#token=${ADA}`,
        tokens: identity.url,
        runtime: runtime.url,
        push: push.plainUrl,
        receiver: receiver.url,
      },
    })
  }

  #variables(): { API: string; ADA: string; ADMIN: string; RUNTIME: string } {
    const { apiUrl, identity, runtime } = this.#options
    const token = (user: string) => identity.mint({ user, expiresInSeconds: TOKEN_SECONDS })
    return { API: apiUrl, ADA: token('ada'), ADMIN: token('admin'), RUNTIME: runtime.url }
  }
}
