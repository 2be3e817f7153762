import assert from 'node:assert/strict'
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import type { Schema } from './schema-values.ts'

export interface Operation {
  operationId?: string
  summary?: string
  tags?: string[]
  security?: Record<string, string[]>[]
  parameters?: { name: string; in: string; required?: boolean; schema: Schema }[]
  requestBody?: { required?: boolean; content: Record<string, Media> }
  responses: Record<string, Response>
}

export interface Media {
  schema: Schema
  example?: unknown
  examples?: Record<string, { value: unknown }>
}

export interface Response {
  description: string
  headers?: Record<string, object>
  content?: Record<string, Media>
}

export interface OpenapiDocument {
  openapi: string
  info: { title: string; version: string; description?: string }
  paths: Record<string, Record<string, Operation>>
  components: {
    securitySchemes: Record<string, object>
    schemas: Record<string, object>
    headers: Record<string, object>
    responses: Record<string, Response>
  }
}

export interface NamedOperation {
  path: string
  method: string
  operation: Operation
}

/** Every operation, with its responses in place of the references to them. */
export function operationsOf(document: OpenapiDocument): NamedOperation[] {
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => {
      const responses = Object.entries(operation.responses).map(([status, one]) => [status, resolve(document, one)])
      return {
        path,
        method: method.toUpperCase(),
        operation: { ...operation, responses: Object.fromEntries(responses) },
      }
    }),
  )
}

/** Resolves a reference; returns any other value unchanged. */
export function resolve<T extends object>(document: OpenapiDocument, node: T): T {
  const { $ref } = node as { $ref?: unknown }
  if (typeof $ref !== 'string') return node
  assert.match($ref, /^#\//)
  const target = $ref
    .slice(2)
    .split('/')
    .reduce<unknown>((at, part) => (at as Record<string, unknown> | undefined)?.[part], document)
  assert.ok(target, `${$ref} leads nowhere`)
  return target as T
}

export interface Validators {
  /** Compiles each schema once, after `prepare` if it is given. */
  compile(schema: object, prepare?: (schema: object) => object): ValidateFunction
}

/** Compiles schemas of the document; what they refer to is closed as `closedSchema` closes it. */
export function validatorsOf(document: OpenapiDocument): Validators {
  const components = closedSchema(document.components)
  const ajv = new Ajv2020({ strict: false, validateFormats: false, schemas: [{ $id: 'doc:', components }] })
  const absolute = (schema: object): object =>
    JSON.parse(JSON.stringify(schema).replaceAll('"#/components/', '"doc:#/components/'))
  const byText = new Map<string, ValidateFunction>()
  const bySchema = new WeakMap<object, ValidateFunction>()
  return {
    compile: (schema, prepare = (whole) => whole) => {
      const seen = bySchema.get(schema)
      if (seen) return seen
      const prepared = absolute(prepare(schema))
      const text = JSON.stringify(prepared)
      const validate = byText.get(text) ?? ajv.compile(prepared)
      byText.set(text, validate)
      bySchema.set(schema, validate)
      return validate
    },
  }
}

/** Allows only the members that the schema names, so that an answer with an undocumented field fails. */
export function closedSchema(schema: object): object {
  const copy = structuredClone(schema)
  walk(copy, (node) => {
    if (node.properties) node.additionalProperties ??= false
  })
  return copy
}

type Node = Record<string, unknown>

export function walk(node: unknown, visit: (node: Node) => void): void {
  if (node === null || typeof node !== 'object') return
  if (!Array.isArray(node)) visit(node as Node)
  for (const inner of Object.values(node)) walk(inner, visit)
}
