import { UnavailableError } from '../core/errors.ts'
import type { CounterLabels, Meter } from '../core/metrics/meter.ts'
import { type Database, LockTimeout } from './database.ts'

type Kind = CounterLabels<'database_unavailable_total'>

export interface MeteredDatabase extends Database {
  /** Why the latest transaction failed, if the database was unavailable; null after one that succeeded. */
  readonly transactionFailure: unknown
}

/** The same database, with the duration of each statement and transaction measured, including the wait in the queue. */
export function meteredDatabase(db: Database, meter: Meter): MeteredDatabase {
  let transactionFailure: unknown = null
  const note = (failure: unknown) => {
    transactionFailure = failure
  }
  const query: Kind = { engine: db.engine, kind: 'query' }
  const transaction: Kind = { engine: db.engine, kind: 'transaction' }
  return {
    engine: db.engine,
    get now() {
      return db.now
    },
    query: (statement) => timed(meter, query, () => db.query(statement)),
    transaction: (work, options) => timed(meter, transaction, () => db.transaction(work, options), note),
    get transactionFailure() {
      return transactionFailure
    },
    listen: (listener) => db.listen(listener),
    ping: () => db.ping(),
    close: () => db.close(),
  }
}

/** Measures without an additional promise, so that the caller is not delayed. */
function timed<T>(meter: Meter, kind: Kind, begin: () => Promise<T>, note?: (failure: unknown) => void): Promise<T> {
  const sinceMs = performance.now()
  const work = begin()
  const observe = () => meter.observe('database_duration_seconds', (performance.now() - sinceMs) / 1_000, kind)
  const onSuccess = () => {
    observe()
    note?.(null)
  }
  work.then(onSuccess, (error: unknown) => {
    observe()
    if (error instanceof LockTimeout) return meter.count('database_lock_timeouts_total', kind)
    if (!(error instanceof UnavailableError)) return
    meter.count('database_unavailable_total', kind)
    note?.(error)
  })
  return work
}
