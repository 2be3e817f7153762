import type { ServerResponse } from 'node:http'
import type { FastifyReply } from 'fastify'

/** A client with more unread bytes is disconnected. When it reconnects, it resumes from its cursor. */
const MAX_UNREAD_BYTES = 256 * 1024

export interface SseMessage {
  id: string
  event: string
  data: string
}

/** A message on the wire. `data` is one line. */
export function writeSse({ id, event, data }: SseMessage): string {
  return `id: ${id}\nevent: ${event}\ndata: ${data}\n\n`
}

/** One event stream to one client. Its buffer is bounded. Either side can end the stream. */
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
    // A stream lives for hours. Its request headers, including the credential, must not stay in memory for so long.
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

  send(message: SseMessage, nowMs: number): void {
    this.#write(writeSse(message), nowMs)
  }

  /**
   * For a caller that waits for `drained` whenever the buffer is full. Then at most this one piece is buffered, so the
   * limit on unread bytes does not apply.
   */
  sendPiece(piece: Buffer, nowMs: number): void {
    if (!this.isOpen) return
    this.#lastWriteMs = nowMs
    this.#response.write(piece)
  }

  /** Sends a cursor without an event: clients keep an id that has no data. */
  mark(id: string, nowMs: number): void {
    this.#write(`id: ${id}\n\n`, nowMs)
  }

  comment(nowMs: number): void {
    this.#write(':\n\n', nowMs)
  }

  /** Written at once, so that a quiet stream does not look broken. Clients skip it: it is a comment. */
  greet(nowMs: number): void {
    this.#write(': connected\n\n', nowMs)
  }

  /** The client reconnects after `retryMs`, to this or another node, with the last id it received. */
  end(retryMs: number, nowMs: number): void {
    if (!this.isOpen) return
    this.#write(`retry: ${retryMs}\n\n`, nowMs)
    this.#response.end()
  }

  /** Disconnects a client that does not read. */
  cut(): void {
    this.#response.destroy()
  }

  #write(text: string, nowMs: number): void {
    if (!this.isOpen) return
    this.#lastWriteMs = nowMs
    this.#response.write(text)
    if (this.#response.writableLength > MAX_UNREAD_BYTES) this.#response.destroy()
  }
}
