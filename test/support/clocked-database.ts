import type { Clock } from '../../src/core/clock.ts'
import type { Database } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'

/** A clock that a test steps, as when the clock of the database's machine is set. */
export class SteppedClock {
  stepMs = 0
  readonly #clock: Pick<Clock, 'now'>

  constructor(clock: Pick<Clock, 'now'>) {
    this.#clock = clock
  }

  now(): number {
    return this.#clock.now() + this.stepMs
  }
}

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
