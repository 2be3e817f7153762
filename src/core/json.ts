/** JSON as this service accepts it: bounded in depth, and comparable independent of the order of keys. */
export const MAX_JSON_DEPTH = 100

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json }
export type JsonObject = { [key: string]: Json }

/** Counts nesting in the text, so that a hostile document is refused before any recursive code reads it. */
export function isJsonTooDeep(text: string, maxDepth = MAX_JSON_DEPTH): boolean {
  let depth = 0
  let inString = false
  for (let i = 0; i < text.length; i++) {
    const char = text.charCodeAt(i)
    if (inString) {
      if (char === 0x5c) i++
      else if (char === 0x22) inString = false
    } else if (char === 0x22) {
      inString = true
    } else if (char === 0x7b || char === 0x5b) {
      depth++
      if (depth > maxDepth) return true
    } else if (char === 0x7d || char === 0x5d) {
      depth--
    }
  }
  return false
}

/** The same text for equal documents: keys sorted, no white space. */
export function canonicalJson(value: unknown): string {
  return JSON.stringify(value, (_key, inner: unknown) => {
    if (inner === null || typeof inner !== 'object' || Array.isArray(inner)) return inner
    const record = inner as Record<string, unknown>
    // A null prototype, so that a key named __proto__ stays a key.
    const sorted: Record<string, unknown> = Object.create(null)
    for (const key of Object.keys(record).sort()) sorted[key] = record[key]
    return sorted
  })
}

/** Sixteen digits, with or without a point among them; an exponent; a zero that has a sign. */
const EXACT_NUMBER_AT_RISK = /\d[\d.]{15}|\d[eE]|(?:^|[:[,\s])-0(?:\.0+)?(?=[\s,\]}]|$)/
/** Or one of their letters as an escape. */
const POISONED_KEY = /"(?:__proto__|constructor)"|\\u00(?:5[fF]|[67])/

/**
 * Parses a document from outside so that storing it again does not change it: numbers that JavaScript cannot hold keep their
 * digits. Keys such as `__proto__` are dropped. Throws if the text is not JSON.
 */
export function parseForeignJson(text: string): Json {
  const exact = EXACT_NUMBER_AT_RISK.test(text)
  const value = (exact ? JSON.parse(text, keepDigits as never) : JSON.parse(text)) as Json
  return POISONED_KEY.test(text) ? withoutPoison(value) : value
}

// V8 passes the source text of each primitive to the reviver, and writes a raw number back digit by digit.
const rawJson = (JSON as unknown as { rawJSON(text: string): Json }).rawJSON
const isRawJson = (JSON as unknown as { isRawJSON(value: unknown): boolean }).isRawJSON

function keepDigits(_key: string, value: unknown, context: { source?: string }): unknown {
  if (typeof value !== 'number' || context.source === undefined) return value
  return JSON.stringify(value) === context.source ? value : rawJson(context.source)
}

function withoutPoison(value: Json): Json {
  if (value === null || typeof value !== 'object' || isRawJson(value)) return value
  if (Array.isArray(value)) return value.map(withoutPoison)
  const clean: JsonObject = {}
  for (const [key, inner] of Object.entries(value)) if (!isPoison(key, inner)) clean[key] = withoutPoison(inner)
  return clean
}

/** Whether a document has a key such as `__proto__`, at any depth. A look at the text clears most documents at once. */
export function hasPoisonedKey(text: string, value: Json): boolean {
  return POISONED_KEY.test(text) && isPoisoned(value)
}

function isPoisoned(value: Json): boolean {
  if (value === null || typeof value !== 'object') return false
  return Object.entries(value).some(([key, inner]) => isPoison(key, inner) || isPoisoned(inner))
}

/** A `constructor` is dangerous only with a `prototype` inside; otherwise it is ordinary data. */
function isPoison(key: string, value: Json): boolean {
  return key === '__proto__' || (key === 'constructor' && isJsonObject(value) && Object.hasOwn(value, 'prototype'))
}

export function isJsonObject(value: unknown): value is JsonObject {
  return value !== null && typeof value === 'object' && !Array.isArray(value) && !isRawJson(value)
}

/** The value at a JSON Pointer (RFC 6901); undefined if there is none. */
export function atPointer(document: Json, pointer: string): Json | undefined {
  let at: Json | undefined = document
  for (const part of pointer.split('/').slice(1)) {
    const key = part.replaceAll('~1', '/').replaceAll('~0', '~')
    if (Array.isArray(at)) at = /^(0|[1-9]\d*)$/.test(key) ? at[Number(key)] : undefined
    else if (isJsonObject(at)) at = Object.hasOwn(at, key) ? at[key] : undefined
    else return undefined
  }
  return at
}
