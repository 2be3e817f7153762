import { connect, type Socket } from 'node:net'

export interface LoadResponse {
  status: number
  hasRetryAfter: boolean
}

const HEAD_END = '\r\n\r\n'

/** One keep-alive connection with one request at a time. It parses only the parts that the figures need. */
export class LoadConnection {
  readonly #socket: Socket
  readonly #onEnd: () => void
  #done: ((answer: LoadResponse | null) => void) | null = null
  #head = ''
  #answer: LoadResponse | null = null
  #bodyLeft = 0

  constructor(port: number, onEnd: () => void) {
    this.#onEnd = onEnd
    this.#socket = connect({ port, host: '127.0.0.1', noDelay: true })
    this.#socket.on('data', (chunk: Buffer) => this.#read(chunk))
    this.#socket.on('error', () => {})
    this.#socket.on('close', () => this.#close())
  }

  /** Null when the connection broke. */
  send(bytes: Buffer, done: (answer: LoadResponse | null) => void): void {
    this.#done = done
    this.#socket.write(bytes)
  }

  destroy(): void {
    this.#socket.destroy()
  }

  #read(chunk: Buffer): void {
    if (this.#answer === null) {
      this.#head += chunk.toString('latin1')
      const end = this.#head.indexOf(HEAD_END)
      if (end < 0) return
      this.#answer = {
        status: Number(this.#head.slice(9, 12)),
        hasRetryAfter: /\nretry-after: \d/i.test(this.#head),
      }
      const length = /\ncontent-length: (\d+)/i.exec(this.#head)?.[1]
      if (length === undefined) throw new Error(`No Content-Length:\n${this.#head.slice(0, 500)}`)
      this.#bodyLeft = Number(length) - (this.#head.length - end - HEAD_END.length)
      this.#head = ''
    } else {
      this.#bodyLeft -= chunk.length
    }
    if (this.#bodyLeft > 0) return
    const [done, answer] = [this.#done, this.#answer]
    this.#done = null
    this.#answer = null
    done?.(answer)
  }

  #close(): void {
    const done = this.#done
    this.#done = null
    done?.(null)
    this.#onEnd()
  }
}
