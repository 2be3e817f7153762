import type { IncomingHttpHeaders, ServerResponse } from 'node:http'
import { createServer, type Server } from 'node:https'
import type { AddressInfo } from 'node:net'
import { Webhook, WebhookVerificationError } from 'standardwebhooks'
import { type Certificate, selfSignedCertificate } from '../../src/sandbox/certificate.ts'
import { atEnd } from './at-end.ts'
import { until } from './until.ts'

export interface ReceivedWebhook {
  path: string
  headers: IncomingHttpHeaders
  body: string
}

export type Answer = (response: ServerResponse, webhook: ReceivedWebhook) => void

export const accept: Answer = (response) => response.end('thanks')
export const answerWith =
  (status: number, headers: Record<string, string> = {}): Answer =>
  (response) =>
    response.writeHead(status, headers).end(`status ${status}`)
/** Keeps the request open. */
export const hang: Answer = () => {}

/** A backend that receives webhooks over TLS. Each path may have its own answer. */
export class WebhookReceiver {
  readonly received: ReceivedWebhook[] = []
  readonly certificate: Certificate
  readonly #server: Server
  readonly #answers = new Map<string, Answer>()

  constructor(certificate: Certificate) {
    this.certificate = certificate
    this.#server = createServer(certificate, async (request, response) => {
      const chunks: Buffer[] = []
      for await (const chunk of request) chunks.push(chunk)
      const { url: path = '', headers } = request
      const webhook = { path, headers, body: Buffer.concat(chunks).toString() }
      this.received.push(webhook)
      const answer = this.#answers.get(path) ?? accept
      answer(response, webhook)
    })
  }

  url(path = '/'): string {
    return `https://127.0.0.1:${(this.#server.address() as AddressInfo).port}${path}`
  }

  answer(path: string, answer: Answer): void {
    this.#answers.set(path, answer)
  }

  at(path: string): ReceivedWebhook[] {
    return this.received.filter((webhook) => webhook.path === path)
  }

  /** Resolves with what arrived at a path, once there are this many. */
  async until(path: string, count: number): Promise<ReceivedWebhook[]> {
    await until(() => this.at(path).length >= count)
    return this.at(path)
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

export async function startReceiver(): Promise<WebhookReceiver> {
  const receiver = await new WebhookReceiver(await selfSignedCertificate(['127.0.0.1'], Date.now())).listen()
  atEnd(() => receiver.close())
  return receiver
}

/** Verifies a message with the published library of Standard Webhooks. The times of messages are those of the test. */
export function isSignedWith(secret: string, { headers, body }: ReceivedWebhook): boolean {
  const realNow = Date.now
  Date.now = () => Number(headers['webhook-timestamp']) * 1_000
  try {
    new Webhook(secret).verify(body, headers as Record<string, string>)
    return true
  } catch (error) {
    if (error instanceof WebhookVerificationError) return false
    throw error
  } finally {
    Date.now = realNow
  }
}
