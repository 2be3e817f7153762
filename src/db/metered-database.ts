import { UnavailableError } from '../core/errors.ts'
import type { CounterLabels, Meter } from '../core/metrics/meter.ts'
import { type Database, LockTimeout } from './database.ts'

type Kind = CounterLabels<'database_unavailable_total'>

/** The same database, with the duration of each statement and transaction measured, including the wait in the queue. */
export function meteredDatabase(db: Database, meter: Meter): Database {
  const query: Kind = { engine: db.engine, kind: 'query' }
  const transaction: Kind = { engine: db.engine, kind: 'transaction' }
  return {
    engine: db.engine,
    get now() {
      return db.now
    },
    query: (statement) => timed(meter, query, () => db.query(statement)),
    transaction: (work, options) => timed(meter, transaction, () => db.transaction(work, options)),
    listen: (listener) => db.listen(listener),
    ping: () => db.ping(),
    close: () => db.close(),
  }
}

/** Measures without an additional promise, so that the caller is not delayed. */
function timed<T>(meter: Meter, kind: Kind, begin: () => Promise<T>): Promise<T> {
  const sinceMs = performance.now()
  const work = begin()
  const observe = () => meter.observe('database_duration_seconds', (performance.now() - sinceMs) / 1_000, kind)
  work.then(observe, (error: unknown) => {
    observe()
    const isUnavailable = error instanceof UnavailableError && !(error instanceof LockTimeout)
    if (isUnavailable) meter.count('database_unavailable_total', kind)
  })
  return work
}
