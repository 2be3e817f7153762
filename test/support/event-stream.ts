import { requestStream, StreamedBlocks } from './streamed-blocks.ts'

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
  const opened = await requestStream(`${url}${path}`, {
    accept: 'text/event-stream',
    ...(options.token === undefined ? {} : { authorization: `Bearer ${options.token}` }),
    ...(options.key === undefined ? {} : { 'x-api-key': options.key }),
    ...(options.lastEventId === undefined ? {} : { 'last-event-id': options.lastEventId }),
  })
  return new EventStream(opened)
}

/** Reads one stream as a browser does: it keeps ids, also those without data, and skips comments. */
export class EventStream extends StreamedBlocks {
  readonly received: StreamedEvent[] = []
  /** The last id seen, from which a client would resume. */
  lastEventId = ''
  #taken = 0

  /** The next event that was not taken yet. */
  async next<Data = unknown>(): Promise<StreamedEvent<Data>> {
    await this.until(() => this.received.length > this.#taken)
    this.#taken += 1
    return this.received[this.#taken - 1] as StreamedEvent<Data>
  }

  protected override readBlock(block: string): void {
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
}
