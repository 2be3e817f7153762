import { join, type Sql, sql } from './sql.ts'

/** The condition behind `If-Match`: null allows any version, an empty list none. */
export function versionAmong(versions: readonly number[] | null): Sql {
  if (versions === null) return sql`1 = 1`
  if (versions.length === 0) return sql`1 = 0`
  const allowed = join(
    versions.map((version) => sql`${version}`),
    ', ',
  )
  return sql`version in (${allowed})`
}
