/** As much of an OpenAPI document as we touch ourselves. */
export interface Document {
  paths: Record<string, Record<string, Operation>>
  components: { schemas: Record<string, object> }
}

export interface Operation {
  operationId?: string
  summary?: string
  requestBody?: { required?: boolean; content: Content }
  responses: Record<string, Response | Reference>
}

export interface Response {
  description: string
  headers?: object
  content?: Content
}

export interface Reference {
  $ref: string
}

export type Content = Record<string, Media>

export interface Media {
  schema: { type?: unknown; title?: string; examples?: unknown[]; $ref?: string }
  example?: unknown
  examples?: Record<string, { summary: string; value: unknown }>
}

export function operationsOf({ paths }: Document): Operation[] {
  return Object.values(paths).flatMap((methods) => Object.values(methods))
}

export function hasHeader(schema: { headers?: unknown } | undefined, name: string): boolean {
  const headers = schema?.headers as { properties?: Record<string, unknown> } | undefined
  return headers?.properties?.[name] !== undefined
}
