import type { FastifySerializerCompiler } from 'fastify'
import { type Static, type TSchema, type TSchemaOptions, Type } from 'typebox'
import { type JsonText, writeJson } from '../core/json/json-text.ts'

/** Building blocks of the resources' schemas, so that all fields of one kind are checked and described in the same way. */
export function boundedText(options: TSchemaOptions & { minLength?: number; maxLength: number }) {
  return Type.String({ format: 'text', ...options })
}

export function nullableText(options: TSchemaOptions & { minLength?: number; maxLength: number; format?: string }) {
  return Type.Unsafe<string | null>({ type: ['string', 'null'], format: 'text', ...options })
}

/** A document: any JSON, kept as its exact text. */
export function jsonDocument(options: TSchemaOptions) {
  return Type.Unsafe<JsonText>(options)
}

/** The `serializerCompiler` of every route whose answers hold documents. */
export const writesDocuments: FastifySerializerCompiler<unknown> = () => writeJson

/** A time in an answer: RFC 3339, UTC, with milliseconds. */
export function timeField(description: string) {
  return Type.String({ format: 'date-time', description })
}

export function nullableTimeField(description: string) {
  return Type.Unsafe<string | null>({ type: ['string', 'null'], format: 'date-time', description })
}

/** A text in an answer, without a maximum length. Texts in requests use `boundedText`. */
export function nullableTextField(description: string) {
  return Type.Unsafe<string | null>({ type: ['string', 'null'], description })
}

/** An object or null. The object keeps its name in generated clients. */
export function nullableObject<Part extends TSchema>(part: Part, description: string) {
  return Type.Unsafe<Static<Part> | null>({ anyOf: [part, { type: 'null' }], description })
}

/** The same schema with another example, for an answer that the schema's own example does not fit. */
export function withExample<Whole extends TSchema>(whole: Whole, example: object): Whole {
  return { ...whole, examples: [example] }
}

/** Path parameters. A malformed id is a 404; text that a database cannot store is a 400. */
export function pathParams<const Name extends string>(name: Name, description: string) {
  return Type.Object({ [name]: boundedText({ minLength: 1, maxLength: 255, description }) } as Record<
    Name,
    ReturnType<typeof boundedText>
  >)
}

export const ifMatchHeader = Type.Object({
  'if-match': Type.Optional(
    Type.String({
      description: 'An `ETag` of an earlier answer. The change is made only if the record still has this version.',
    }),
  ),
})

export const ifNoneMatchHeader = Type.Object({
  'if-none-match': Type.Optional(
    Type.String({
      description:
        'An `ETag` of an earlier answer. If the record still has this version, the answer is 304 without a body.',
    }),
  ),
})

export const idempotencyHeader = Type.Object({
  'idempotency-key': Type.Optional(
    Type.String({
      description: 'If you repeat the request with the same key within 24 h, you get the first answer again.',
    }),
  ),
})
