/** Finds where the tokens of a JSON text end. Each function throws a `JsonSyntaxError` where the text is not JSON. */
export class JsonSyntaxError extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'JsonSyntaxError'
  }
}

export const QUOTE = 0x22
const PLUS = 0x2b
export const COMMA = 0x2c
const MINUS = 0x2d
const POINT = 0x2e
const DIGIT_0 = 0x30
const DIGIT_9 = 0x39
export const COLON = 0x3a
const LETTER_E = 0x45
export const OPEN_ARRAY = 0x5b
const BACKSLASH = 0x5c
export const CLOSE_ARRAY = 0x5d
const LETTER_U = 0x75
export const OPEN_OBJECT = 0x7b
export const CLOSE_OBJECT = 0x7d

/** Returns 0 past the end: reading past the end of a string would slow down all other reads. */
function charAt(text: string, at: number): number {
  return at < text.length ? text.charCodeAt(at) : 0
}

export function skipSpace(text: string, from: number): number {
  let at = from
  while (isSpace(charAt(text, at))) at += 1
  return at
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: JSON forbids them inside strings
const PLAIN = /[^"\\\u0000-\u001f]*/y

/**
 * The position after the closing quote of a string. Negative if the string does not end before `until`: the position
 * reached so far.
 */
export function endOfString(text: string, from: number, until: number): number {
  let at = from
  for (let plain = 0; at < until; plain++) {
    const char = text.charCodeAt(at)
    if (char === QUOTE) return at + 1
    if (char === BACKSLASH) {
      at = endOfEscape(text, at)
      plain = 0
    } else if (char < 0x20) throw unexpected(text, at)
    else if (plain < LONG_RUN) at += 1
    else at = endOfPlainRun(text, at, until)
  }
  return -at
}

const LONG_RUN = 30

/** A regular expression skips plain characters five times as fast as a loop. In a slice, it stops at `until`. */
function endOfPlainRun(text: string, from: number, until: number): number {
  const offset = until < text.length ? from : 0
  PLAIN.lastIndex = from - offset
  PLAIN.test(offset > 0 ? text.slice(from, until) : text)
  return offset + PLAIN.lastIndex
}

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

export function endOfScalar(text: string, start: number, first: number): number {
  return first === MINUS || isDigit(first) ? endOfNumber(text, start) : endOfWord(text, start)
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

/** The position after the digits; at least one is required. */
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

/** False for almost every key, because of its length; then the text of the key need not be read. */
export function mayBePrototypeKey(text: string, start: number, end: number): boolean {
  const length = end - start - 2
  if (length === 9 || length === 11) return true
  // A key with escapes is longer in the text than its value.
  return length > 9 && length <= 6 * 11 && text.slice(start, end).includes('\\')
}

export function readKey(text: string, start: number, end: number): string {
  const raw = text.slice(start, end)
  return raw.includes('\\') ? (JSON.parse(raw) as string) : raw.slice(1, -1)
}

export function isSpace(char: number): boolean {
  return char <= 0x20 && (char === 0x20 || char === 0x0a || char === 0x0d || char === 0x09)
}

function isDigit(char: number): boolean {
  return char >= DIGIT_0 && char <= DIGIT_9
}

function isHexDigit(char: number): boolean {
  const letter = char & ~0x20
  return isDigit(char) || (letter >= 0x41 && letter <= 0x46)
}

export function unexpected(text: string, at: number): JsonSyntaxError {
  const found = at < text.length ? JSON.stringify(text.slice(at, at + 1)) : 'end'
  return new JsonSyntaxError(`unexpected ${found} at character ${at}`)
}
