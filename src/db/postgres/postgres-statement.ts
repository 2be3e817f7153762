import type { QueryConfig } from 'pg'
import type { Sql } from '../sql.ts'

// The server keeps every named statement per connection. Beyond this number, statements stay unnamed.
const MAX_NAMED = 500

const names = new Map<string, string>()

/**
 * A statement for the driver, with a name, so that the server parses and plans it once per connection. Without names behind
 * a pooler that gives each transaction another connection.
 */
export function prepared(statement: Sql, isNamed: boolean): QueryConfig {
  const { text } = statement
  if (!isNamed) return { text, values: statement.values as unknown[] }
  let name = names.get(text)
  if (name === undefined && names.size < MAX_NAMED) {
    name = `s${names.size}`
    names.set(text, name)
  }
  const values = statement.values as unknown[]
  return name === undefined ? { text, values } : { name, text, values }
}
