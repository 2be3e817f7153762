import type { DatabaseSync } from 'node:sqlite'
import { type Clock, systemClock } from '../../core/clock.ts'
import { UnavailableError } from '../../core/errors.ts'
import { Announcements, type Topic, type TopicListener } from '../announcements.ts'
import type { Database, Row, Transaction } from '../database.ts'
import { kindOf, type Sql, sql } from '../sql.ts'
import { keepPrivate, openConnection, useWriteAheadLog } from './connection.ts'
import { GroupCommit } from './group-commit.ts'
import { ReadConnection } from './read-connection.ts'
import { translated } from './sqlite-errors.ts'
import { SqliteTransaction } from './sqlite-transaction.ts'
import { openWriteAheadLog, type WriteAheadLog } from './write-ahead-log.ts'
import { WriteConnection } from './write-connection.ts'

interface SqliteOptions {
  /** A file in an existing folder, or `:memory:`. */
  path: string
  /** How many callers may wait for the writer before more are refused. */
  maxWaiting?: number
  /** The log is moved into the database file when it has this many pages. */
  maxLogPages?: number
  /** The database's time; default: this machine's. */
  clock?: Pick<Clock, 'now'>
  /** A test may delay or fail `fsync`. */
  openLog?: (path: string) => WriteAheadLog
}

/**
 * The embedded engine. Transactions run one at a time, in order of arrival, and commit in groups. Resolved promises,
 * announcements and reads only show data that is on the disk. The event loop never waits for the disk, and reads outside
 * transactions never wait at all. A database in memory has one connection, so its reads wait for their turn.
 */
export async function openSqlite(options: SqliteOptions): Promise<Database> {
  const { path, maxWaiting = 10_000, maxLogPages = 4_000, clock = systemClock, openLog = openWriteAheadLog } = options
  try {
    if (path !== ':memory:') keepPrivate(path)
    const connection = openConnection(path)
    const writer = new WriteConnection(connection)
    try {
      const file = path === ':memory:' ? undefined : openFile(connection, path, openLog)
      return new SqliteDatabase({ writer, file, maxWaiting, maxLogPages, clock })
    } catch (error) {
      writer.close()
      throw error
    }
  } catch (error) {
    throw translated(error)
  }
}

/** The parts that a database in memory does not have. */
interface File {
  reads: ReadConnection
  log: WriteAheadLog
}

function openFile(writer: DatabaseSync, path: string, openLog: typeof openWriteAheadLog): File {
  useWriteAheadLog(writer, path)
  return { reads: new ReadConnection(path), log: openLog(path) }
}

/**
 * Large enough that the disk does not limit the throughput; small enough that the first member of a group does not wait
 * long.
 */
const MAX_GROUP = 100

interface Parts {
  writer: WriteConnection
  file: File | undefined
  maxWaiting: number
  maxLogPages: number
  clock: Pick<Clock, 'now'>
}

class SqliteDatabase implements Database {
  readonly engine = 'sqlite'
  readonly #writer: WriteConnection
  readonly #file: File | undefined
  readonly #maxLogPages: number
  readonly #clock: Pick<Clock, 'now'>
  readonly #groups: GroupCommit
  readonly #announcements = new Announcements()
  #checkpointAt: number
  #broken: UnavailableError | undefined
  #closing: Promise<void> | undefined

  constructor({ writer, file, maxWaiting, maxLogPages, clock }: Parts) {
    this.#clock = clock
    this.#writer = writer
    this.#file = file
    this.#maxLogPages = maxLogPages
    this.#checkpointAt = maxLogPages
    this.#groups = new GroupCommit({
      prepare: () => this.#prepare(),
      commit: () => this.#commit(),
      maxWaiting,
      // Groups save disk writes. A database in memory has none.
      maxGroup: file ? MAX_GROUP : 1,
    })
  }

  get now(): Sql {
    return sql`${this.#clock.now()}`
  }

  async query<R extends Row>(statement: Sql): Promise<R[]> {
    const kind = kindOf(statement.positionalText)
    if (kind === 'read' && this.#file && !this.#closing) return this.#file.reads.query(statement) as R[]
    const rows = await (kind === 'write'
      ? this.#groups.run(async () => this.#writer.query(statement))
      : this.#groups.run(async () => this.#queryAlone(statement), { alone: true }))
    return rows as R[]
  }

  async transaction<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    const { result, topics } = await this.#groups.run(() => this.#transact(work))
    this.#announcements.publish(topics)
    return result
  }

  listen(listener: TopicListener): () => void {
    return this.#announcements.listen(listener)
  }

  async ping(): Promise<void> {
    if (this.#broken) throw this.#broken
    await this.query(sql`select count(*) as tables from sqlite_schema`)
  }

  close(): Promise<void> {
    this.#closing ??= this.#groups.close().then(() => {
      this.#file?.reads.close()
      // The last connection to close moves the log into the database file.
      this.#writer.close()
      this.#file?.log.close()
    })
    return this.#closing
  }

  #queryAlone(statement: Sql): Row[] {
    this.#file?.reads.hold()
    return this.#writer.queryAlone(statement)
  }

  async #transact<T>(work: (tx: Transaction) => Promise<T>): Promise<{ result: T; topics: ReadonlySet<Topic> }> {
    const tx = new SqliteTransaction(this.#writer)
    try {
      const result = await work(tx)
      tx.keep()
      return { result, topics: tx.topics }
    } catch (error) {
      tx.undo()
      throw error
    }
  }

  async #prepare(): Promise<void> {
    if (this.#broken) throw this.#broken
    const log = this.#file?.log
    if (!log?.hasPage(this.#checkpointAt)) return
    // A failed checkpoint loses nothing: the log keeps everything for the next one.
    await log.checkpoint().catch(() => undefined)
    // While another process reads from the log, no new log starts, and this one grows. The next checkpoint waits for more
    // pages: otherwise every group would wait for one.
    this.#checkpointAt = this.#maxLogPages
    while (log.hasPage(this.#checkpointAt)) this.#checkpointAt += this.#maxLogPages
  }

  /** Reads see the state before the group until the group is on the disk. If the sync fails, they never see it. */
  async #commit(): Promise<void> {
    const { wrote, schemaChanged } = this.#writer
    const file = wrote ? this.#file : undefined
    file?.reads.hold()
    try {
      this.#writer.commit()
    } catch (error) {
      file?.reads.release()
      throw error
    } finally {
      this.#writer.endGroup()
    }
    await file?.log.sync().catch((error) => this.#break(error))
    file?.reads.release()
    if (schemaChanged) file?.reads.forget()
  }

  #break(cause: unknown): never {
    this.#broken = new UnavailableError('The database is unavailable', { cause })
    throw this.#broken
  }
}
