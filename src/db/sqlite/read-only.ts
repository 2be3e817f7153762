import { systemClock } from '../../core/clock.ts'
import { UnavailableError } from '../../core/errors.ts'
import type { Database, Row } from '../database.ts'
import { type Sql, sql } from '../sql.ts'
import { ReadConnection } from './read-connection.ts'

/** Reads the embedded database while another process has it open. It never waits for that process, and changes nothing. */
export function openSqliteToRead(path: string): Database {
  const reads = new ReadConnection(path)
  return {
    engine: 'sqlite',
    get now(): Sql {
      return sql`${systemClock.now()}`
    },
    query: async <R extends Row>(statement: Sql) => reads.query(statement) as R[],
    transaction: () => Promise.reject(new UnavailableError('The database is open for reading only')),
    listen: () => () => {},
    ping: async () => void reads.query(sql`select count(*) as tables from sqlite_schema`),
    close: async () => reads.close(),
  }
}
