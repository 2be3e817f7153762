import { MAX_JSON_DEPTH } from '../json.ts'
import { JsonPart } from './json-part.ts'
import {
  CLOSE_ARRAY,
  CLOSE_OBJECT,
  COLON,
  COMMA,
  endOfScalar,
  endOfString,
  isSpace,
  mayBePrototypeKey,
  OPEN_ARRAY,
  OPEN_OBJECT,
  QUOTE,
  readKey,
  skipSpace,
  unexpected,
} from './json-tokens.ts'
import { type Wanted, WHOLE } from './wanted.ts'

export class JsonDepthError extends Error {
  constructor(maxDepth: number) {
    super(`nested deeper than ${maxDepth} levels`)
    this.name = 'JsonDepthError'
  }
}

interface ScanOptions {
  wanted?: Wanted
  maxDepth?: number
  /** Called with the position of each blank between the tokens, except those before the document. */
  onSpace?: (at: number) => void
}

/** The scanner yields to the event loop after this many characters: a few milliseconds of work. */
const CHARACTERS_A_TURN = 256 * 1024

/**
 * Validates a JSON text and finds parts of it, in one pass, without building values. So a document keeps its exact text,
 * and a text of ten megabytes needs no further memory. A long text does not block the event loop.
 */
export async function scanJson(text: string, options: ScanOptions = {}): Promise<JsonScan> {
  const scan = new JsonScan(text, options)
  for (let until = CHARACTERS_A_TURN; !scan.advance(until); until += CHARACTERS_A_TURN) await new Promise(setImmediate)
  return scan
}

/** Whether a JSON text has more items and fields than this. Each follows a comma, or is the first after a bracket. */
export function hasMoreValues(text: string, most: number): boolean {
  if (text.length <= most) return false
  let values = 0
  for (let at = 0; at < text.length; at++) {
    const char = text.charCodeAt(at)
    // Negative for a string without an end: then the whole text is read.
    if (char === QUOTE) at = Math.abs(endOfString(text, at + 1, text.length)) - 1
    else if ((char === COMMA || char === OPEN_ARRAY || char === OPEN_OBJECT) && ++values > most) return true
  }
  return false
}

const AT_VALUE = 0
const AT_FIRST_ITEM = 1
const AT_FIRST_KEY = 2
const AT_KEY = 3
const AT_COLON = 4
const AFTER_VALUE = 5
const IN_STRING = 6

/** An open object or array. Each depth has one such object, reused by the next object or array at that depth. */
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
  /** The position up to which the text is scanned. */
  at: number
  readonly #text: string
  readonly #maxDepth: number
  readonly #onSpace: ((at: number) => void) | undefined
  readonly #levels: Level[] = []
  #depth = 0
  #state = AT_VALUE
  #values = 0
  #stringPart: JsonPart | null = null

  constructor(text: string, { wanted = WHOLE, maxDepth = MAX_JSON_DEPTH, onSpace }: ScanOptions = {}) {
    this.#text = text
    this.#maxDepth = maxDepth
    this.#onSpace = onSpace
    this.at = skipSpace(text, 0)
    this.root = new JsonPart(text, this.at, wanted)
  }

  /** Scans on to about this character. True when the whole text is checked. Throws if the text is not JSON. */
  advance(until: number): boolean {
    const text = this.#text
    const end = Math.min(until, text.length)
    while (this.at < end) {
      const char = text.charCodeAt(this.at)
      if (this.#state === IN_STRING) this.#continueString(end)
      else if (isSpace(char)) {
        this.#onSpace?.(this.at)
        this.at += 1
      } else this.#step(char)
    }
    if (this.at < text.length) return false
    if (this.#depth > 0 || this.#state !== AFTER_VALUE) throw unexpected(text, text.length)
    return true
  }

  #step(char: number): void {
    switch (this.#state) {
      case AT_FIRST_ITEM:
        if (char === CLOSE_ARRAY) return this.#close(0)
        return this.#value(char)
      case AT_VALUE:
        return this.#value(char)
      case AT_FIRST_KEY:
        if (char === CLOSE_OBJECT) return this.#close(0)
        return this.#key(char)
      case AT_KEY:
        return this.#key(char)
      case AT_COLON:
        return this.#colon(char)
      default:
        return this.#afterValue(char)
    }
  }

  #afterValue(char: number): void {
    if (this.#depth === 0) throw unexpected(this.#text, this.at)
    const level = this.#levels[this.#depth - 1] as Level
    if (char === COMMA) {
      this.at += 1
      level.index += 1
      this.#state = level.isArray ? AT_VALUE : AT_KEY
    } else if (char === (level.isArray ? CLOSE_ARRAY : CLOSE_OBJECT)) this.#close(level.index + 1)
    else throw unexpected(this.#text, this.at)
  }

  #key(char: number): void {
    const text = this.#text
    if (char !== QUOTE) throw unexpected(text, this.at)
    const start = this.at
    const end = endOfString(text, start + 1, text.length)
    if (end < 0) throw unexpected(text, -end)
    const level = this.#levels[this.#depth - 1] as Level
    level.key = level.reports || mayBePrototypeKey(text, start, end) ? readKey(text, start, end) : ''
    if (level.key === '__proto__' || (level.key === 'prototype' && this.#isInConstructor())) this.hasPrototypeKey = true
    this.at = end
    this.#state = AT_COLON
  }

  #colon(char: number): void {
    if (char !== COLON) throw unexpected(this.#text, this.at)
    this.at += 1
    this.#state = AT_VALUE
  }

  #isInConstructor(): boolean {
    const outer = this.#levels[this.#depth - 2]
    return this.#depth > 1 && outer?.isArray === false && outer.key === 'constructor'
  }

  #value(char: number): void {
    const start = this.at
    const part = this.#partAt(start)
    this.#values += 1
    if (char === OPEN_OBJECT || char === OPEN_ARRAY) return this.#open(char === OPEN_ARRAY, part)
    if (char === QUOTE) {
      this.at += 1
      this.#state = IN_STRING
      this.#stringPart = part
      return
    }
    this.#endValue(part, endOfScalar(this.#text, start, char))
  }

  /** A long string may end in a later turn. */
  #continueString(until: number): void {
    const end = endOfString(this.#text, this.at, until)
    if (end < 0) this.at = -end
    else this.#endValue(this.#stringPart, end)
  }

  #endValue(part: JsonPart | null, end: number): void {
    this.at = end
    if (part !== null) {
      part.end = this.at
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
    this.at += 1
    this.#state = isArray ? AT_FIRST_ITEM : AT_FIRST_KEY
  }

  #close(members: number): void {
    this.#depth -= 1
    this.at += 1
    this.#state = AFTER_VALUE
    const { part } = this.#levels[this.#depth] as Level
    if (part === null) return
    part.end = this.at
    part.members = members
    part.values += this.#values + 1
  }
}
