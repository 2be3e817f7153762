import { Ajv, type ErrorObject } from 'ajv'
import type { FastifyError, FastifySchemaCompiler, FastifySchemaValidationError } from 'fastify'
import { isStorableText } from '../core/text.ts'
import { isUuid } from '../core/uuid.ts'

const FORMATS: Record<string, { validate: (text: string) => boolean; message: string }> = {
  text: { validate: isStorableText, message: 'must not contain NUL or unpaired surrogates' },
  uuid: { validate: isUuid, message: 'must be a UUID' },
  'date-time': { validate: isDateTime, message: 'must be an RFC 3339 date and time, such as 2026-01-31T12:00:00Z' },
  'https-url': { validate: isHttpsUrl, message: 'must be an https URL' },
  locale: { validate: isLocale, message: 'must be a BCP 47 language tag, such as en-GB' },
  'time-zone': { validate: isTimeZone, message: 'must be an IANA time zone, such as Europe/Berlin' },
}

const ajv = new Ajv({
  useDefaults: true,
  strictTypes: false,
  allowUnionTypes: true,
  // TypeScript has checked our schemas; checking them again would add about 30 ms to the startup.
  meta: false,
  validateSchema: false,
})
for (const [name, format] of Object.entries(FORMATS)) ajv.addFormat(name, format.validate)

/**
 * One schema is type, validator and documentation. Bodies must have the types of their schema exactly; query, path and
 * headers arrive as text, and only whole numbers in digits, `true` and `false` are converted. Unknown fields are refused.
 */
export const compileValidator: FastifySchemaCompiler<object> = ({ schema, httpPart }) => {
  const validate = compiledOnFirstUse(schema)
  return httpPart === 'body' ? validate : converting(schema as TextSchema, validate)
}

/** Compiling the validators of all routes would add about 100 ms to the startup. */
function compiledOnFirstUse(schema: object): Validate {
  let compiled: Validate | undefined
  const validate: Validate = (data: unknown) => {
    compiled ??= ajv.compile(schema) as Validate
    const isValid = compiled(data)
    validate.errors = compiled.errors ?? null
    return isValid
  }
  return validate
}

type Validate = ReturnType<FastifySchemaCompiler<object>>

interface TextSchema {
  properties?: Record<string, { type?: unknown }>
}

/**
 * Converts the fields whose type is not text, in place. A value that cannot be converted stays text and then fails the
 * validation.
 */
function converting({ properties = {} }: TextSchema, validate: Validate): Validate {
  const typed = Object.entries(properties).filter(([, { type }]) => type === 'integer' || type === 'boolean')
  if (typed.length === 0) return validate
  const convert: Validate = (data: Record<string, unknown>) => {
    for (const [name, { type }] of typed) {
      if (Object.hasOwn(data, name)) data[name] = type === 'integer' ? readInteger(data[name]) : readBoolean(data[name])
    }
    const isValid = validate(data)
    convert.errors = validate.errors ?? null
    return isValid
  }
  return convert
}

/** `Number` would also accept `0x10`, `1e1`, `+5` and blanks. */
function readInteger(text: unknown): unknown {
  return typeof text === 'string' && /^-?\d+$/.test(text) ? Number(text) : text
}

function readBoolean(text: unknown): unknown {
  if (text === 'true') return true
  return text === 'false' ? false : text
}

/** The first fault of a request body that did not arrive over HTTP, with the same messages; null if there is none. */
export function faultOfBody(schema: object, body: unknown): { field: string; what: string } | null {
  const validate = ajv.compile(schema)
  if (validate(body)) return null
  const [fault] = validate.errors ?? []
  return { field: fault?.instancePath.split('/')[1] ?? '', what: fault ? describeFault(fault) : 'is not valid' }
}

/** `body/name must not be empty`: where, then what, for the first fault found. */
export function describeValidationError(error: Partial<FastifyError>): string {
  const [fault] = error.validation ?? []
  const part = error.validationContext ?? 'request'
  return describeFaultAt(part, fault)
}

/** The same for a fault that another validator found. */
export function describeFaultAt(place: string, fault: FastifySchemaValidationError | ErrorObject | undefined): string {
  return fault ? `${place}${fault.instancePath} ${describeFault(fault)}` : `${place} is not valid`
}

function describeFault(fault: FastifySchemaValidationError | ErrorObject): string {
  const params = fault.params as Record<string, unknown>
  switch (fault.keyword) {
    case 'minLength':
      return params.limit === 1 ? 'must not be empty' : `must be at least ${params.limit} characters long`
    case 'maxLength':
      return `must be at most ${params.limit} characters long`
    case 'additionalProperties':
      return `must not have the field ${JSON.stringify(params.additionalProperty)}`
    case 'required':
      return `must have the field "${params.missingProperty}"`
    case 'minProperties':
      return params.limit === 1 ? 'must have at least one field' : `must have at least ${params.limit} fields`
    case 'enum':
      return `must be one of ${(params.allowedValues as unknown[]).map(shortText).join(', ')}`
    case 'uniqueItems':
      return 'must not contain the same item twice'
    case 'format':
      return FORMATS[String(params.format)]?.message ?? fault.message ?? 'is not valid'
    case 'pattern':
      return 'has the wrong format'
    default:
      return fault.message ?? 'is not valid'
  }
}

function shortText(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value)
}

const DATE_TIME = /^(\d{4}-\d\d-\d\d)T(?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)$/i
/** The range in which the year in UTC has four digits, for every offset. */
const FIRST_MS = Date.parse('0000-01-01T00:00:00Z')
const LAST_MS = Date.parse('9999-12-31T23:59:59.999Z')

function isDateTime(text: string): boolean {
  const date = DATE_TIME.exec(text)?.[1]
  const atMs = Date.parse(text)
  return date !== undefined && isDate(date) && atMs >= FIRST_MS && atMs <= LAST_MS
}

/** `Date.parse` turns 30 February into 2 March; such a date is refused. */
function isDate(date: string): boolean {
  const atMs = Date.parse(`${date}T00:00:00Z`)
  return !Number.isNaN(atMs) && new Date(atMs).toISOString().startsWith(date)
}

/**
 * A URL by RFC 3986, or with letters of other scripts. `URL` alone would accept `https:/\\evil`, remove line ends and keep
 * invisible characters.
 */
const HTTPS_URL = /^https:\/\/(?![/?#])[^\s\p{Cc}\p{Cf}\p{Cs}"<>\\^`{|}]+$/iu

function isHttpsUrl(text: string): boolean {
  return HTTPS_URL.test(text) && URL.canParse(text)
}

function isLocale(text: string): boolean {
  return succeeds(() => Intl.getCanonicalLocales(text))
}

/** `Intl` also accepts an offset such as +01:00, which is not a zone: it has no summer time. */
function isTimeZone(text: string): boolean {
  return /^[A-Za-z]/.test(text) && succeeds(() => new Intl.DateTimeFormat('en', { timeZone: text }))
}

function succeeds(attempt: () => unknown): boolean {
  try {
    attempt()
    return true
  } catch {
    return false
  }
}
