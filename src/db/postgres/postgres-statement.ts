import type { QueryConfig } from 'pg'
import type { Sql } from '../sql.ts'

// Statements are assembled from fragments, and the server keeps each named one per connection: past this they go unnamed.
const MAX_NAMED = 500

const names = new Map<string, string>()

/** A statement as the driver takes it; under a name, so that each connection has the server parse and plan it only once. */
export function prepared(statement: Sql): QueryConfig {
  const { text } = statement
  let name = names.get(text)
  if (name === undefined && names.size < MAX_NAMED) {
    name = `s${names.size}`
    names.set(text, name)
  }
  const values = statement.values as unknown[]
  return name === undefined ? { text, values } : { name, text, values }
}
