import type { Topic } from '../announcements.ts'
import type { Row, Transaction } from '../database.ts'
import type { Sql } from '../sql.ts'
import type { WriteConnection } from './write-connection.ts'

/** The transaction as `work` sees it: a failed statement aborts it, and it cannot be used after its end. */
export class SqliteTransaction implements Transaction {
  readonly engine = 'sqlite'
  readonly topics = new Set<Topic>()
  readonly #writer: WriteConnection
  #failure: Error | undefined
  #saved = false
  #closed = false

  constructor(writer: WriteConnection) {
    this.#writer = writer
  }

  async query<R extends Row>(statement: Sql): Promise<R[]> {
    return this.#step(() => this.#writer.query(statement)) as R[]
  }

  async exec(script: string): Promise<void> {
    this.#step(() => this.#writer.script(script))
  }

  async tryLock(): Promise<boolean> {
    return this.#step(() => true)
  }

  async tryQuery(statement: Sql): Promise<boolean> {
    await this.query(statement)
    return true
  }

  announce(topic: Topic): void {
    this.topics.add(topic)
  }

  /** Keeps its changes for the group's commit. Throws if a statement failed, even if `work` caught the error. */
  keep(): void {
    this.#closed = true
    if (this.#failure) throw this.#failure
    if (this.#saved) this.#writer.keep()
  }

  /** Undoes its changes, but not those of other members of its group. */
  undo(): void {
    this.#closed = true
    if (this.#saved) this.#writer.undo()
  }

  #step<T>(step: () => T): T {
    if (this.#closed) throw new Error('The transaction has ended')
    if (this.#failure) throw this.#failure
    try {
      if (!this.#saved) this.#writer.save()
      this.#saved = true
      return step()
    } catch (error) {
      this.#failure = error instanceof Error ? error : new Error(String(error))
      throw this.#failure
    }
  }
}
