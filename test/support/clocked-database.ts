import type { Clock } from '../../src/core/clock.ts'
import type { Database } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'

/** The same database with another clock, which a test controls. */
export function databaseAt(db: Database, clock: Pick<Clock, 'now'>): Database {
  return {
    engine: db.engine,
    get now() {
      return sql`cast(${clock.now()} as bigint)`
    },
    query: (statement) => db.query(statement),
    transaction: (work, options) => db.transaction(work, options),
    listen: (listener) => db.listen(listener),
    ping: () => db.ping(),
    close: () => db.close(),
  }
}
