import { constants } from 'node:http2'
import type { Clock } from '../../core/clock.ts'
import type { Attempt } from './fcm-attempts.ts'
import type { Http2Connection } from './fcm-connect.ts'
import type { FcmAnswer, FcmRequest } from './fcm-transport.ts'

const MAX_STREAMS = 250
/** Real answers of the provider and of the token endpoint are a few hundred bytes. */
const MAX_ANSWER_BYTES = 64 * 1024
const IDLE_MS = 60_000
const SILENT_MS = 10_000

interface FcmSessionOptions {
  connection: Http2Connection
  clock: Clock
  /** Called when the session has capacity again, or is closed. */
  onChange: () => void
}

/**
 * One HTTP/2 connection. Every request on it ends in an answer or a rejection. After GOAWAY or a long silence of the
 * provider it takes no new requests. After a minute without requests it closes.
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
    // Each stream rejects with the error too.
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

  /** Resolves when the connection is closed. */
  untilGone(): Promise<void> {
    return new Promise((resolve) => {
      if (this.isGone) return resolve()
      this.#ended.signal.addEventListener('abort', () => resolve(), { once: true })
    })
  }

  get hasCapacity(): boolean {
    const { maxConcurrentStreams = MAX_STREAMS } = this.#options.connection.session.remoteSettings
    return this.isOpen && this.#inFlight < Math.min(maxConcurrentStreams, MAX_STREAMS)
  }

  /** Takes no new requests; requests in flight continue. */
  retire(): void {
    this.#retired = true
    if (this.#inFlight === 0) this.destroy()
  }

  /** Aborts requests in flight. */
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
      const chunks: Buffer[] = []
      let bytes = 0
      let answered: { status: number; headers: FcmAnswer['headers'] } | null = null
      let isWhole = false
      const abort = (error: Error) => {
        reject(error)
        stream.close(constants.NGHTTP2_CANCEL)
      }
      attempt.onStop((reason) => {
        abort(reason)
        this.#retireIfSilent(attempt)
      })
      stream.on('response', ({ ':status': status = 0, ...rest }) => {
        this.#heardAtMs = clock.now()
        answered = { status, headers: rest }
      })
      stream.on('data', (chunk: Buffer) => {
        bytes += chunk.byteLength
        if (bytes > MAX_ANSWER_BYTES) abort(new Error(`the answer is over ${MAX_ANSWER_BYTES} bytes`))
        else chunks.push(chunk)
      })
      stream.on('end', () => {
        if (answered === null) return
        isWhole = true
        resolve({ ...answered, body: Buffer.concat(chunks).toString('utf8') })
      })
      stream.on('error', reject)
      stream.on('close', () => {
        if (!isWhole) reject(new Error(`the stream was closed without an answer (code ${stream.rstCode ?? 0})`))
      })
      stream.end(body)
    })
  }

  /** A dead connection may report no error. So a connection that has not answered for long gets no new requests. */
  #retireIfSilent({ startedAtMs }: Attempt): void {
    const isSilent = this.#heardAtMs <= startedAtMs && this.#options.clock.now() - startedAtMs >= SILENT_MS
    if (isSilent) this.retire()
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
