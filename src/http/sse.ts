import type { ServerResponse } from 'node:http'
import type { FastifyReply } from 'fastify'

/** A client that leaves more bytes unread is disconnected. It resumes from its cursor when it reconnects. */
const MAX_UNREAD_BYTES = 256 * 1024

export interface SseMessage {
  id: string
  event: string
  data: string
}

/** One event stream to one client. Its buffer is bounded, and it is over once either side has ended it. */
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
      // A proxy that buffers answers would delay every event.
      'x-accel-buffering': 'no',
    })
    raw.flushHeaders()
    // A stream lives for hours. Its request headers, mostly the credential, are not kept in memory for so long.
    reply.request.raw.headers = {}
    reply.request.raw.rawHeaders = []
  }

  get isOpen(): boolean {
    return !this.#response.destroyed && !this.#response.writableEnded
  }

  get lastWriteMs(): number {
    return this.#lastWriteMs
  }

  /** Whether the client should read buffered data before it gets more. */
  get isFull(): boolean {
    return this.#response.writableNeedDrain
  }

  /** Calls the listener at once if the client has left already. */
  onClose(listener: () => void): void {
    if (this.#response.closed) listener()
    else this.#response.once('close', listener)
  }

  /** Resolves when the buffer has space again: a long history is sent in pieces. */
  async drained(): Promise<void> {
    if (!this.isOpen || !this.isFull) return
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

  /** Sends a cursor without an event: clients keep an id that has no data. */
  mark(id: string, nowMs: number): void {
    this.#write(`id: ${id}\n\n`, nowMs)
  }

  comment(nowMs: number): void {
    this.#write(':\n\n', nowMs)
  }

  /** The client reconnects after `retryMs`, to this or another node, with the last id it received. */
  end(retryMs: number, nowMs: number): void {
    if (!this.isOpen) return
    this.#write(`retry: ${retryMs}\n\n`, nowMs)
    this.#response.end()
  }

  #write(text: string, nowMs: number): void {
    if (!this.isOpen) return
    this.#lastWriteMs = nowMs
    this.#response.write(text)
    if (this.#response.writableLength > MAX_UNREAD_BYTES) this.#response.destroy()
  }
}
