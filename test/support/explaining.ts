import type { Database, Queryable, Row } from '../../src/db/database.ts'
import { type Sql, sql } from '../../src/db/sql.ts'

/** Runs statements on the database, and records the query plan of each. */
export function explaining(db: Database, plans: string[]): Queryable {
  const explain = db.engine === 'postgres' ? sql`explain` : sql`explain query plan`
  return {
    engine: db.engine,
    query: async <R extends Row>(statement: Sql) => {
      const rows = await db.query(sql`${explain} ${statement}`)
      plans.push(rows.map((row) => String(row['QUERY PLAN'] ?? row.detail)).join('\n'))
      return db.query<R>(statement)
    },
  }
}
