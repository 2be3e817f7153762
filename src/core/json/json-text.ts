import { JsonScan } from './json-scan.ts'

/** A JSON document as its exact text. It is never parsed and serialized again, so every number keeps its digits. */
export class JsonText {
  readonly text: string

  /** The text must be valid JSON. */
  constructor(text: string) {
    this.text = text
  }

  static of(value: unknown): JsonText {
    return new JsonText(JSON.stringify(value))
  }

  toJSON(): never {
    throw new Error('JSON.stringify cannot write a JsonText: use writeJson')
  }
}

/** Like `JSON.stringify`, with documents inserted as they are. */
export function writeJson(value: unknown): string {
  if (value === null || typeof value !== 'object') return JSON.stringify(value)
  if (value instanceof JsonText) return value.text
  if (Array.isArray(value)) return `[${value.map(writeJson).join(',')}]`
  let fields = ''
  for (const [key, inner] of Object.entries(value)) {
    if (inner !== undefined) fields += `${fields === '' ? '' : ','}${JSON.stringify(key)}:${writeJson(inner)}`
  }
  return `{${fields}}`
}

/** Sorting the keys of a longer document would block the event loop. */
const MAX_SORTED_LENGTH = 64 * 1024

/**
 * The same text for equal values: keys sorted, no white space, numbers of documents as they are written. A document of
 * more than 64 KB keeps the order of its keys.
 */
export function canonicalJson(value: unknown): string {
  if (value === null || typeof value !== 'object') return JSON.stringify(value)
  if (value instanceof NumberText) return value.text
  if (value instanceof JsonText) return Array.from(canonicalPieces(value)).join('')
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`
  const fields = Object.entries(value).filter(([, inner]) => inner !== undefined)
  const sorted = fields.sort(([a], [b]) => (a < b ? -1 : 1))
  return `{${sorted.map(([key, inner]) => `${JSON.stringify(key)}:${canonicalJson(inner)}`).join(',')}}`
}

/**
 * The canonical text of a document, in pieces that each take a few milliseconds. The caller can yield to the event loop
 * after each piece.
 */
export function canonicalPieces({ text }: JsonText): Iterable<string> {
  return text.length > MAX_SORTED_LENGTH ? withoutSpace(text) : [canonicalJson(JSON.parse(text, keepNumberText))]
}

class NumberText extends JsonText {}

/** A reviver for `JSON.parse`: numbers keep their digits. It takes about 1 µs per value. */
export function keepNumberText(_key: string, value: unknown, context?: { source: string }): unknown {
  return typeof value === 'number' && context ? new NumberText(context.source) : value
}

const CHARACTERS_A_PIECE = 256 * 1024

/** Removes the white space between the values of a valid JSON text. */
function* withoutSpace(text: string): Generator<string> {
  let piece = ''
  const onSpace = (at: number) => {
    piece += text.slice(start, at)
    start = at + 1
  }
  const scan = new JsonScan(text, { maxDepth: text.length, onSpace })
  let start = scan.at
  for (let until = CHARACTERS_A_PIECE, isDone = false; !isDone; until += CHARACTERS_A_PIECE) {
    isDone = scan.advance(until)
    // A piece must not end between the two halves of a character: its UTF-8 would differ.
    const end = isHighSurrogate(text.charCodeAt(scan.at - 1)) ? scan.at - 1 : scan.at
    yield piece + text.slice(start, end)
    piece = ''
    start = end
  }
}

function isHighSurrogate(char: number): boolean {
  return char >= 0xd800 && char <= 0xdbff
}
