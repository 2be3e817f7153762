import { type Wanted, wantAll } from './wanted.ts'

/** A longer array reports only its last items, so that memory stays bounded. */
const MAX_ITEMS = 10_000
/** Parsing a part of this size takes a few milliseconds at most. */
const MAX_PARSED_LENGTH = 256 * 1024

type JsonKind = 'object' | 'array' | 'string' | 'number' | 'boolean' | 'null'

/** The kind of a value, by its first character. All other characters start a number. */
const KINDS = new Map<number, JsonKind>(
  Object.entries({ '{': 'object', '[': 'array', '"': 'string', t: 'boolean', f: 'boolean', n: 'null' } as const).map(
    ([char, kind]) => [char.charCodeAt(0), kind],
  ),
)

const NO_FIELDS: ReadonlyMap<string, JsonPart> = new Map()

/** A part of a JSON text, with the wanted parts inside it. */
export class JsonPart {
  readonly start: number
  end: number
  /** The number of values in this part, itself included. */
  values = 0
  /** The number of fields or items directly inside. A repeated key counts each time. */
  members = 0
  readonly #source: string
  readonly #wanted: Wanted
  #fields: Map<string, JsonPart> | undefined
  #items: JsonPart[] | undefined

  constructor(source: string, start: number, wanted: Wanted) {
    this.#source = source
    this.#wanted = wanted
    this.start = start
    this.end = start
  }

  get text(): string {
    return this.#source.slice(this.start, this.end)
  }

  /** The wanted fields of an object, and the wanted items of an array by their index. */
  get fields(): ReadonlyMap<string, JsonPart> {
    return this.#fields ?? NO_FIELDS
  }

  get kind(): JsonKind {
    return KINDS.get(this.#source.charCodeAt(this.start)) ?? 'number'
  }

  /** The wanted items of an array, in order. */
  get items(): readonly JsonPart[] {
    return this.#items?.slice(-MAX_ITEMS) ?? []
  }

  /** A wanted part inside, by keys and array indexes. If a key is repeated, the last one counts, as in `JSON.parse`. */
  at(...path: readonly string[]): JsonPart | undefined {
    return path.reduce<JsonPart | undefined>((part, name) => part?.fields.get(name), this)
  }

  /** The value of a small part. Undefined if the part is longer than `maxLength`. */
  parse(maxLength = MAX_PARSED_LENGTH): unknown {
    return this.end - this.start > maxLength ? undefined : JSON.parse(this.text)
  }

  /** For the scanner: whether this part can contain wanted parts. */
  wantsInside(isArray: boolean): boolean {
    const { fields, items } = this.#wanted
    if (fields.size === 0) return isArray && items !== undefined
    return !isArray || items !== undefined || fields.keys().some((name) => /^\d/.test(name))
  }

  /** For the scanner: creates the part for a value inside this one; null if the value is not wanted. */
  child(start: number, key: string | number): JsonPart | null {
    const { fields, items } = this.#wanted
    const ofName = fields.size === 0 ? undefined : fields.get(String(key))
    const ofItem = typeof key === 'number' ? items : undefined
    const wanted = ofName !== undefined && ofItem !== undefined ? wantAll(ofName, ofItem) : (ofName ?? ofItem)
    if (wanted === undefined) return null
    const part = new JsonPart(this.#source, start, wanted)
    if (ofName !== undefined) {
      this.#fields ??= new Map()
      this.#fields.set(String(key), part)
    }
    if (ofItem !== undefined) this.#keepItem(part)
    return part
  }

  #keepItem(part: JsonPart): void {
    this.#items ??= []
    this.#items.push(part)
    // Remove many items at once, so that a long array is not shifted for every new item.
    if (this.#items.length > 2 * MAX_ITEMS) this.#items.splice(0, MAX_ITEMS)
  }
}
