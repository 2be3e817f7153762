/** Values that both engines store alike: times are epoch milliseconds, flags 0 or 1, documents JSON text. */
export type SqlValue = string | number | null
/** What a statement binds. Bytes are values in the binary format of PostgreSQL. */
export type BoundValue = SqlValue | Uint8Array

/** A statement whose values can only be bound, never inserted into its text. */
export class Sql {
  readonly parts: readonly string[]
  readonly values: readonly BoundValue[]
  #text: string | undefined
  #positionalText: string | undefined

  constructor(parts: readonly string[], values: readonly BoundValue[]) {
    this.parts = parts
    this.values = values
  }

  /** With `$1, $2, …`, as PostgreSQL reads it. */
  get text(): string {
    this.#text ??= this.parts.reduce((text, part, index) => `${text}$${index}${part}`)
    return this.#text
  }

  /** With `?`: SQLite treats `$1` as a name, and binding by name takes a third longer than by position. */
  get positionalText(): string {
    this.#positionalText ??= this.parts.join('?')
    return this.#positionalText
  }
}

/** Tagged template for statements; a nested `sql` fragment is inserted together with its bound values. */
export function sql(strings: TemplateStringsArray, ...values: (BoundValue | Sql)[]): Sql {
  if (!values.some((value) => value instanceof Sql)) return new Sql(strings, values as BoundValue[])
  const parts: string[] = [strings[0] ?? '']
  const bound: BoundValue[] = []
  const append = (text: string) => {
    parts[parts.length - 1] += text
  }
  values.forEach((value, index) => {
    if (value instanceof Sql) {
      append(value.parts[0] ?? '')
      value.values.forEach((inner, at) => {
        bound.push(inner)
        parts.push(value.parts[at + 1] ?? '')
      })
    } else {
      bound.push(value)
      parts.push('')
    }
    append(strings[index + 1] ?? '')
  })
  return new Sql(parts, bound)
}

export const EMPTY = sql``

/** Fragments joined by one of these separators. */
export function join(fragments: readonly Sql[], separator: ', ' | ' and ' | ' or ' | ' ' | ' union all '): Sql {
  const parts: string[] = ['']
  const values: BoundValue[] = []
  fragments.forEach((fragment, index) => {
    parts[parts.length - 1] += (index === 0 ? '' : separator) + (fragment.parts[0] ?? '')
    fragment.values.forEach((value, at) => {
      values.push(value)
      parts.push(fragment.parts[at + 1] ?? '')
    })
  })
  return new Sql(parts, values)
}

/** `read` cannot change anything; `schema` is every statement that is neither a read nor a plain change of rows. */
type StatementKind = 'read' | 'write' | 'schema'

/**
 * When in doubt, `write`: a read classified as a write only waits behind other writes. On SQLite the read connection
 * refuses a write that is classified as a read; on PostgreSQL the reads behind it would wait for its locks.
 */
export function kindOf(text: string): StatementKind {
  if (/^\s*(?:select|values)\b/i.test(text)) return 'read'
  if (/^\s*with\b/i.test(text)) return /\b(?:insert|update|delete|replace)\b/i.test(text) ? 'write' : 'read'
  return /^\s*(?:insert|update|delete|replace)\b/i.test(text) ? 'write' : 'schema'
}
