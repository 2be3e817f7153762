import { type ClientRequest, request as send } from 'node:http'
import { systemClock } from '../../../src/core/clock.ts'

const RECONNECT_MS = 100

/** Follows one user's events as an app does: after every break it reconnects with the last id it saw. */
export class EventFollower {
  readonly subject: string
  /** The ids of the events it saw, in this order. */
  readonly seen: number[] = []
  /** How often the service said that events are missing. */
  resets = 0
  connections = 0
  readonly #url: string
  readonly #token: string
  readonly #begun = Promise.withResolvers<void>()
  readonly #stopping = new AbortController()
  readonly #done: Promise<void>
  #request: ClientRequest | undefined
  #lastId: string | null = null

  constructor(subject: string, { url, token }: { url: string; token: string }) {
    this.subject = subject
    this.#url = url
    this.#token = token
    this.#done = this.#follow()
  }

  /** Resolves once it has an id to resume from: from then on it must not miss an event. */
  begun(): Promise<void> {
    return this.#begun.promise
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#request?.destroy()
    await this.#done
  }

  async #follow(): Promise<void> {
    const { signal } = this.#stopping
    while (!signal.aborted) {
      await this.#connect()
      await systemClock.sleep(RECONNECT_MS, signal)
    }
  }

  /** Resolves when the stream has ended for any reason. */
  #connect(): Promise<void> {
    return new Promise((resolve) => {
      const request = send(`${this.#url}/v1/events`, {
        agent: false,
        headers: {
          authorization: `Bearer ${this.#token}`,
          ...(this.#lastId === null ? {} : { 'last-event-id': this.#lastId }),
        },
      })
      this.#request = request
      request.on('error', () => {})
      request.on('close', resolve)
      request.on('response', (incoming) => {
        if (incoming.statusCode !== 200) return void request.destroy()
        this.connections += 1
        let unread = ''
        incoming.setEncoding('utf8')
        incoming.on('error', () => {})
        incoming.on('data', (text: string) => {
          const blocks = (unread + text).split('\n\n')
          // An incomplete event does not count: after a break it is sent again.
          unread = blocks.pop() ?? ''
          for (const block of blocks) this.#take(block)
        })
      })
      request.end()
    })
  }

  #take(block: string): void {
    const id = /^id: (\d+)$/m.exec(block)?.[1]
    if (id === undefined) return
    this.#lastId = id
    this.#begun.resolve()
    if (/^event: reset$/m.test(block)) this.resets += 1
    else if (/^data: /m.test(block)) this.seen.push(Number(id))
  }
}
