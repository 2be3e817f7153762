import safeRegex from 'safe-regex2'
import { isJsonObject } from '../../core/json.ts'
import { type SchemaJson, validator } from './document-schema.ts'

const DRAFT = 'https://json-schema.org/draft/2020-12/schema'
const MAX_LENGTH = 64 * 1024
const MAX_DEPTH = 50
/** Comparing objects with each other takes time that grows with the square of their number. */
const MAX_UNIQUE_OBJECTS = 100
const MAX_FAULTS = 5

/** Keywords whose values are data, never schemas. */
const DATA_KEYWORDS = new Set(['const', 'enum', 'default', 'example', 'examples'])
/** Keywords whose values map names to schemas. A name may be that of a keyword. */
const SCHEMA_MAPS = new Set(['properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas'])
const USE_REF = 'use $ref with #/'
const REFUSED_KEYWORDS = {
  // With these, a reference could point outside the schema itself.
  $id: USE_REF,
  $anchor: USE_REF,
  $dynamicAnchor: USE_REF,
  $dynamicRef: USE_REF,
  $recursiveRef: USE_REF,
  $vocabulary: USE_REF,
  // The validator judges these wrongly beside `contains`, `if` without `then` and nested schemas.
  unevaluatedItems: 'use items',
  unevaluatedProperties: 'use additionalProperties',
}

/**
 * Checks a JSON Schema of a job type: it must be valid, refer to nothing outside itself, and be checkable in bounded time.
 * Each fault begins with its place in the file.
 */
export function faultsOfDocumentSchema(place: string, schema: unknown): string[] {
  if (typeof schema === 'boolean') return []
  if (!isJsonObject(schema)) return [`${place} must be a JSON Schema: an object or a boolean`]
  if (JSON.stringify(schema).length > MAX_LENGTH) return [`${place} must be at most ${MAX_LENGTH / 1024} KB`]
  const { $schema } = schema
  if ($schema !== undefined && String($schema).replace(/#$/, '') !== DRAFT) {
    return [`${place}/$schema must be ${DRAFT}, the draft that schemas are written in`]
  }
  const faults = [...faultsOfPart({ place, part: schema, depth: 0, isMap: false }, schema)]
  return (faults.length > 0 ? faults : faultsOfCompiling(place, schema)).slice(0, MAX_FAULTS)
}

interface Place {
  place: string
  part: unknown
  depth: number
  /** The part maps names to schemas. */
  isMap: boolean
}

function* faultsOfPart({ place, part, depth, isMap }: Place, root: object): Generator<string> {
  if (typeof part !== 'object' || part === null) return
  if (depth > MAX_DEPTH) {
    yield `${place} is nested more than ${MAX_DEPTH} levels deep`
    return
  }
  if (!Array.isArray(part) && !isMap) yield* faultsOfKeywords(place, part as Record<string, unknown>, root)
  for (const [key, value] of Object.entries(part)) {
    if (!isMap && DATA_KEYWORDS.has(key)) continue
    // The validator would skip it.
    if (isMap && key === '__proto__') yield `${place}/__proto__ is not supported: choose another name`
    const next = { place: `${place}/${key}`, part: value, depth: depth + 1, isMap: !isMap && SCHEMA_MAPS.has(key) }
    yield* faultsOfPart(next, root)
  }
}

function* faultsOfKeywords(place: string, part: Record<string, unknown>, root: object): Generator<string> {
  const { $ref, pattern, patternProperties, uniqueItems, maxItems } = part
  if (typeof $ref === 'string' && !isOwnSchema($ref, root)) {
    yield `${place}/$ref must be #, or #/ with the JSON Pointer of a schema within this one`
  }
  for (const [keyword, advice] of Object.entries(REFUSED_KEYWORDS)) {
    if (Object.hasOwn(part, keyword)) yield `${place}/${keyword} is not supported: ${advice}`
  }
  const patterns = isJsonObject(patternProperties) ? Object.keys(patternProperties) : []
  for (const each of [...patterns, ...(typeof pattern === 'string' ? [pattern] : [])]) {
    if (!isSafePattern(each))
      yield `${place} has the pattern ${JSON.stringify(each)}, which can take very long to match`
  }
  const isBounded = typeof maxItems === 'number' && maxItems <= MAX_UNIQUE_OBJECTS
  if (uniqueItems === true && !isBounded && !hasScalarItems(part)) {
    yield `${place}/uniqueItems needs maxItems of at most ${MAX_UNIQUE_OBJECTS}, or items of a scalar type`
  }
}

/** The validator would also take a name that every object has (`toString`), a map of schemas, and data. */
function isOwnSchema($ref: string, root: object): boolean {
  const names = namesIn($ref)
  if (names === null) return false
  let part: unknown = root
  let isMap = false
  for (const name of names) {
    if (typeof part !== 'object' || part === null || !Object.hasOwn(part, name)) return false
    if (!isMap && DATA_KEYWORDS.has(name)) return false
    isMap = !isMap && SCHEMA_MAPS.has(name)
    part = (part as Record<string, unknown>)[name]
  }
  return !isMap && (typeof part === 'boolean' || isJsonObject(part))
}

/** The names of a JSON Pointer in a fragment. Null for any other reference. */
function namesIn($ref: string): string[] | null {
  const [fragment, ...names] = $ref.split('/')
  if (fragment !== '#') return null
  try {
    return names.map((name) => decodeURIComponent(name).replaceAll('~1', '/').replaceAll('~0', '~'))
  } catch {
    return null
  }
}

/** An invalid pattern is reported by the compiler. */
function isSafePattern(pattern: string): boolean {
  try {
    new RegExp(pattern, 'u')
  } catch {
    return true
  }
  return safeRegex(pattern)
}

function hasScalarItems({ items }: Record<string, unknown>): boolean {
  const types = isJsonObject(items) && items.type !== undefined ? [items.type].flat() : []
  return types.length > 0 && types.every((type) => type !== 'object' && type !== 'array')
}

function faultsOfCompiling(place: string, schema: SchemaJson): string[] {
  const ajv = validator()
  try {
    if (!ajv.validateSchema(schema)) {
      return (ajv.errors ?? []).map(({ instancePath, message }) => `${place}${instancePath} ${message}`)
    }
    ajv.compile(schema)
    return []
  } catch (error) {
    return [`${place} is not a valid JSON Schema: ${(error as Error).message}`]
  }
}
