import type { Database, Row, Transaction } from '../../src/db/database.ts'
import type { Sql } from '../../src/db/sql.ts'

/** The same database; something happens whenever a transaction has read what matches. */
export function afterReading(db: Database, pattern: RegExp, happens: () => Promise<void>): Database {
  const reading = (tx: Transaction): Transaction => ({
    engine: tx.engine,
    query: async <R extends Row>(statement: Sql) => {
      const rows = await tx.query<R>(statement)
      if (pattern.test(statement.text)) await happens()
      return rows
    },
    tryLock: (name) => tx.tryLock(name),
    tryQuery: (statement) => tx.tryQuery(statement),
    exec: (script) => tx.exec(script),
    announce: (topic) => tx.announce(topic),
  })
  return {
    engine: db.engine,
    now: db.now,
    query: (statement) => db.query(statement),
    transaction: (work, options) => db.transaction((tx) => work(reading(tx)), options),
    listen: (listener) => db.listen(listener),
    ping: () => db.ping(),
    close: () => db.close(),
  }
}
