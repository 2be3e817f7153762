import type { SqlValue } from './database.ts'

/** A statement whose values can only ever be bound, never spliced into its text. */
export class Sql {
  readonly parts: readonly string[]
  readonly values: readonly SqlValue[]
  #text: string | undefined
  #positionalText: string | undefined

  constructor(parts: readonly string[], values: readonly SqlValue[]) {
    this.parts = parts
    this.values = values
  }

  /** With `$1, $2, …`, as PostgreSQL reads it. */
  get text(): string {
    this.#text ??= this.parts.reduce((text, part, index) => `${text}$${index}${part}`)
    return this.#text
  }

  /** With `?`: to SQLite `$1` is a name, and binding by name takes a third longer than binding by position. */
  get positionalText(): string {
    this.#positionalText ??= this.parts.join('?')
    return this.#positionalText
  }
}

/** Tagged template for statements; a nested `sql` fragment is spliced with its own bindings. */
export function sql(strings: TemplateStringsArray, ...values: (SqlValue | Sql)[]): Sql {
  if (!values.some((value) => value instanceof Sql)) return new Sql(strings, values as SqlValue[])
  const parts: string[] = [strings[0] ?? '']
  const bound: SqlValue[] = []
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

/** Fragments joined by a separator that is part of the program text. */
export function join(fragments: readonly Sql[], separator: ', ' | ' and ' | ' or '): Sql {
  const parts: string[] = ['']
  const values: SqlValue[] = []
  fragments.forEach((fragment, index) => {
    parts[parts.length - 1] += (index === 0 ? '' : separator) + (fragment.parts[0] ?? '')
    fragment.values.forEach((value, at) => {
      values.push(value)
      parts.push(fragment.parts[at + 1] ?? '')
    })
  })
  return new Sql(parts, values)
}
