import type { TSchema } from './schema.ts'

/** The part of JSON Schema that is checked here; anything else in a schema is refused, lest it seem to be checked. */
interface Form {
  type: keyof typeof IS
  minLength?: number
  maxLength?: number
  minimum?: number
  maximum?: number
  required?: string[]
  properties?: Record<string, Form>
  patternProperties?: Record<string, Form>
  additionalProperties?: false
}

const IS = {
  object: isRecord,
  string: (value: unknown) => typeof value === 'string',
  integer: Number.isInteger,
  boolean: (value: unknown) => typeof value === 'boolean',
}

const KEYWORDS: ReadonlySet<string> = new Set<keyof Form>([
  'type',
  'minLength',
  'maxLength',
  'minimum',
  'maximum',
  'required',
  'properties',
  'patternProperties',
  'additionalProperties',
])

/**
 * Every fault of a document against its schema, each with its place, in the words of Ajv. Ajv itself compiles code
 * before it looks at anything: for one small file that would be a tenth of the start.
 */
export function faultsOfForm(schema: TSchema, document: unknown): string[] {
  return faultsAt('', schema as unknown as Form, document)
}

function faultsAt(place: string, form: Form, value: unknown): string[] {
  const unchecked = Object.keys(form).find((keyword) => !KEYWORDS.has(keyword))
  if (unchecked !== undefined) throw new Error(`The keyword ${unchecked} is not checked`)
  const here = (faults: string[]) => faults.map((fault) => `${place || '/'} ${fault}`)
  if (!IS[form.type](value)) return here([`must be ${form.type}`])
  if (typeof value === 'string') return here(faultsOfText(form, value))
  if (typeof value === 'number') return here(faultsOfNumber(form, value))
  if (!isRecord(value)) return []
  return [...here(faultsOfFields(form, value)), ...faultsWithin(place, form, value)]
}

function faultsOfText({ minLength = 0, maxLength = Number.POSITIVE_INFINITY }: Form, text: string): string[] {
  const characters = Array.from(text).length
  if (characters > maxLength) return [`must NOT have more than ${maxLength} characters`]
  return characters < minLength ? [`must NOT have fewer than ${minLength} characters`] : []
}

function faultsOfNumber(
  { minimum = Number.NEGATIVE_INFINITY, maximum = Number.POSITIVE_INFINITY }: Form,
  number: number,
): string[] {
  if (number > maximum) return [`must be <= ${maximum}`]
  return number < minimum ? [`must be >= ${minimum}`] : []
}

function faultsOfFields(form: Form, record: Record<string, unknown>): string[] {
  const missing = (form.required ?? []).filter((name) => !Object.hasOwn(record, name))
  const unknown =
    form.additionalProperties === false ? Object.keys(record).filter((name) => formsOf(form, name).length === 0) : []
  return [
    ...missing.map((name) => `must have required property '${name}'`),
    ...unknown.map(() => 'must NOT have additional properties'),
  ]
}

function faultsWithin(place: string, form: Form, record: Record<string, unknown>): string[] {
  return Object.entries(record).flatMap(([name, value]) => {
    const inner = `${place}/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`
    return formsOf(form, name).flatMap((each) => faultsAt(inner, each, value))
  })
}

function formsOf({ properties = {}, patternProperties = {} }: Form, name: string): Form[] {
  const matching = Object.entries(patternProperties).filter(([pattern]) => new RegExp(pattern, 'u').test(name))
  const named = Object.hasOwn(properties, name) ? properties[name] : undefined
  return [...(named ? [named] : []), ...matching.map(([, form]) => form)]
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
