import { type ClientConfig, Pool, type PoolClient, types } from 'pg'
import { UnavailableError } from '../../core/errors.ts'
import { Announcements, type TopicListener } from '../announcements.ts'
import { type Database, type Row, type Transaction, TransactionConflict, type TransactionOptions } from '../database.ts'
import { kindOf, type Sql, sql } from '../sql.ts'
import { PipelinedConnection } from './pipelined-connection.ts'
import { isCollision, translatedPostgresError } from './postgres-errors.ts'
import { prepared } from './postgres-statement.ts'
import { PostgresTransaction } from './postgres-transaction.ts'
import { refuseReadOnly } from './refuse-read-only.ts'

export interface PostgresOptions {
  url: string
  /** Connections shared by single reads; see `PipelinedConnection`. */
  readConnections?: number
  /** Connections for transactions; each runs one at a time. */
  poolSize?: number
  /** False: no statement is prepared by name, for a pooler in transaction mode. */
  prepared?: boolean
  queryTimeoutMs?: number
  /** Also limits the wait for a free connection. */
  connectTimeoutMs?: number
}

const CONNECT_TIMEOUT_MS = 3_000
const QUERY_TIMEOUT_MS = 10_000
const PING_TIMEOUT_MS = 2_000
const MAX_WAITING = 1_000
const CHANGE_CONNECTIONS = 2
const URGENT_CONNECTIONS = 2
const MAX_ATTEMPTS = 3
/** Of transactions that conflict with each other, one commits in each round. */
const MAX_ATTEMPTS_AFTER_CONFLICT = 10
const INT8 = 20
/**
 * Batches are joined to their tables by key. A plan cached while a table was small would otherwise scan the whole table
 * for every batch after it has grown. So would a plan made for a filter that few rows pass.
 */
const PLANNING = '-c enable_hashjoin=off -c enable_mergejoin=off -c enable_material=off'
/** Whatever the default of the role or the database is: a stricter level would abort transactions that only wait here. */
const ISOLATION = '-c default_transaction_isolation=read\\ committed'
const OPTIONS = `${PLANNING} ${ISOLATION}`

/** The server acknowledges commits that a crash can lose, cannot store every text, or has another isolation level. */
export class UnfitServerError extends Error {
  override name = 'UnfitServerError'
}

/**
 * PostgreSQL: single statements are pipelined over a few shared connections, each transaction has its own. A change may
 * wait for a lock, and the statements behind it on its connection wait too. So reads and changes do not share connections.
 * Every wait is bounded, and after a server outage it reconnects by itself.
 */
export async function openPostgres(options: PostgresOptions): Promise<Database> {
  const db = new PostgresDatabase(options)
  try {
    await refuseUnsafeServer(db)
    return db
  } catch (error) {
    await db.close()
    throw error
  }
}

async function refuseUnsafeServer(db: Database): Promise<void> {
  const settings = await db.query<{ name: string; setting: string }>(
    sql`select name, setting from pg_settings
      where name in ('fsync', 'synchronous_commit', 'server_encoding', 'transaction_isolation')`,
  )
  for (const { name, setting } of settings) {
    if (setting === 'off') {
      throw new UnfitServerError(`PostgreSQL has ${name} = off: an acknowledged commit could be lost. Turn it on.`)
    }
    if (name === 'server_encoding' && setting !== 'UTF8') {
      throw new UnfitServerError(`The database has the encoding ${setting}: it must be UTF8, to store every text.`)
    }
    // A pooler may drop the options of a connection. Then single statements have the default of the role.
    if (name === 'transaction_isolation' && setting !== 'read committed') {
      throw new UnfitServerError(
        `Statements run with the isolation level ${setting}: set default_transaction_isolation of the role to 'read committed'.`,
      )
    }
  }
}

class PostgresDatabase implements Database {
  readonly engine = 'postgres'
  readonly now = sql`(extract(epoch from clock_timestamp()) * 1000)::bigint`
  readonly #reads: readonly PipelinedConnection[]
  readonly #changes: readonly PipelinedConnection[]
  readonly #pool: Pool
  readonly #isNamed: boolean
  readonly #briefLockMs: number
  /** Reserved connections for urgent transactions, which do not wait in the queue for the other connections. */
  readonly #urgentPool: Pool
  readonly #announcements = new Announcements()
  #closed: Promise<void> | undefined

  constructor(options: PostgresOptions) {
    const { url, readConnections = 4, poolSize = 10, prepared: isNamed = true } = options
    const { queryTimeoutMs = QUERY_TIMEOUT_MS, connectTimeoutMs = CONNECT_TIMEOUT_MS } = options
    this.#isNamed = isNamed
    this.#briefLockMs = Math.round(queryTimeoutMs * 0.05)
    const config: ClientConfig & { pipeline: true } = {
      connectionString: withOptions(url),
      pipeline: true,
      application_name: 'project-api',
      options: OPTIONS,
      keepAlive: true,
      connectionTimeoutMillis: connectTimeoutMs,
      // The server's timeout is shorter, so it ends a statement first. Our own timeout is for a server that no longer
      // answers.
      statement_timeout: Math.round(queryTimeoutMs * 0.8),
      // Shorter, so that a row lock is not mistaken for a server that does not answer.
      lock_timeout: Math.round(queryTimeoutMs * 0.2),
      query_timeout: queryTimeoutMs,
      idle_in_transaction_session_timeout: queryTimeoutMs * 2,
      types: { getTypeParser: parserOf },
    }
    const pipelines = (length: number, options: typeof config) =>
      Array.from({ length }, () => new PipelinedConnection(options))
    const brief = { ...config, lock_timeout: this.#briefLockMs }
    this.#reads = pipelines(readConnections, config)
    // The changes behind one that waits for a lock wait too.
    this.#changes = pipelines(CHANGE_CONNECTIONS, brief)
    this.#pool = createPool(config, poolSize)
    this.#urgentPool = createPool(brief, URGENT_CONNECTIONS)
  }

  async query<R extends Row>(statement: Sql): Promise<R[]> {
    const pipelines = kindOf(statement.text) === 'read' ? this.#reads : this.#changes
    try {
      const result = await leastBusy(pipelines).query(prepared(statement, this.#isNamed))
      return result.rows
    } catch (error) {
      throw translatedPostgresError(error)
    }
  }

  /** Runs again from the beginning if the server aborts it because of a conflict. */
  async transaction<T>(work: (tx: Transaction) => Promise<T>, options: TransactionOptions = {}): Promise<T> {
    const pool = options.urgent ? this.#urgentPool : this.#pool
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#attempt(pool, work, options.waitsBriefly ? this.#briefLockMs : undefined)
      } catch (error) {
        const maxAttempts = error instanceof TransactionConflict ? MAX_ATTEMPTS_AFTER_CONFLICT : MAX_ATTEMPTS
        if (!isCollision(error) || attempt >= maxAttempts) throw error
      }
    }
  }

  listen(listener: TopicListener): () => void {
    return this.#announcements.listen(listener)
  }

  /** Has a shorter timeout than a query, because a health check needs a fast answer. */
  async ping(): Promise<void> {
    const late = Promise.withResolvers<never>()
    const timer = setTimeout(() => late.reject(new UnavailableError('The database is unavailable')), PING_TIMEOUT_MS)
    try {
      await Promise.race([this.query(sql`select 1 as alive`), late.promise])
    } finally {
      clearTimeout(timer)
    }
  }

  close(): Promise<void> {
    const ends = () => [
      ...[...this.#reads, ...this.#changes].map((pipeline) => pipeline.close()),
      this.#pool.end(),
      this.#urgentPool.end(),
    ]
    this.#closed ??= Promise.all(ends()).then(() => {})
    return this.#closed
  }

  async #attempt<T>(pool: Pool, work: (tx: Transaction) => Promise<T>, lockTimeoutMs?: number): Promise<T> {
    const client = await this.#checkOut(pool)
    const tx = new PostgresTransaction(client, { isNamed: this.#isNamed, lockTimeoutMs })
    let broken: Error | undefined
    try {
      // Not awaited: `begin` is sent together with the first statement, which fails if `begin` fails.
      tx.begin()
      const result = await work(tx)
      await tx.commit()
      this.#announcements.publish(tx.topics)
      return result
    } catch (error) {
      broken = await tx.rollback()
      throw error
    } finally {
      client.release(broken)
    }
  }

  async #checkOut(pool: Pool): Promise<PoolClient> {
    if (this.#closed) throw new UnavailableError('The database is closed')
    if (pool.waitingCount >= MAX_WAITING) throw new UnavailableError('The database is busy')
    try {
      return await pool.connect()
    } catch (error) {
      throw translatedPostgresError(error)
    }
  }
}

function leastBusy(pipelines: readonly PipelinedConnection[]): PipelinedConnection {
  return pipelines.reduce((best, pipeline) => (pipeline.inFlight < best.inFlight ? pipeline : best))
}

function createPool(config: ClientConfig, max: number): Pool {
  // Not `verify`: it hands a client to a waiter that has given up meanwhile, and the client is lost to the pool.
  const pool = new Pool({ ...config, max, idleTimeoutMillis: 60_000, onConnect: refuseReadOnly })
  // An idle connection was lost: the pool has already removed it.
  pool.on('error', () => {})
  pool.on('connect', (client) => client.on('error', () => {}))
  return pool
}

/** Times and counts are 64-bit in PostgreSQL; their values stay below 2^53. */
const parserOf: typeof types.getTypeParser = (oid: number, format?: string) =>
  oid === INT8 ? Number : types.getTypeParser(oid, format as 'text')

/** Options in the address would replace those of this service. */
function withOptions(url: string): string {
  const address = new URL(url)
  const given = address.searchParams.get('options')
  if (given === null) return url
  address.searchParams.set('options', `${given} ${OPTIONS}`)
  return address.href
}
