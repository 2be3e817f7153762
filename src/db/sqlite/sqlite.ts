import { DatabaseSync } from 'node:sqlite'
import { BoundedMap } from '../../core/bounded-map.ts'
import { UnavailableError } from '../../core/errors.ts'
import { Announcements, type Topic, type TopicListener } from '../announcements.ts'
import { type Database, type Row, type Transaction, UniqueViolation } from '../database.ts'
import { type Sql, sql } from '../sql.ts'
import { FifoMutex } from './fifo-mutex.ts'
import { SqliteStatement } from './sqlite-statement.ts'

export interface SqliteOptions {
  /** A file in an existing folder, or `:memory:`. */
  path: string
  /** How many may wait for the one writer before more are refused. */
  maxWaiting?: number
}

/**
 * The embedded engine: a commit that resolved is on the disk, transactions run one at a time in order of arrival, and
 * reads outside them see only what is committed and never wait. A database in memory has one connection, so there reads
 * wait for their turn too.
 */
export async function openSqlite({ path, maxWaiting = 10_000 }: SqliteOptions): Promise<Database> {
  const opened: DatabaseSync[] = []
  try {
    const writer = openConnection(path)
    opened.push(writer)
    if (path === ':memory:') return new SqliteDatabase({ writer, reader: undefined, maxWaiting })
    useWriteAheadLog(writer, path)
    const reader = openConnection(path)
    opened.push(reader)
    reader.exec('pragma query_only = on')
    return new SqliteDatabase({ writer, reader, maxWaiting })
  } catch (error) {
    for (const connection of opened) connection.close()
    throw translated(error)
  }
}

// Another process has no business in the file (see data-folder.ts), and waiting for one stops the event loop.
const BUSY_TIMEOUT_MS = 1_000
// Statements are assembled from fragments, so their number is not that of the call sites.
const MAX_STATEMENTS = 500

function openConnection(path: string): DatabaseSync {
  const connection = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS, enableForeignKeyConstraints: true })
  // No memory map: through one, a failing disk kills the process (SIGBUS) where a read would have been an error.
  connection.exec('pragma cache_size = -32768; pragma mmap_size = 0; pragma temp_store = memory')
  return connection
}

function useWriteAheadLog(writer: DatabaseSync, path: string): void {
  const mode = writer.prepare('pragma journal_mode = wal').get()?.journal_mode
  if (mode !== 'wal') throw new Error(`${path} cannot have a write-ahead log: is it on a network file system?`)
  // FULL syncs the log on every commit; NORMAL, SQLite's usual advice, loses the last commits with the power.
  writer.exec('pragma synchronous = full; pragma journal_size_limit = 67108864')
}

interface Connections {
  writer: DatabaseSync
  /** None for a database in memory, which belongs to its one connection. */
  reader: DatabaseSync | undefined
  maxWaiting: number
}

class SqliteDatabase implements Database {
  readonly engine = 'sqlite'
  readonly #writer: DatabaseSync
  readonly #reader: DatabaseSync | undefined
  readonly #turns: FifoMutex
  readonly #statements = new BoundedMap<string, SqliteStatement>(MAX_STATEMENTS)
  readonly #announcements = new Announcements()
  #schemaChanged = false
  #closing: Promise<void> | undefined

  constructor({ writer, reader, maxWaiting }: Connections) {
    this.#writer = writer
    this.#reader = reader
    this.#turns = new FifoMutex(maxWaiting)
  }

  async query<R extends Row>(statement: Sql): Promise<R[]> {
    const reader = this.#closing ? undefined : this.#reader
    if (reader && this.#prepared(statement).kind === 'read') return this.#run<R>(reader, statement)
    return await this.#turns.run(() => this.#run<R>(this.#writer, statement))
  }

  transaction<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.#turns.run(async () => {
      this.#control('begin immediate')
      const tx = new SqliteTransaction({
        query: (statement) => this.#run(this.#writer, statement),
        exec: (script) => this.#exec(script),
      })
      try {
        const result = await work(tx)
        tx.end()
        this.#control('commit')
        this.#announcements.publish(tx.topics)
        return result
      } catch (error) {
        this.#rollback()
        throw error
      } finally {
        tx.close()
        // Again at the end: until now, readers prepared their statements for the schema as it was.
        if (this.#schemaChanged) this.#statements.clear()
        this.#schemaChanged = false
      }
    })
  }

  listen(listener: TopicListener): () => void {
    return this.#announcements.listen(listener)
  }

  async ping(): Promise<void> {
    await this.query(sql`select count(*) as tables from sqlite_schema`)
  }

  close(): Promise<void> {
    this.#closing ??= this.#turns.close().then(() => {
      this.#statements.clear()
      this.#reader?.close()
      // The last connection to close moves the log into the database file.
      this.#writer.close()
    })
    return this.#closing
  }

  #prepared(statement: Sql): SqliteStatement {
    const text = statement.positionalText
    let prepared = this.#statements.get(text)
    if (!prepared) {
      prepared = new SqliteStatement(text)
      this.#statements.set(text, prepared)
    }
    return prepared
  }

  #run<R extends Row>(connection: DatabaseSync, statement: Sql): R[] {
    const prepared = this.#prepared(statement)
    try {
      return prepared.run(connection, statement.values) as R[]
    } catch (error) {
      throw translated(error)
    } finally {
      if (prepared.kind === 'schema') this.#forgetSchema()
    }
  }

  #exec(script: string): void {
    this.#control(script)
    this.#forgetSchema()
    if (!this.#writer.isTransaction) throw new Error('A script must not end the transaction it runs in')
  }

  #control(script: string): void {
    try {
      this.#writer.exec(script)
    } catch (error) {
      throw translated(error)
    }
  }

  #rollback(): void {
    // After a full disk or an I/O error SQLite has rolled back on its own.
    if (this.#writer.isTransaction) this.#control('rollback')
  }

  /** A prepared statement keeps the names of its columns, and `select *` gets others when the schema changes. */
  #forgetSchema(): void {
    this.#schemaChanged = true
    this.#statements.clear()
  }
}

interface Steps {
  query(statement: Sql): Row[]
  exec(script: string): void
}

class SqliteTransaction implements Transaction {
  readonly engine = 'sqlite'
  readonly topics = new Set<Topic>()
  readonly #steps: Steps
  #failure: Error | undefined
  #closed = false

  constructor(steps: Steps) {
    this.#steps = steps
  }

  async query<R extends Row>(statement: Sql): Promise<R[]> {
    return this.#step(() => this.#steps.query(statement)) as R[]
  }

  async exec(script: string): Promise<void> {
    this.#step(() => this.#steps.exec(script))
  }

  async tryLock(): Promise<boolean> {
    return this.#step(() => true)
  }

  announce(topic: Topic): void {
    this.topics.add(topic)
  }

  /** Nothing more may join, and a statement that failed forbids the commit, whatever `work` made of its error. */
  end(): void {
    this.close()
    if (this.#failure) throw this.#failure
  }

  close(): void {
    this.#closed = true
  }

  #step<T>(step: () => T): T {
    if (this.#closed) throw new Error('The transaction has ended')
    if (this.#failure) throw this.#failure
    try {
      return step()
    } catch (error) {
      this.#failure = error instanceof Error ? error : new Error(String(error))
      throw this.#failure
    }
  }
}

const UNIQUE_CODES = new Set([1555, 2067]) // SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE
const UNAVAILABLE_CODES = new Set([5, 8, 10, 13, 14]) // SQLITE_BUSY, _READONLY, _IOERR, _FULL, _CANTOPEN

function translated(error: unknown): unknown {
  if (!(error instanceof Error && 'errcode' in error && typeof error.errcode === 'number')) return error
  if (UNIQUE_CODES.has(error.errcode)) return new UniqueViolation(error)
  // The low byte of an extended result code is the primary one.
  if (!UNAVAILABLE_CODES.has(error.errcode & 0xff)) return error
  return new UnavailableError('The database is unavailable', { cause: error })
}
