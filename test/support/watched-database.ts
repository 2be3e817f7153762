import type { Database, Queryable } from '../../src/db/database.ts'

/** A database that records its statements, and shows when none is in progress. */
export class WatchedDatabase {
  readonly db: Database
  #statements: string[] = []
  readonly #underWay = new Set<Promise<unknown>>()

  constructor(db: Database) {
    this.db = {
      engine: db.engine,
      now: db.now,
      query: (statement) => this.#track(db.query(this.#note(statement))),
      transaction: (work, options) =>
        this.#track(
          db.transaction((tx) => {
            const query: Queryable['query'] = (statement) => tx.query(this.#note(statement))
            const { engine } = tx
            return work({
              engine,
              query,
              tryLock: (name) => tx.tryLock(name),
              tryQuery: (statement) => tx.tryQuery(statement),
              exec: (script) => tx.exec(script),
              announce: (topic) => tx.announce(topic),
            })
          }, options),
        ),
      listen: (listener) => db.listen(listener),
      ping: () => db.ping(),
      close: () => db.close(),
    }
  }

  /** How many statements since the last call of `forget` match. */
  count(pattern: RegExp): number {
    return this.#statements.filter((text) => pattern.test(text)).length
  }

  forget(): void {
    this.#statements = []
  }

  /** Resolves when all statements, and those that follow from them, are done. */
  async idle(): Promise<void> {
    while (this.#underWay.size > 0) {
      await Promise.allSettled(this.#underWay)
      await new Promise(setImmediate)
    }
  }

  #note<Statement extends { text: string }>(statement: Statement): Statement {
    this.#statements.push(statement.text)
    return statement
  }

  #track<T>(work: Promise<T>): Promise<T> {
    const done = () => void this.#underWay.delete(work)
    this.#underWay.add(work)
    work.then(done, done)
    return work
  }
}
