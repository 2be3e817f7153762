import { type ClientRequest, type IncomingHttpHeaders, type IncomingMessage, request as send } from 'node:http'

export interface StreamedEvent<Data = unknown> {
  id: string
  event: string
  data: { id: string; type: string; created_at: string; data: Data }
}

export interface StreamOptions {
  /** Goes into `Authorization: Bearer`. */
  token?: string
  /** Goes into `X-API-Key`. */
  key?: string
  /** Goes into `Last-Event-ID`. */
  lastEventId?: string
}

/** Opens a stream and reads its head. To test a refusal, use an `HttpClient`. */
export async function openStream(url: string, path: string, options: StreamOptions): Promise<EventStream> {
  const outgoing = send(`${url}${path}`, {
    agent: false,
    headers: {
      accept: 'text/event-stream',
      ...(options.token === undefined ? {} : { authorization: `Bearer ${options.token}` }),
      ...(options.key === undefined ? {} : { 'x-api-key': options.key }),
      ...(options.lastEventId === undefined ? {} : { 'last-event-id': options.lastEventId }),
    },
  })
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
  outgoing.once('response', resolve)
  outgoing.once('error', reject)
  outgoing.end()
  const incoming = await promise
  if (incoming.statusCode === 200) return new EventStream(outgoing, incoming)
  outgoing.destroy()
  throw new Error(`The stream was answered with ${incoming.statusCode}`)
}

/** Reads one stream as a browser does: it keeps ids, also those without data, and skips comments. */
export class EventStream {
  readonly headers: IncomingHttpHeaders
  readonly received: StreamedEvent[] = []
  /** The last id seen, from which a client would resume. */
  lastEventId = ''
  retryMs: number | null = null
  comments = 0
  isOver = false
  readonly #outgoing: ClientRequest
  #taken = 0
  #rest = ''
  #watchers: (() => void)[] = []

  constructor(outgoing: ClientRequest, incoming: IncomingMessage) {
    this.#outgoing = outgoing
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

  /** The next event that was not taken yet. */
  async next<Data = unknown>(): Promise<StreamedEvent<Data>> {
    await this.until(() => this.received.length > this.#taken)
    this.#taken += 1
    return this.received[this.#taken - 1] as StreamedEvent<Data>
  }

  /** Checks the condition whenever data arrives; rejects if the stream ends before it holds. */
  async until(holds: () => boolean): Promise<void> {
    while (!holds()) {
      if (this.isOver) throw new Error('The stream ended')
      await new Promise<void>((resolve) => this.#watchers.push(resolve))
    }
  }

  /** Resolves once the server, or `close`, has ended it. */
  async ended(): Promise<void> {
    while (!this.isOver) await new Promise<void>((resolve) => this.#watchers.push(resolve))
  }

  close(): void {
    this.#outgoing.destroy()
  }

  #read(text: string): void {
    const blocks = (this.#rest + text).split('\n\n')
    this.#rest = blocks.pop() ?? ''
    for (const block of blocks) this.#readBlock(block)
    this.#notify()
  }

  #readBlock(block: string): void {
    const fields = new Map<string, string>()
    for (const line of block.split('\n')) {
      if (line.startsWith(':')) this.comments += 1
      const [, name, value] = /^(\w+): ?(.*)$/s.exec(line) ?? []
      if (name !== undefined && value !== undefined) fields.set(name, value)
    }
    const id = fields.get('id')
    if (id !== undefined) this.lastEventId = id
    const retry = fields.get('retry')
    if (retry !== undefined) this.retryMs = Number(retry)
    const data = fields.get('data')
    if (data === undefined) return
    this.received.push({ id: this.lastEventId, event: fields.get('event') ?? 'message', data: JSON.parse(data) })
  }

  #notify(): void {
    for (const look of this.#watchers.splice(0)) look()
  }
}
