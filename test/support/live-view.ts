import type { IncomingMessage } from 'node:http'
import { type OpenedStream, requestStream, StreamedBlocks } from './streamed-blocks.ts'

export interface LiveViewOptions {
  token: string
  lastEventId?: string
  /** With its question mark. */
  query?: string
}

/** Opens the live output of a job and reads its head. */
export async function openLive(url: string, jobId: string, options: LiveViewOptions): Promise<LiveView> {
  const { token, lastEventId, query = '' } = options
  const opened = await requestStream(`${url}/jobs/${jobId}/live${query}`, {
    authorization: `Bearer ${token}`,
    ...(lastEventId === undefined ? {} : { 'last-event-id': lastEventId }),
  })
  return new LiveView(opened)
}

/** One viewer, and everything it has received. */
export class LiveView extends StreamedBlocks {
  readonly received: { id: string; event: string; data: string }[] = []
  readonly #incoming: IncomingMessage

  constructor(opened: OpenedStream) {
    super(opened)
    this.#incoming = opened.incoming
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

  /** Stops reading, without closing the connection. */
  freeze(): void {
    this.#incoming.pause()
  }

  #join(field: 'text' | 'reasoning'): string {
    const messages = this.of<{ role: string; text?: string; reasoning?: string }>('message')
    return messages.map((message) => (message.role === 'assistant' ? (message[field] ?? '') : '')).join('')
  }

  protected override readBlock(block: string): void {
    const [, id, event, data] = /^id: (.*)\nevent: (.*)\ndata: (.*)$/.exec(block) ?? []
    if (id !== undefined && event !== undefined && data !== undefined) this.received.push({ id, event, data })
    else if (block === ':') this.comments += 1
    else if (block.startsWith('retry: ')) this.retryMs = Number(block.slice(7))
    else throw new Error(`Not an event: ${block}`)
  }
}
