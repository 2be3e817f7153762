import fc from 'fast-check'
import { hostileJson, hostileNumber, hostileText } from './hostile-values.ts'

/** The part of JSON Schema that our API description uses. */
export interface Schema {
  $ref?: string
  type?: string | string[]
  enum?: unknown[]
  const?: unknown
  format?: string
  pattern?: string
  minLength?: number
  maxLength?: number
  minimum?: number
  maximum?: number
  items?: Schema
  minItems?: number
  maxItems?: number
  properties?: Record<string, Schema>
  required?: string[]
  additionalProperties?: boolean | Schema
  anyOf?: Schema[]
  examples?: unknown[]
}

const FORMATS: Record<string, readonly string[]> = {
  'date-time': ['2026-01-31T12:00:00Z', '2030-12-31T23:59:59.999+14:00', '1970-01-01T00:00:00Z'],
  'https-url': ['https://example.com', 'https://user@[::1]:8443/a?b=c#d', 'https://xn--nxasmq6b/é'],
  locale: ['en', 'en-GB', 'zh-Hant-TW', 'sl-rozaj-biske-1994'],
  'time-zone': ['Europe/Berlin', 'UTC', 'America/Argentina/Buenos_Aires'],
}

/** Values that the schema allows, at its edges as often as in the middle. */
export function validOf(schema: Schema): fc.Arbitrary<unknown> {
  if (schema.const !== undefined) return fc.constant(schema.const)
  if (schema.enum) return fc.constantFrom(...schema.enum)
  if (schema.anyOf) return fc.oneof(...schema.anyOf.map(validOf))
  const types = [schema.type ?? []].flat()
  if (types.length === 0) return fc.jsonValue({ maxDepth: 2 })
  return fc.oneof(...types.map((type) => validOfType(type, schema)))
}

function validOfType(type: string, schema: Schema): fc.Arbitrary<unknown> {
  switch (type) {
    case 'string':
      return validText(schema)
    case 'integer':
    case 'number':
      return fc.integer({ min: schema.minimum ?? -1_000, max: schema.maximum ?? 1_000_000 })
    case 'boolean':
      return fc.boolean()
    case 'null':
      return fc.constant(null)
    case 'array':
      return fc.array(validOf(schema.items ?? {}), {
        minLength: schema.minItems ?? 0,
        maxLength: Math.min(schema.maxItems ?? 4, 4),
      })
    default:
      return validObject(schema)
  }
}

function validText({ format, minLength = 0, maxLength = 60, pattern, examples }: Schema): fc.Arbitrary<string> {
  const known = FORMATS[format ?? '']
  if (known) return fc.constantFrom(...known)
  if (pattern !== undefined) {
    return examples ? fc.constantFrom(...(examples as string[])) : fc.stringMatching(new RegExp(pattern))
  }
  const middle = fc.string({ unit: 'grapheme', minLength, maxLength: Math.max(minLength, Math.min(maxLength, 40)) })
  const edges = fc.constantFrom('a'.repeat(minLength), 'é'.repeat(maxLength))
  return fc.oneof(
    { weight: 4, arbitrary: middle.filter((text) => text.length <= maxLength && !text.includes('\u0000')) },
    { weight: 1, arbitrary: edges },
  )
}

function validObject({ properties = {}, required = [], additionalProperties }: Schema): fc.Arbitrary<unknown> {
  const named = fc.record(mapValues(properties, validOf), { requiredKeys: required.filter((key) => key in properties) })
  if (typeof additionalProperties !== 'object' && Object.keys(properties).length > 0) return named
  const values =
    typeof additionalProperties === 'object' ? validOf(additionalProperties) : fc.jsonValue({ maxDepth: 1 })
  const others = fc.dictionary(fc.string({ minLength: 1, maxLength: 8 }), values, { maxKeys: 3 })
  return fc.tuple(named, others).map(([known, more]) => ({ ...more, ...(known as object) }))
}

/** Almost valid values: one part, seldom more, has the wrong type, is too long, missing or superfluous. */
export function mutatedOf(schema: Schema): fc.Arbitrary<unknown> {
  const wrong = fc.oneof({ weight: 3, arbitrary: beyondTheEdge(schema) }, { weight: 2, arbitrary: hostileJson })
  if (!schema.properties || Object.keys(schema.properties).length === 0) return wrong
  const { properties } = schema
  const oneWrong = fc.constantFrom(...Object.keys(properties)).chain((victim) =>
    fc.record(
      mapValues(properties, (inner, key) => (key === victim ? mutatedOf(inner) : validOf(inner))),
      { requiredKeys: [...(schema.required ?? []).filter((key) => key in properties), victim] },
    ),
  )
  const someMissing = fc.record(mapValues(properties, validOf), { requiredKeys: [] })
  const oneMore = fc
    .tuple(validOf(schema), hostileText, hostileJson)
    .map(([object, key, value]) => Object.defineProperty({ ...(object as object) }, key, { value, enumerable: true }))
  return fc.oneof(
    { weight: 6, arbitrary: oneWrong },
    { weight: 2, arbitrary: someMissing },
    { weight: 2, arbitrary: oneMore },
    { weight: 1, arbitrary: hostileJson },
  )
}

function beyondTheEdge({
  type,
  minLength,
  maxLength,
  minimum,
  maximum,
  maxItems,
  items,
}: Schema): fc.Arbitrary<unknown> {
  const edges: fc.Arbitrary<unknown>[] = []
  const isText = [type ?? []].flat().includes('string')
  if (isText) edges.push(hostileText)
  if (maxLength !== undefined) {
    // Characters of one, two, three and four bytes: a limit counts one way, a column another.
    edges.push(fc.constantFrom('a', 'é', '€', '😀').map((char) => char.repeat(maxLength)))
    edges.push(fc.constant('a'.repeat(maxLength + 1)))
  }
  if (minLength) edges.push(fc.constant('a'.repeat(minLength - 1)))
  if (minimum !== undefined) edges.push(fc.constantFrom<unknown>(minimum - 1, minimum - 0.5, String(minimum)))
  if (maximum !== undefined) edges.push(fc.constantFrom<unknown>(maximum + 1, maximum + 0.5), hostileNumber)
  if (maxItems !== undefined && items) {
    edges.push(fc.constantFrom(maxItems, maxItems + 1).map((count) => Array.from({ length: count }, (_, n) => `${n}`)))
  }
  return edges.length > 0 ? fc.oneof(...edges) : hostileJson
}

function mapValues<From, To>(record: Record<string, From>, map: (value: From, key: string) => To): Record<string, To> {
  return Object.fromEntries(Object.entries(record).map(([key, value]) => [key, map(value, key)]))
}
