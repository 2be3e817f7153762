import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv'
import type { FastifyError, FastifySchemaCompiler, FastifySchemaValidationError } from 'fastify'
import { isStorableText } from '../core/text.ts'

const FORMATS: Record<string, { validate: (text: string) => boolean; message: string }> = {
  text: { validate: isStorableText, message: 'must not contain NUL or unpaired surrogates' },
  'date-time': { validate: isDateTime, message: 'must be an RFC 3339 date and time, such as 2026-01-31T12:00:00Z' },
  'https-url': { validate: isHttpsUrl, message: 'must be an https URL' },
  locale: { validate: isLocale, message: 'must be a BCP 47 language tag, such as en-GB' },
  'time-zone': { validate: isTimeZone, message: 'must be an IANA time zone, such as Europe/Berlin' },
}

/**
 * One schema is type, validator and documentation. Bodies are taken as they are, to the letter of their types; what
 * arrives as text anyway (query, path, headers) is converted. Unknown fields are refused, not silently dropped.
 */
export function createValidatorCompiler(): FastifySchemaCompiler<object> {
  const strict = createAjv({ coerceTypes: false })
  const coercing = createAjv({ coerceTypes: true })
  return ({ schema, httpPart }) => onFirstUse(() => (httpPart === 'body' ? strict : coercing).compile(schema))
}

type Validate = ReturnType<FastifySchemaCompiler<object>>

/** Compiling all of them takes a good part of the start, and most instances never see most routes. */
function onFirstUse(compile: () => ValidateFunction): Validate {
  let compiled: ValidateFunction | undefined
  const validate: Validate = (data) => {
    compiled ??= compile()
    const isValid = compiled(data)
    validate.errors = compiled.errors as FastifySchemaValidationError[] | null
    return isValid
  }
  return validate
}

function createAjv(options: { coerceTypes: boolean }): Ajv {
  const ajv = new Ajv({
    ...options,
    useDefaults: true,
    strict: true,
    strictTypes: false,
    allowUnionTypes: true,
    // The compiler has checked the schemas' own form; checking it again at every start takes a quarter of the start.
    meta: false,
    validateSchema: false,
  })
  for (const [name, format] of Object.entries(FORMATS)) ajv.addFormat(name, format.validate)
  return ajv
}

/** `body/name must not be empty`: where, then what, for the first fault found. */
export function describeValidationError(error: Partial<FastifyError>): string {
  const [fault] = error.validation ?? []
  const part = error.validationContext ?? 'request'
  return fault ? `${part}${fault.instancePath} ${describeFault(fault)}` : `${part} is not valid`
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
      return 'must have at least one field'
    case 'enum':
      return `must be one of ${(params.allowedValues as unknown[]).map(String).join(', ')}`
    case 'format':
      return FORMATS[String(params.format)]?.message ?? fault.message ?? 'is not valid'
    case 'pattern':
      return 'is not of the right form'
    default:
      return fault.message ?? 'is not valid'
  }
}

const DATE_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$/i

function isDateTime(text: string): boolean {
  return DATE_TIME.test(text) && !Number.isNaN(Date.parse(text))
}

function isHttpsUrl(text: string): boolean {
  return URL.canParse(text) && new URL(text).protocol === 'https:' && isStorableText(text)
}

function isLocale(text: string): boolean {
  return succeeds(() => Intl.getCanonicalLocales(text))
}

function isTimeZone(text: string): boolean {
  return text !== '' && succeeds(() => new Intl.DateTimeFormat('en', { timeZone: text }))
}

function succeeds(attempt: () => unknown): boolean {
  try {
    attempt()
    return true
  } catch {
    return false
  }
}
