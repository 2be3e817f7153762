import { MAX_JSON_DEPTH } from './json.ts'

/** Which parts of a JSON text to report. */
export interface Wanted {
  readonly fields: ReadonlyMap<string, Wanted>
  /** Set when every item of an array is wanted. */
  readonly items?: Wanted
}

/** A part without wanted parts inside. */
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

/** The parts that any of these want. */
export function wantAll(first: Wanted, ...others: readonly Wanted[]): Wanted {
  return others.reduce(mergeWanted, first)
}

function mergeWanted(a: Wanted, b: Wanted): Wanted {
  const fields = new Map(a.fields)
  for (const [name, wanted] of b.fields) fields.set(name, wantAll(wanted, ...presentOf(fields.get(name))))
  const [items, ...more] = presentOf(a.items, b.items)
  return items === undefined ? { fields } : { fields, items: wantAll(items, ...more) }
}

function presentOf(...wanted: (Wanted | undefined)[]): Wanted[] {
  return wanted.filter((one) => one !== undefined)
}

/** Of a longer array, only the last items are reported, so that memory stays bounded. */
const MAX_ITEMS = 10_000
/** Parsing a part of this size takes a few milliseconds at most. */
const MAX_PARSED_LENGTH = 256 * 1024

export type JsonKind = 'object' | 'array' | 'string' | 'number' | 'boolean' | 'null'

/** The first character tells the kind. Every other one starts a number. */
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
  /** How many values it holds, itself included. */
  values = 0
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

  /** A wanted part inside, by keys and array indexes. Of a repeated key the last one counts, as for `JSON.parse`. */
  at(...path: readonly string[]): JsonPart | undefined {
    return path.reduce<JsonPart | undefined>((part, name) => part?.fields.get(name), this)
  }

  /** The value of a small part. Undefined for a part that is longer than this. */
  parse(maxLength = MAX_PARSED_LENGTH): unknown {
    return this.end - this.start > maxLength ? undefined : JSON.parse(this.text)
  }

  /** For the scan: whether any part inside may be wanted. */
  wantsInside(isArray: boolean): boolean {
    const { fields, items } = this.#wanted
    if (fields.size === 0) return isArray && items !== undefined
    return !isArray || items !== undefined || fields.keys().some((name) => isDigit(name.charCodeAt(0)))
  }

  /** For the scan: the part that a value inside this one is reported as. */
  child(start: number, key: string | number): JsonPart | null {
    const ofName = this.#wanted.fields.get(String(key))
    const ofItem = typeof key === 'number' ? this.#wanted.items : undefined
    const [wanted, ...more] = presentOf(ofName, ofItem)
    if (wanted === undefined) return null
    const part = new JsonPart(this.#source, start, more.length === 0 ? wanted : wantAll(wanted, ...more))
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
    // Cut in one go, so that a long array does not shift its items again and again.
    if (this.#items.length > 2 * MAX_ITEMS) this.#items.splice(0, MAX_ITEMS)
  }
}

export class JsonSyntaxError extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'JsonSyntaxError'
  }
}

export class JsonDepthError extends Error {
  constructor(maxDepth: number) {
    super(`nested deeper than ${maxDepth} levels`)
    this.name = 'JsonDepthError'
  }
}

export interface ScanOptions {
  wanted?: Wanted
  maxDepth?: number
}

/** The scan gives the event loop a turn after so many characters: a few milliseconds of work. */
const CHARACTERS_A_TURN = 256 * 1024

/**
 * Checks a JSON text and finds parts of it, in one pass, without building values: a document keeps its exact text, and
 * ten megabytes cost no more memory than they have. A long text does not hold the event loop.
 */
export async function scanJson(text: string, options: ScanOptions = {}): Promise<JsonScan> {
  const scan = new JsonScan(text, options)
  for (let until = CHARACTERS_A_TURN; !scan.advance(until); until += CHARACTERS_A_TURN) await new Promise(setImmediate)
  return scan
}

const AT_VALUE = 0
const AT_FIRST_ITEM = 1
const AT_FIRST_KEY = 2
const AT_KEY = 3
const AFTER_VALUE = 4

/** An open object or array. There is one per level, used again by the next object or array of that level. */
interface Level {
  isArray: boolean
  part: JsonPart | null
  /** False when no part inside is wanted. */
  reports: boolean
  key: string
  index: number
}

export class JsonScan {
  /** The whole document. */
  readonly root: JsonPart
  /** An object has the key `__proto__`, or `constructor` with a `prototype` inside. */
  hasPrototypeKey = false
  readonly #text: string
  readonly #maxDepth: number
  readonly #levels: Level[] = []
  #depth = 0
  #at = 0
  #state = AT_VALUE
  #values = 0

  constructor(text: string, { wanted = WHOLE, maxDepth = MAX_JSON_DEPTH }: ScanOptions = {}) {
    this.#text = text
    this.#maxDepth = maxDepth
    this.#at = skipSpace(text, 0)
    this.root = new JsonPart(text, this.#at, wanted)
  }

  /** Continues to about this character. True once the whole text is checked. Throws where it is not JSON. */
  advance(until: number): boolean {
    const text = this.#text
    const end = Math.min(until, text.length)
    while (this.#at < end) {
      const char = text.charCodeAt(this.#at)
      if (isSpace(char)) this.#at += 1
      else this.#step(char)
    }
    if (this.#at < text.length) return false
    if (this.#depth > 0 || this.#state !== AFTER_VALUE) throw unexpected(text, text.length)
    return true
  }

  #step(char: number): void {
    switch (this.#state) {
      case AT_FIRST_ITEM:
        if (char === CLOSE_ARRAY) return this.#close()
        return this.#value(char)
      case AT_VALUE:
        return this.#value(char)
      case AT_FIRST_KEY:
        if (char === CLOSE_OBJECT) return this.#close()
        return this.#key(char)
      case AT_KEY:
        return this.#key(char)
      default:
        return this.#afterValue(char)
    }
  }

  #afterValue(char: number): void {
    if (this.#depth === 0) throw unexpected(this.#text, this.#at)
    const level = this.#levels[this.#depth - 1] as Level
    if (char === COMMA) {
      this.#at += 1
      level.index += 1
      this.#state = level.isArray ? AT_VALUE : AT_KEY
    } else if (char === (level.isArray ? CLOSE_ARRAY : CLOSE_OBJECT)) this.#close()
    else throw unexpected(this.#text, this.#at)
  }

  #key(char: number): void {
    const text = this.#text
    if (char !== QUOTE) throw unexpected(text, this.#at)
    const start = this.#at
    const end = endOfString(text, start)
    const level = this.#levels[this.#depth - 1] as Level
    level.key = level.reports || mayBePrototypeKey(text, start, end) ? readKey(text, start, end) : ''
    if (level.key === '__proto__' || (level.key === 'prototype' && this.#isInConstructor())) this.hasPrototypeKey = true
    const colon = skipSpace(text, end)
    if (charAt(text, colon) !== COLON) throw unexpected(text, colon)
    this.#at = colon + 1
    this.#state = AT_VALUE
  }

  #isInConstructor(): boolean {
    const outer = this.#levels[this.#depth - 2]
    return this.#depth > 1 && outer?.isArray === false && outer.key === 'constructor'
  }

  #value(char: number): void {
    const start = this.#at
    const part = this.#partAt(start)
    this.#values += 1
    if (char === OPEN_OBJECT || char === OPEN_ARRAY) return this.#open(char === OPEN_ARRAY, part)
    if (char === QUOTE) this.#at = endOfString(this.#text, start)
    else if (char === MINUS || isDigit(char)) this.#at = endOfNumber(this.#text, start)
    else this.#at = endOfWord(this.#text, start)
    if (part !== null) {
      part.end = this.#at
      part.values = 1
    }
    this.#state = AFTER_VALUE
  }

  #partAt(start: number): JsonPart | null {
    if (this.#depth === 0) return this.root
    const level = this.#levels[this.#depth - 1] as Level
    if (!level.reports || level.part === null) return null
    return level.part.child(start, level.isArray ? level.index : level.key)
  }

  #open(isArray: boolean, part: JsonPart | null): void {
    if (this.#depth >= this.#maxDepth) throw new JsonDepthError(this.#maxDepth)
    if (part !== null) part.values = -this.#values
    const reports = part?.wantsInside(isArray) ?? false
    const level = this.#levels[this.#depth]
    if (level === undefined) this.#levels.push({ isArray, part, reports, key: '', index: 0 })
    else {
      level.isArray = isArray
      level.part = part
      level.reports = reports
      level.key = ''
      level.index = 0
    }
    this.#depth += 1
    this.#at += 1
    this.#state = isArray ? AT_FIRST_ITEM : AT_FIRST_KEY
  }

  #close(): void {
    this.#depth -= 1
    this.#at += 1
    this.#state = AFTER_VALUE
    const { part } = this.#levels[this.#depth] as Level
    if (part === null) return
    part.end = this.#at
    part.values += this.#values + 1
  }
}

const QUOTE = 0x22
const PLUS = 0x2b
const COMMA = 0x2c
const MINUS = 0x2d
const POINT = 0x2e
const DIGIT_0 = 0x30
const DIGIT_9 = 0x39
const COLON = 0x3a
const LETTER_E = 0x45
const OPEN_ARRAY = 0x5b
const BACKSLASH = 0x5c
const CLOSE_ARRAY = 0x5d
const LETTER_U = 0x75
const OPEN_OBJECT = 0x7b
const CLOSE_OBJECT = 0x7d

/** Zero after the end. Reading past the end would make every other read slower. */
function charAt(text: string, at: number): number {
  return at < text.length ? text.charCodeAt(at) : 0
}

function skipSpace(text: string, from: number): number {
  let at = from
  while (isSpace(charAt(text, at))) at += 1
  return at
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: JSON forbids them inside strings
const PLAIN = /[^"\\\u0000-\u001f]*/y

/** After the closing quote of the string that starts here. */
function endOfString(text: string, start: number): number {
  let at = start + 1
  for (let plain = 0; ; plain++) {
    const char = charAt(text, at)
    if (char === QUOTE) return at + 1
    if (char === BACKSLASH) {
      at = endOfEscape(text, at)
      plain = 0
    } else if (char < 0x20) throw unexpected(text, at)
    else if (plain < LONG_RUN) at += 1
    else {
      // A long run of plain characters is matched natively, five times as fast as here.
      PLAIN.lastIndex = at
      PLAIN.test(text)
      at = PLAIN.lastIndex
    }
  }
}

const LONG_RUN = 30

const ESCAPED = new Set(Array.from('"\\/bfnrt', (char) => char.charCodeAt(0)))

function endOfEscape(text: string, backslash: number): number {
  const char = charAt(text, backslash + 1)
  if (ESCAPED.has(char)) return backslash + 2
  if (char !== LETTER_U) throw unexpected(text, backslash)
  for (let at = backslash + 2; at < backslash + 6; at++) {
    if (!isHexDigit(charAt(text, at))) throw unexpected(text, at)
  }
  return backslash + 6
}

function endOfNumber(text: string, start: number): number {
  let at = charAt(text, start) === MINUS ? start + 1 : start
  // No digit may follow a leading zero.
  at = charAt(text, at) === DIGIT_0 ? at + 1 : endOfDigits(text, at)
  if (charAt(text, at) === POINT) at = endOfDigits(text, at + 1)
  if ((charAt(text, at) & ~0x20) !== LETTER_E) return at
  const sign = charAt(text, at + 1)
  return endOfDigits(text, sign === PLUS || sign === MINUS ? at + 2 : at + 1)
}

/** After at least one digit. */
function endOfDigits(text: string, start: number): number {
  let at = start
  while (isDigit(charAt(text, at))) at += 1
  if (at === start) throw unexpected(text, at)
  return at
}

function endOfWord(text: string, start: number): number {
  const word = ['true', 'false', 'null'].find((one) => text.startsWith(one, start))
  if (word === undefined) throw unexpected(text, start)
  return start + word.length
}

/** False for almost every key, by its length: their texts need not be read. */
function mayBePrototypeKey(text: string, start: number, end: number): boolean {
  const length = end - start - 2
  if (length === 9 || length === 11) return true
  // An escape takes more characters than it stands for.
  return length > 9 && length <= 6 * 11 && text.slice(start, end).includes('\\')
}

function readKey(text: string, start: number, end: number): string {
  const raw = text.slice(start, end)
  return raw.includes('\\') ? (JSON.parse(raw) as string) : raw.slice(1, -1)
}

function isSpace(char: number): boolean {
  return char === 0x20 || char === 0x0a || char === 0x0d || char === 0x09
}

function isDigit(char: number): boolean {
  return char >= DIGIT_0 && char <= DIGIT_9
}

function isHexDigit(char: number): boolean {
  const letter = char & ~0x20
  return isDigit(char) || (letter >= 0x41 && letter <= 0x46)
}

function unexpected(text: string, at: number): JsonSyntaxError {
  const found = at < text.length ? JSON.stringify(text.slice(at, at + 1)) : 'end'
  return new JsonSyntaxError(`unexpected ${found} at character ${at}`)
}
