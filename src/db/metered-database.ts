import { UnavailableError } from '../core/errors.ts'
import type { CounterLabels, Meter } from '../core/metrics/meter.ts'
import { type Database, LockTimeout } from './database.ts'

type Kind = CounterLabels<'database_unavailable_total'>

export interface MeteredDatabase extends Database {
  /** Why the latest transaction failed, if the database was unavailable; null after one that succeeded. */
  readonly transactionFailure: unknown
  /** How many statements and transactions gave up waiting for a lock in the last minute, counted up to 5. */
  readonly recentLockTimeouts: number
}

/** More than single locked rows cause. */
export const MANY_LOCK_TIMEOUTS = 5
const RECENT_MS = 60_000

/** The same database, with the duration of each statement and transaction measured, including the wait in the queue. */
export function meteredDatabase(db: Database, meter: Meter, elapsed = () => performance.now()): MeteredDatabase {
  let transactionFailure: unknown = null
  const lockTimeoutsAtMs: number[] = []
  const onLockTimeout = () => {
    lockTimeoutsAtMs.push(elapsed())
    if (lockTimeoutsAtMs.length > MANY_LOCK_TIMEOUTS) lockTimeoutsAtMs.shift()
  }
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
    query: (statement) => timed(meter, query, () => db.query(statement), { onLockTimeout }),
    transaction: (work, options) =>
      timed(meter, transaction, () => db.transaction(work, options), { onLockTimeout, note }),
    get transactionFailure() {
      return transactionFailure
    },
    get recentLockTimeouts() {
      const sinceMs = elapsed() - RECENT_MS
      return lockTimeoutsAtMs.filter((atMs) => atMs > sinceMs).length
    },
    listen: (listener) => db.listen(listener),
    ping: () => db.ping(),
    close: () => db.close(),
  }
}

/** Measures without an additional promise, so that the caller is not delayed. */
function timed<T>(
  meter: Meter,
  kind: Kind,
  begin: () => Promise<T>,
  { onLockTimeout, note }: { onLockTimeout: () => void; note?: (failure: unknown) => void },
): Promise<T> {
  const sinceMs = performance.now()
  const work = begin()
  const observe = () => meter.observe('database_duration_seconds', (performance.now() - sinceMs) / 1_000, kind)
  const onSuccess = () => {
    observe()
    note?.(null)
  }
  work.then(onSuccess, (error: unknown) => {
    observe()
    if (error instanceof LockTimeout) {
      onLockTimeout()
      return meter.count('database_lock_timeouts_total', kind)
    }
    // Without a cause, the work of the transaction threw it, for another reason.
    if (!(error instanceof UnavailableError) || error.cause === undefined) return
    meter.count('database_unavailable_total', kind)
    note?.(error)
  })
  return work
}
