import type { FastifySerializerCompiler } from 'fastify'
import { type TSchemaOptions, Type } from 'typebox'
import { type JsonText, writeJson } from '../core/json/json-text.ts'

/** Building blocks of the resources' schemas: every field of one kind is checked and described alike. */
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

export const timestamp = Type.String({
  description: 'RFC 3339, UTC, milliseconds',
  examples: ['2026-01-31T12:00:00.000Z'],
})

/** A text of an answer. Texts of requests are bounded. */
export const nullableString = Type.Unsafe<string | null>({ type: ['string', 'null'] })

export const nullableTimestamp = Type.Unsafe<string | null>({
  type: ['string', 'null'],
  description: 'RFC 3339, UTC, milliseconds',
})

/** Path parameters. A malformed id is a 404; text that a database cannot store is a 400. */
export function pathParams<const Name extends string>(name: Name) {
  return Type.Object({ [name]: boundedText({ minLength: 1, maxLength: 255 }) } as Record<
    Name,
    ReturnType<typeof boundedText>
  >)
}

export const ifMatchHeader = Type.Object({
  'if-match': Type.Optional(Type.String({ description: 'Change only this version: an `ETag` seen before.' })),
})

export const ifNoneMatchHeader = Type.Object({
  'if-none-match': Type.Optional(
    Type.String({ description: 'Answer 304 without a body when this is still the version: an `ETag` seen before.' }),
  ),
})

export const idempotencyHeader = Type.Object({
  'idempotency-key': Type.Optional(
    Type.String({ description: 'Makes a repeat of this request within 24 h return the first answer.' }),
  ),
})
