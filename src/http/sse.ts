import type { ServerResponse } from 'node:http'
import type { FastifyReply } from 'fastify'

/** What may lie unread at a slow reader before it is cut; a reader that comes back resumes from its cursor. */
const MAX_UNREAD_BYTES = 256 * 1024

export interface SseMessage {
  id: string
  event: string
  data: string
}

/** One open event stream: it never buffers without bound, and it is over once either side has ended it. */
export class SseStream {
  readonly #response: ServerResponse
  #lastWriteMs: number

  constructor(reply: FastifyReply, nowMs: number) {
    const { raw } = reply.hijack()
    this.#response = raw
    this.#lastWriteMs = nowMs
    const headers = reply.getHeaders() as Record<string, string | string[] | number>
    raw.writeHead(200, {
      ...headers,
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-store',
      // Proxies that gather answers before passing them on would hold every event back.
      'x-accel-buffering': 'no',
    })
    raw.flushHeaders()
    // A stream lives for hours, and its credential need not lie in memory for as long; it is most of what was sent, too.
    reply.request.raw.headers = {}
    reply.request.raw.rawHeaders = []
  }

  get open(): boolean {
    return !this.#response.destroyed && !this.#response.writableEnded
  }

  get lastWriteMs(): number {
    return this.#lastWriteMs
  }

  /** Whether the reader should take some of what it has before it gets more. */
  get isFull(): boolean {
    return this.#response.writableNeedDrain
  }

  /** Also when the client went before the answer began. */
  onClose(listener: () => void): void {
    if (this.#response.closed) listener()
    else this.#response.once('close', listener)
  }

  /** Large histories are sent in pieces: resolves when the reader has room for the next. */
  async drained(): Promise<void> {
    if (!this.open || !this.isFull) return
    await new Promise<void>((resolve) => {
      const done = () => {
        this.#response.off('drain', done)
        this.#response.off('close', done)
        resolve()
      }
      this.#response.on('drain', done)
      this.#response.on('close', done)
    })
  }

  send({ id, event, data }: SseMessage, nowMs: number): void {
    this.#write(`id: ${id}\nevent: ${event}\ndata: ${data}\n\n`, nowMs)
  }

  /** The place to come back to, without an event: clients keep an id that stands alone. */
  mark(id: string, nowMs: number): void {
    this.#write(`id: ${id}\n\n`, nowMs)
  }

  comment(nowMs: number): void {
    this.#write(':\n\n', nowMs)
  }

  /** The client comes back after `retryMs`, here or on another node, with the last id it saw. */
  end(retryMs: number, nowMs: number): void {
    if (!this.open) return
    this.#write(`retry: ${retryMs}\n\n`, nowMs)
    this.#response.end()
  }

  #write(text: string, nowMs: number): void {
    if (!this.open) return
    this.#lastWriteMs = nowMs
    this.#response.write(text)
    if (this.#response.writableLength > MAX_UNREAD_BYTES) this.#response.destroy()
  }
}
