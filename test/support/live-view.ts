import { type ClientRequest, type IncomingHttpHeaders, type IncomingMessage, request as send } from 'node:http'

export interface LiveViewOptions {
  token: string
  lastEventId?: string
  /** With its question mark. */
  query?: string
}

/** Opens the live output of a job and reads its head. */
export async function openLive(url: string, jobId: string, options: LiveViewOptions): Promise<LiveView> {
  const { token, lastEventId, query = '' } = options
  const outgoing = send(`${url}/jobs/${jobId}/live${query}`, {
    agent: false,
    headers: {
      authorization: `Bearer ${token}`,
      ...(lastEventId === undefined ? {} : { 'last-event-id': lastEventId }),
    },
  })
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
  outgoing.once('response', resolve)
  outgoing.once('error', reject)
  outgoing.end()
  const incoming = await promise
  if (incoming.statusCode === 200) return new LiveView(outgoing, incoming)
  outgoing.destroy()
  throw new Error(`The stream was answered with ${incoming.statusCode}`)
}

/** One viewer, and everything it has received. */
export class LiveView {
  readonly headers: IncomingHttpHeaders
  readonly received: { id: string; event: string; data: string }[] = []
  comments = 0
  retryMs: number | null = null
  isOver = false
  readonly #outgoing: ClientRequest
  readonly #incoming: IncomingMessage
  #rest = ''
  #watchers: (() => void)[] = []

  constructor(outgoing: ClientRequest, incoming: IncomingMessage) {
    this.#outgoing = outgoing
    this.#incoming = incoming
    this.headers = incoming.headers
    incoming.setEncoding('utf8')
    incoming.on('data', (text: string) => this.#read(text))
    incoming.on('error', () => {})
    incoming.once('close', () => {
      this.isOver = true
      this.#notify()
    })
    outgoing.on('error', () => {})
  }

  get names(): string[] {
    return this.received.map(({ event }) => event)
  }

  get ids(): string[] {
    return this.received.map(({ id }) => id)
  }

  of<Data = unknown>(event: string): Data[] {
    return this.received.filter((one) => one.event === event).map(({ data }) => JSON.parse(data) as Data)
  }

  /** The assistant's text so far. */
  get text(): string {
    return this.#join('text')
  }

  get reasoning(): string {
    return this.#join('reasoning')
  }

  /** The status in which the job ended. Null until then. */
  get status(): string | null {
    return this.of<{ status: string }>('end')[0]?.status ?? null
  }

  async until(holds: () => boolean): Promise<void> {
    while (!holds()) {
      if (this.isOver) throw new Error('The stream ended')
      await new Promise<void>((resolve) => this.#watchers.push(resolve))
    }
  }

  async ended(): Promise<void> {
    while (!this.isOver) await new Promise<void>((resolve) => this.#watchers.push(resolve))
  }

  /** Stops reading, without closing the connection. */
  freeze(): void {
    this.#incoming.pause()
  }

  close(): void {
    this.#outgoing.destroy()
  }

  #join(field: 'text' | 'reasoning'): string {
    const messages = this.of<{ role: string; text?: string; reasoning?: string }>('message')
    return messages.map((message) => (message.role === 'assistant' ? (message[field] ?? '') : '')).join('')
  }

  #read(text: string): void {
    const blocks = (this.#rest + text).split('\n\n')
    this.#rest = blocks.pop() ?? ''
    for (const block of blocks) this.#readBlock(block)
    this.#notify()
  }

  #readBlock(block: string): void {
    const [, id, event, data] = /^id: (.*)\nevent: (.*)\ndata: (.*)$/.exec(block) ?? []
    if (id !== undefined && event !== undefined && data !== undefined) this.received.push({ id, event, data })
    else if (block === ':') this.comments += 1
    else if (block.startsWith('retry: ')) this.retryMs = Number(block.slice(7))
    else throw new Error(`Not an event: ${block}`)
  }

  #notify(): void {
    for (const notify of this.#watchers.splice(0)) notify()
  }
}
