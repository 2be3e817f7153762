import { MAX_JSON_DEPTH } from './json.ts'

/** A part of a JSON text: where it starts and ends, and the wanted parts inside it. */
export interface JsonPart {
  readonly start: number
  end: number
  /** The wanted fields of an object. Of a repeated key, the last one counts, as for `JSON.parse`. */
  readonly fields: Map<string, JsonPart>
  /** The last items of an array whose items are wanted, at most `MAX_ITEMS`. */
  readonly items: JsonPart[]
}

/** Which parts to report: `{ values: { report: {} } }` reports two. `*` stands for every item of an array. */
export interface WantedParts {
  readonly [key: string]: WantedParts
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
  wanted?: WantedParts
  maxDepth?: number
}

/** The scan gives the event loop a turn after so many characters: about a millisecond of work. */
const CHARACTERS_A_TURN = 256 * 1024
const MAX_ITEMS = 1_000

/**
 * Checks a JSON text and finds parts of it, in one pass, without building values: a document keeps its exact text, and
 * ten megabytes cost no more memory than they have. A long text does not hold the event loop.
 */
export async function scanJson(text: string, options: ScanOptions = {}): Promise<JsonScan> {
  const scan = new JsonScan(text, options)
  for (let until = CHARACTERS_A_TURN; !scan.advance(until); until += CHARACTERS_A_TURN) await new Promise(setImmediate)
  return scan
}

/** The same for a short text, without a promise. */
export function scanJsonNow(text: string, options: ScanOptions = {}): JsonScan {
  const scan = new JsonScan(text, options)
  scan.advance(Number.POSITIVE_INFINITY)
  return scan
}

type State = 'value' | 'first item or end' | 'first key or end' | 'key' | 'after value'

/** An open object or array. */
interface Container {
  isArray: boolean
  /** Null when no part inside is wanted. */
  part: JsonPart | null
  wanted: WantedParts | null
  key: string
  index: number
}

export class JsonScan {
  readonly text: string
  /** The whole document. */
  readonly root: JsonPart = newPart(0)
  /** An object has the key `__proto__`, or `constructor` with a `prototype` inside. */
  hasPrototypeKey = false
  /** A number that JavaScript would write with other digits is in the text. */
  readonly #maxDepth: number
  readonly #wanted: WantedParts
  readonly #open: Container[] = []
  #at = 0
  #state: State = 'value'

  constructor(text: string, { wanted = {}, maxDepth = MAX_JSON_DEPTH }: ScanOptions) {
    this.text = text
    this.#wanted = wanted
    this.#maxDepth = maxDepth
  }

  textOf({ start, end }: JsonPart): string {
    return this.text.slice(start, end)
  }

  /** For small parts only: builds the value. */
  parse(part: JsonPart): unknown {
    return JSON.parse(this.textOf(part))
  }

  /** Goes on to about this character. True once the whole text has been checked; throws where it is not JSON. */
  advance(until: number): boolean {
    const { text } = this
    while (this.#at < until) {
      this.#skipSpace()
      if (this.#at >= text.length) return this.#finish()
      if (this.#isDone()) throw unexpected(text, this.#at)
      this.#step(text.charCodeAt(this.#at))
    }
    return false
  }

  #finish(): true {
    if (!this.#isDone()) throw new JsonSyntaxError('unexpected end')
    return true
  }

  #isDone(): boolean {
    return this.#open.length === 0 && this.#state === 'after value'
  }

  #step(char: number): void {
    const container = this.#open.at(-1)
    switch (this.#state) {
      case 'first item or end':
        if (char === CLOSE_ARRAY) return this.#close()
        return this.#value(char)
      case 'value':
        return this.#value(char)
      case 'first key or end':
        if (char === CLOSE_OBJECT) return this.#close()
        return this.#key(char)
      case 'key':
        return this.#key(char)
      case 'after value':
        if (container === undefined) throw unexpected(this.text, this.#at)
        if (char === (container.isArray ? CLOSE_ARRAY : CLOSE_OBJECT)) return this.#close()
        if (char !== COMMA) throw unexpected(this.text, this.#at)
        this.#at += 1
        container.index += 1
        this.#state = container.isArray ? 'value' : 'key'
    }
  }

  #key(char: number): void {
    if (char !== QUOTE) throw unexpected(this.text, this.#at)
    const container = this.#open.at(-1) as Container
    const start = this.#at
    this.#string()
    const raw = this.text.slice(start, this.#at)
    container.key = raw.includes('\\') ? (JSON.parse(raw) as string) : raw.slice(1, -1)
    const outer = this.#open.at(-2)
    const isPrototype = container.key === 'prototype' && outer?.isArray === false && outer.key === 'constructor'
    if (container.key === '__proto__' || isPrototype) this.hasPrototypeKey = true
    this.#skipSpace()
    if (this.text.charCodeAt(this.#at) !== COLON) throw unexpected(this.text, this.#at)
    this.#at += 1
    this.#state = 'value'
  }

  #value(char: number): void {
    const start = this.#at
    if (char === OPEN_OBJECT || char === OPEN_ARRAY) {
      if (this.#open.length >= this.#maxDepth) throw new JsonDepthError(this.#maxDepth)
      const { part, wanted } = this.#partFor(start)
      const isArray = char === OPEN_ARRAY
      this.#open.push({ isArray, part, wanted, key: '', index: 0 })
      this.#at += 1
      this.#state = isArray ? 'first item or end' : 'first key or end'
      return
    }
    if (char === QUOTE) this.#string()
    else this.#literal(char)
    const { part } = this.#partFor(start)
    if (part) part.end = this.#at
    this.#state = 'after value'
  }

  #close(): void {
    const container = this.#open.pop() as Container
    this.#at += 1
    if (container.part) container.part.end = this.#at
    this.#state = 'after value'
  }

  /** The part that a value at this place is reported as, if it is wanted. */
  #partFor(start: number): { part: JsonPart | null; wanted: WantedParts | null } {
    const container = this.#open.at(-1)
    if (container === undefined) return { part: Object.assign(this.root, { start }), wanted: this.#wanted }
    const { part: parent, wanted: among, isArray, key, index } = container
    if (parent === null || among === null) return NOT_WANTED
    const name = isArray ? String(index) : key
    if (Object.hasOwn(among, name)) {
      const part = newPart(start)
      parent.fields.set(name, part)
      return { part, wanted: among[name] ?? null }
    }
    if (!isArray || !Object.hasOwn(among, '*')) return NOT_WANTED
    const part = newPart(start)
    parent.items.push(part)
    // Cut in one go, so that a long array does not shift its items again and again.
    if (parent.items.length > 2 * MAX_ITEMS) parent.items.splice(0, MAX_ITEMS)
    return { part, wanted: among['*'] ?? null }
  }

  #skipSpace(): void {
    const { text } = this
    let at = this.#at
    for (let char = text.charCodeAt(at); isSpace(char); char = text.charCodeAt(at)) at += 1
    this.#at = at
  }

  /** Past the string that starts here. Runs of plain characters are matched natively: a long string is one match. */
  #string(): void {
    const { text } = this
    let at = this.#at + 1
    for (;;) {
      PLAIN.lastIndex = at
      PLAIN.test(text)
      at = PLAIN.lastIndex
      const char = text.charCodeAt(at)
      if (char === QUOTE) break
      if (char !== BACKSLASH) throw Number.isNaN(char) ? new JsonSyntaxError('unexpected end') : unexpected(text, at)
      ESCAPE.lastIndex = at
      if (!ESCAPE.test(text)) throw unexpected(text, at)
      at = ESCAPE.lastIndex
    }
    this.#at = at + 1
  }

  #literal(char: number): void {
    const pattern = char === MINUS || (char >= DIGIT_0 && char <= DIGIT_9) ? NUMBER : WORD
    pattern.lastIndex = this.#at
    if (!pattern.test(this.text)) throw unexpected(this.text, this.#at)
    this.#at = pattern.lastIndex
  }
}

const NOT_WANTED = { part: null, wanted: null } as const

const QUOTE = 0x22
const COMMA = 0x2c
const MINUS = 0x2d
const DIGIT_0 = 0x30
const DIGIT_9 = 0x39
const COLON = 0x3a
const OPEN_ARRAY = 0x5b
const BACKSLASH = 0x5c
const CLOSE_ARRAY = 0x5d
const OPEN_OBJECT = 0x7b
const CLOSE_OBJECT = 0x7d

// biome-ignore lint/suspicious/noControlCharactersInRegex: JSON forbids them inside strings
const PLAIN = /[^"\\\u0000-\u001f]*/y
const ESCAPE = /\\(?:["\\/bfnrt]|u[\dA-Fa-f]{4})/y
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y
const WORD = /true|false|null/y

function isSpace(char: number): boolean {
  return char === 0x20 || char === 0x0a || char === 0x0d || char === 0x09
}

function newPart(start: number): JsonPart {
  return { start, end: start, fields: new Map(), items: [] }
}

function unexpected(text: string, at: number): JsonSyntaxError {
  return new JsonSyntaxError(`unexpected ${JSON.stringify(text.slice(at, at + 1))} at character ${at}`)
}
