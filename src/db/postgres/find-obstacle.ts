import type { Database } from '../database.ts'
import { sql } from '../sql.ts'

interface Obstacle {
  text: string
  /** How to fix it. */
  hint: string
}

/** Why this user cannot create or change tables in the database; null if nothing stands in the way. */
export async function findObstacle(db: Database): Promise<Obstacle | null> {
  if (db.engine !== 'postgres') return null
  const [row] = await db.query<{ role: string; schema: string | null; may_create: number | null }>(sql`
    select quote_ident(current_user) as role, quote_ident(current_schema()) as schema,
      has_schema_privilege(current_schema()::text, 'create')::int as may_create`)
  if (!row || row.may_create === 1) return null
  if (row.schema === null) {
    return {
      text: `the search_path of the role ${row.role} names no schema that exists`,
      hint: 'Create the schema, or change the search_path of the role',
    }
  }
  return {
    text: `the role ${row.role} may not create tables in the schema ${row.schema}`,
    hint: `Run as its owner: grant usage, create on schema ${row.schema} to ${row.role}`,
  }
}
