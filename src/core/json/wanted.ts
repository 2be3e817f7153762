/** The parts of a JSON text that a scan reports. */
export interface Wanted {
  readonly fields: ReadonlyMap<string, Wanted>
  /** Set when every item of an array is wanted. */
  readonly items?: Wanted
}

/** The part itself is wanted, but no parts inside it. */
export const WHOLE: Wanted = { fields: new Map() }

export function wantFields(fields: Readonly<Record<string, Wanted>>): Wanted {
  return { fields: new Map(Object.entries(fields)) }
}

export function wantItems(items: Wanted): Wanted {
  return { fields: new Map(), items }
}

/** The part at the end of a path of keys and array indexes. */
export function wantPath([name, ...rest]: readonly string[], last: Wanted = WHOLE): Wanted {
  return name === undefined ? last : { fields: new Map([[name, wantPath(rest, last)]]) }
}

/** Merges selections. */
export function wantAll(first: Wanted, ...others: readonly Wanted[]): Wanted {
  return others.reduce(mergeWanted, first)
}

function mergeWanted(a: Wanted, b: Wanted): Wanted {
  const fields = new Map(a.fields)
  for (const [name, wanted] of b.fields) {
    const other = fields.get(name)
    fields.set(name, other === undefined ? wanted : mergeWanted(other, wanted))
  }
  const items = a.items && b.items ? mergeWanted(a.items, b.items) : (a.items ?? b.items)
  return items === undefined ? { fields } : { fields, items }
}
