import { constants } from 'node:http2'
import type { Clock } from '../../core/clock.ts'
import type { Attempt } from './fcm-attempts.ts'
import type { Http2Connection } from './fcm-connect.ts'
import { BodyReader, type FcmAnswer, type FcmRequest, tooLarge } from './fcm-transport.ts'

const MAX_STREAMS = 250
const IDLE_MS = 60_000
const MUTE_MS = 10_000

export interface FcmSessionOptions {
  connection: Http2Connection
  clock: Clock
  /** It has room again, or is gone. */
  onChange: () => void
}

/**
 * One HTTP/2 connection, on which every request ends in an answer or a rejection. It takes no more once the provider says
 * goodbye or falls silent, and closes after a minute without work.
 */
export class FcmSession {
  readonly #options: FcmSessionOptions
  readonly #ended = new AbortController()
  #inFlight = 0
  #retired = false
  #heardAtMs: number
  #idleSinceMs: number

  constructor(options: FcmSessionOptions) {
    this.#options = options
    const { clock, onChange } = options
    const { session } = options.connection
    this.#heardAtMs = clock.now()
    this.#idleSinceMs = clock.now()
    // Each stream hears of it as well, and says so in its own rejection.
    session.on('error', () => this.retire())
    session.on('goaway', () => this.retire())
    session.on('close', () => {
      this.#ended.abort()
      onChange()
    })
    if (session.destroyed) this.#ended.abort()
    void this.#closeWhenIdle()
  }

  get inFlight(): number {
    return this.#inFlight
  }

  get isOpen(): boolean {
    const { session } = this.#options.connection
    return !this.#retired && !session.closed && !session.destroyed
  }

  get isGone(): boolean {
    return this.#ended.signal.aborted
  }

  /** Resolves once nothing of it is left. */
  untilGone(): Promise<void> {
    return new Promise((resolve) => {
      if (this.isGone) return resolve()
      this.#ended.signal.addEventListener('abort', () => resolve(), { once: true })
    })
  }

  get hasRoom(): boolean {
    const { maxConcurrentStreams = MAX_STREAMS } = this.#options.connection.session.remoteSettings
    return this.isOpen && this.#inFlight < Math.min(maxConcurrentStreams, MAX_STREAMS)
  }

  /** Takes no more; what is in flight may end in peace. */
  retire(): void {
    this.#retired = true
    if (this.#inFlight === 0) this.destroy()
  }

  /** Breaks off what is in flight. */
  destroy(): void {
    const { session, socket } = this.#options.connection
    this.#retired = true
    session.destroy()
    socket.destroy()
  }

  async post(request: FcmRequest): Promise<FcmAnswer> {
    const { clock, onChange } = this.#options
    this.#inFlight += 1
    try {
      return await this.#exchange(request)
    } finally {
      this.#inFlight -= 1
      if (this.#inFlight === 0) {
        this.#idleSinceMs = clock.now()
        if (!this.isOpen) this.destroy()
      }
      onChange()
    }
  }

  #exchange({ path, headers, body, attempt }: FcmRequest): Promise<FcmAnswer> {
    const { clock, connection } = this.#options
    return new Promise((resolve, reject) => {
      const stream = connection.session.request({ ':method': 'POST', ':path': path, ...headers })
      const reader = new BodyReader()
      let answered: { status: number; headers: FcmAnswer['headers'] } | null = null
      let isWhole = false
      const breakOff = (error: Error) => {
        reject(error)
        stream.close(constants.NGHTTP2_CANCEL)
      }
      attempt.onStop((reason) => {
        breakOff(reason)
        this.#doubt(attempt)
      })
      stream.on('response', ({ ':status': status = 0, ...rest }) => {
        this.#heardAtMs = clock.now()
        answered = { status, headers: rest }
      })
      stream.on('data', (chunk: Buffer) => {
        if (!reader.add(chunk)) breakOff(tooLarge())
      })
      stream.on('end', () => {
        if (answered === null) return
        isWhole = true
        resolve({ ...answered, body: reader.text() })
      })
      stream.on('error', reject)
      stream.on('close', () => {
        if (!isWhole) reject(new Error(`the stream was closed without an answer (code ${stream.rstCode ?? 0})`))
      })
      stream.end(body)
    })
  }

  /** A connection may be dead without anybody having said so: one that stays mute for long gets no more requests. */
  #doubt({ startedAtMs }: Attempt): void {
    const isMute = this.#heardAtMs <= startedAtMs && this.#options.clock.now() - startedAtMs >= MUTE_MS
    if (isMute) this.retire()
  }

  async #closeWhenIdle(): Promise<void> {
    const { clock } = this.#options
    while (!this.#ended.signal.aborted) {
      const leftMs = this.#inFlight > 0 ? IDLE_MS : this.#idleSinceMs + IDLE_MS - clock.now()
      if (leftMs <= 0) break
      await clock.sleep(leftMs, this.#ended.signal)
    }
    this.retire()
  }
}
