import { Socket } from 'node:net'
import { Client, type ClientConfig, type QueryConfig, type QueryResult } from 'pg'
import { UnavailableError } from '../../core/errors.ts'
import { isNotPrepared } from './postgres-errors.ts'
import { refuseReadOnly } from './refuse-read-only.ts'

const MAX_IN_FLIGHT = 1_000

/**
 * One connection shared by many single statements, each its own transaction. They are pipelined: the next one is
 * sent before the previous one is answered, and all statements of one turn of the event loop are sent in one write. When
 * the connection fails, its statements fail too, and the next statement opens a new one.
 */
export class PipelinedConnection {
  readonly #config: ClientConfig
  #client: Promise<Client> | null = null
  #socket: Socket | null = null
  #inFlight = 0
  #corked = false
  #closed = false

  constructor(config: ClientConfig) {
    this.#config = config
  }

  get inFlight(): number {
    return this.#inFlight
  }

  async query(statement: QueryConfig): Promise<QueryResult> {
    if (this.#closed) throw new UnavailableError('The database is closed')
    if (this.#inFlight >= MAX_IN_FLIGHT) throw new UnavailableError('The database is busy')
    this.#inFlight += 1
    try {
      const client = await this.#connected()
      this.#batchWrites()
      return await client.query(statement).catch((error: unknown) => sendUnnamed(client, statement, error))
    } finally {
      this.#inFlight -= 1
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    const client = await this.#client?.catch(() => null)
    await client?.end().catch(() => {})
  }

  #connected(): Promise<Client> {
    this.#client ??= this.#connect()
    return this.#client
  }

  /** The write to the socket is the largest cost of a small statement; under load this halves the number of writes. */
  #batchWrites(): void {
    const socket = this.#socket
    if (this.#corked || socket === null) return
    this.#corked = true
    socket.cork()
    // After the I/O of this turn, so that the statements of all requests read in it are sent together.
    setImmediate(() => {
      this.#corked = false
      socket.uncork()
    })
  }

  async #connect(): Promise<Client> {
    const socket = new Socket()
    this.#socket = socket
    const client = new Client({ ...this.#config, stream: () => socket })
    const forget = () => {
      // Both events may fire for one connection; by the second one a new connection may be in use.
      if (this.#socket === socket) this.#client = null
    }
    client.on('error', forget)
    client.on('end', forget)
    try {
      await client.connect()
      await refuseReadOnly(client)
      return client
    } catch (error) {
      forget()
      client.end().catch(() => {})
      throw error
    }
  }
}

/** Runs a statement again that did not run, and needs no preparation by another one. */
function sendUnnamed(client: Client, { text, values }: QueryConfig, error: unknown): Promise<QueryResult> {
  if (!isNotPrepared(error)) throw error
  return client.query({ text, ...(values && { values }) })
}
