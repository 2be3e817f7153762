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
/** With these keywords a reference could point outside the schema itself. */
const REFUSED_KEYWORDS = ['$id', '$anchor', '$dynamicAnchor', '$dynamicRef', '$recursiveRef', '$vocabulary']

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
  const faults = [...faultsOfPart(place, schema, 0)]
  return (faults.length > 0 ? faults : faultsOfCompiling(place, schema)).slice(0, MAX_FAULTS)
}

function* faultsOfPart(place: string, part: unknown, depth: number, isMap = false): Generator<string> {
  if (typeof part !== 'object' || part === null) return
  if (depth > MAX_DEPTH) {
    yield `${place} is nested more than ${MAX_DEPTH} levels deep`
    return
  }
  if (!Array.isArray(part) && !isMap) yield* faultsOfKeywords(place, part as Record<string, unknown>)
  for (const [key, value] of Object.entries(part)) {
    if (!isMap && DATA_KEYWORDS.has(key)) continue
    yield* faultsOfPart(`${place}/${key}`, value, depth + 1, !isMap && SCHEMA_MAPS.has(key))
  }
}

function* faultsOfKeywords(place: string, part: Record<string, unknown>): Generator<string> {
  const { $ref, pattern, patternProperties, uniqueItems, maxItems } = part
  if (typeof $ref === 'string' && !/^#(?:\/|$)/.test($ref)) {
    yield `${place}/$ref must begin with #/: a schema refers only to itself`
  }
  for (const keyword of REFUSED_KEYWORDS) {
    if (typeof part[keyword] === 'string') yield `${place}/${keyword} is not supported: use $ref with #/`
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
