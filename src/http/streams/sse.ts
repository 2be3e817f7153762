import type { ServerResponse } from 'node:http'
import type { FastifyReply } from 'fastify'
import type { Clock } from '../../core/clock.ts'
import { takenBytesOf } from '../admission/stalled-readers.ts'

/** A client with more unread bytes is disconnected. When it reconnects, it resumes from its cursor. */
const MAX_UNREAD_BYTES = 256 * 1024
/** A client that takes nothing for this long while its buffer is full is disconnected. */
const MAX_STUCK_MS = 30_000
const HEARTBEAT_MS = 15_000

interface SseMessage {
  id: string
  event: string
  data: string
}

/** A message on the wire. `data` is one line. */
export function writeSse({ id, event, data }: SseMessage): string {
  return `id: ${id}\nevent: ${event}\ndata: ${data}\n\n`
}

export interface SseOptions {
  clock: Clock
  /** The stream ends at this time at the latest. */
  endsAtMs: number
  /** Whether an admin has blocked the client's user meanwhile. */
  isBlocked: () => boolean
  /** After the end, the client reconnects after this time. */
  retryMs: number
  /** Called after each heartbeat. */
  onHeartbeat?: () => void
  /** Called when `cut` disconnects the client. */
  onCut?: () => void
}

/**
 * One stream to one client, from its reservation to its end. Its buffer is bounded. Either side can end the stream. It ends
 * when the credential expires or the user is blocked.
 */
export class SseStream {
  readonly #options: SseOptions
  /** Null once the stream is released. */
  #listeners: (() => void)[] | null = []
  #response: ServerResponse | null = null
  #lastWriteMs = 0
  /** What the client had taken when the buffer was last seen full; null if it was not full. */
  #takenBytes: number | null = null
  #stuckSinceMs = 0
  #isOver = false

  constructor(options: SseOptions) {
    this.#options = options
  }

  /** Sends the headers, and the greeting as a comment. */
  begin(reply: FastifyReply, greeting?: string): void {
    const { raw } = reply.hijack()
    try {
      raw.writeHead(200, {
        ...(reply.getHeaders() as Record<string, string | string[] | number>),
        'content-type': 'text/event-stream; charset=utf-8',
        'cache-control': 'no-store',
        // A proxy that buffers answers would delay every event.
        'x-accel-buffering': 'no',
      })
      raw.flushHeaders()
    } catch (error) {
      this.release()
      throw error
    }
    this.#response = raw
    this.#lastWriteMs = this.#options.clock.now()
    // A stream lives for hours. Its request headers, including the credential, must not stay in memory for so long.
    reply.request.raw.headers = {}
    reply.request.raw.rawHeaders = []
    if (greeting !== undefined) this.#write(`: ${greeting}\n\n`)
    if (this.#isOver) this.end()
    if (raw.closed) this.release()
    else raw.once('close', () => this.release())
  }

  get hasBegun(): boolean {
    return this.#response !== null
  }

  get isOpen(): boolean {
    return this.#response !== null && !this.#response.destroyed && !this.#response.writableEnded
  }

  /** Whether the client should read buffered data before it gets more. */
  get isFull(): boolean {
    return this.#response?.writableNeedDrain ?? false
  }

  /** Calls the listener when the stream is released, at once if it is already. */
  onRelease(listener: () => void): void {
    if (this.#listeners === null) listener()
    else this.#listeners.push(listener)
  }

  /** Frees what the stream holds. Happens by itself when the connection closes, so it is only for a stream that fails. */
  release(): void {
    const listeners = this.#listeners ?? []
    this.#listeners = null
    for (const listener of listeners) listener()
  }

  /** Resolves when the buffer has space again, or the client is disconnected. */
  async drained(): Promise<void> {
    const response = this.#response
    if (response === null || !this.isOpen || !this.isFull) return
    await new Promise<void>((resolve) => {
      const done = () => {
        response.off('drain', done)
        response.off('close', done)
        resolve()
      }
      response.on('drain', done)
      response.on('close', done)
    })
  }

  send(message: SseMessage): void {
    this.#write(writeSse(message))
  }

  /**
   * For a caller that waits for `drained` whenever the buffer is full. Then at most this one piece is buffered, so the
   * limit on unread bytes does not apply.
   */
  sendPiece(piece: Buffer): void {
    if (this.isOpen) this.#put(piece)
  }

  /** Sends a cursor without an event: clients keep an id that has no data. */
  mark(id: string): void {
    this.#write(`id: ${id}\n\n`)
  }

  /** Called every second. */
  tick(): void {
    const { clock, endsAtMs, isBlocked, onHeartbeat } = this.#options
    const nowMs = clock.now()
    // Check this first: a client that reads nothing would not read the end either, and its connection would stay open.
    if (this.#isStuck(nowMs)) return this.cut()
    if (nowMs >= endsAtMs || isBlocked()) return this.end()
    if (!this.isOpen || this.isFull || nowMs - this.#lastWriteMs < HEARTBEAT_MS) return
    this.#write(':\n\n')
    onHeartbeat?.()
  }

  /**
   * The client reconnects, to this or another node, with the last id it received. Before `begin`, the stream ends as soon
   * as it begins.
   */
  end(): void {
    this.#isOver = true
    if (!this.isOpen) return
    this.#write(`retry: ${this.#options.retryMs}\n\n`)
    this.#response?.end()
  }

  /** Disconnects a client that does not read. */
  cut(): void {
    this.#options.onCut?.()
    this.#response?.destroy()
  }

  #isStuck(nowMs: number): boolean {
    const takenBytes = this.isFull ? takenBytesOf(this.#response?.socket ?? null) : null
    if (takenBytes === null || takenBytes !== this.#takenBytes) this.#stuckSinceMs = nowMs
    this.#takenBytes = takenBytes
    return nowMs - this.#stuckSinceMs >= MAX_STUCK_MS
  }

  #write(text: string): void {
    if (!this.isOpen || this.#response === null) return
    this.#put(text)
    if (this.#response.writableLength > MAX_UNREAD_BYTES) this.#response.destroy()
  }

  #put(data: string | Buffer): void {
    this.#lastWriteMs = this.#options.clock.now()
    this.#response?.write(data)
  }
}
