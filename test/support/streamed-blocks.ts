import { type ClientRequest, type IncomingHttpHeaders, type IncomingMessage, request as send } from 'node:http'

export interface OpenedStream {
  outgoing: ClientRequest
  incoming: IncomingMessage
}

/** Requests a stream and reads the head of its response. Rejects if the response is not a 200. */
export async function requestStream(url: string, headers: Record<string, string>): Promise<OpenedStream> {
  const outgoing = send(url, { agent: false, headers })
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
  outgoing.once('response', resolve)
  outgoing.once('error', reject)
  outgoing.end()
  const incoming = await promise
  if (incoming.statusCode === 200) return { outgoing, incoming }
  outgoing.destroy()
  throw new Error(`The stream was answered with ${incoming.statusCode}`)
}

/** Reads a stream of server-sent events block by block. What a block means is up to the subclass. */
export abstract class StreamedBlocks {
  readonly headers: IncomingHttpHeaders
  retryMs: number | null = null
  comments = 0
  isOver = false
  readonly #outgoing: ClientRequest
  #rest = ''
  #watchers: (() => void)[] = []

  constructor({ outgoing, incoming }: OpenedStream) {
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

  protected abstract readBlock(block: string): void

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
    for (const block of blocks) this.readBlock(block)
    this.#notify()
  }

  #notify(): void {
    for (const notify of this.#watchers.splice(0)) notify()
  }
}
