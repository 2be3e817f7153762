import { Socket } from 'node:net'
import { Client, type ClientConfig, type QueryConfig, type QueryResult } from 'pg'
import { UnavailableError } from '../../core/errors.ts'

const MAX_IN_FLIGHT = 1_000

/**
 * One connection that carries many single statements at once, each its own transaction: the next is sent before the
 * last was answered, and all statements of one turn of the event loop leave in one write. A connection that fails takes
 * its statements with it and is replaced by the next statement.
 */
export class PostgresLane {
  readonly #config: ClientConfig
  #client: Promise<Client> | null = null
  #socket: Socket | null = null
  #inFlight = 0
  #gathering = false
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
      this.#gather()
      return await client.query(statement)
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

  /** A write costs the process more than everything else about a small statement; under load this halves their number. */
  #gather(): void {
    const socket = this.#socket
    if (this.#gathering || socket === null) return
    this.#gathering = true
    socket.cork()
    // After the I/O of this turn, so that the statements of every request read in it travel together.
    setImmediate(() => {
      this.#gathering = false
      socket.uncork()
    })
  }

  async #connect(): Promise<Client> {
    const socket = new Socket()
    this.#socket = socket
    const client = new Client({ ...this.#config, stream: () => socket })
    const forget = () => {
      // A connection says twice that it is over; by the second time another may have taken its place.
      if (this.#socket === socket) this.#client = null
    }
    client.on('error', forget)
    client.on('end', forget)
    try {
      await client.connect()
      return client
    } catch (error) {
      forget()
      throw error
    }
  }
}
