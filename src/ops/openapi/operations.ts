import { isDeepStrictEqual } from 'node:util'
import type { Access } from '../../http/gate/access.ts'

/** The parts of an OpenAPI document that this service reads or changes after generating it. */
export interface OpenapiDocument {
  paths: Record<string, Record<string, Operation>>
  components: { schemas: Record<string, object> }
}

export interface Operation {
  operationId?: string
  summary?: string
  parameters?: { in: string; name: string }[]
  requestBody?: { required?: boolean; content: Content }
  responses: Record<string, OperationResponse | Reference>
}

export interface OperationResponse {
  description: string
  headers?: object
  content?: Content
}

export interface Reference {
  $ref: string
  description?: string
}

type Content = Record<string, Media>

interface Media {
  schema: { type?: unknown; title?: string; examples?: unknown[]; $ref?: string }
  example?: unknown
  examples?: Record<string, { summary: string; value: unknown }>
}

export function operationsOf({ paths }: OpenapiDocument): Operation[] {
  return Object.values(paths).flatMap((methods) => Object.values(methods))
}

export function securityOf(access: Access) {
  if (access.kind === 'public') return []
  return access.kind === 'callback' ? [{ callbackToken: [] }, { webhookSecret: [] }] : [{ bearer: [] }, { apiKey: [] }]
}

/** One sentence for the description of an operation: who may call it. */
export function accessNote(access: Access): string {
  if (access.kind === 'public') return `Public: ${access.reason}.`
  if (access.kind === 'callback') return 'For the agent runtime: a token of the callback URL, a secret, or a signature.'
  if (access.kind === 'bearer') return 'Needs a valid credential, no scope.'
  return `Needs ${access.anyOf.map((scope) => `\`${scope}\``).join(' or ')}${access.anyOf.includes('admin:*') ? '' : ' (or `admin:*`)'}.`
}

/** Keywords whose values are data, never schemas, even if they look like schemas. */
const DATA_KEYWORDS = new Set(['example', 'examples', 'default', 'enum', 'const'])

/** Moves every schema that has a title to the components and refers to it there, so that generated clients use its name. */
export function nameSchemas(document: OpenapiDocument): void {
  const { schemas } = document.components

  const referInside = (node: object): { title?: unknown } => {
    const entries = Object.entries(node).map(([key, value]) => [key, DATA_KEYWORDS.has(key) ? value : refer(value)])
    return Object.fromEntries(entries)
  }

  const refer = (node: unknown): unknown => {
    if (Array.isArray(node)) return node.map(refer)
    if (typeof node !== 'object' || node === null) return node
    const inner = referInside(node)
    return typeof inner.title === 'string' ? place(inner.title, inner) : inner
  }

  const place = (title: string, schema: object) => {
    schemas[title] ??= schema
    if (!isDeepStrictEqual(withoutExamples(schemas[title]), withoutExamples(schema))) {
      throw new Error(`Two schemas are called ${title}`)
    }
    return { $ref: `#/components/schemas/${title}` }
  }

  for (const [title, schema] of Object.entries(schemas)) schemas[title] = referInside(schema)

  for (const { requestBody, responses } of operationsOf(document)) {
    const contents = [requestBody, ...Object.values(responses)].map(
      (part): Content => (part && 'content' in part && part.content ? part.content : {}),
    )
    for (const content of contents) {
      for (const [type, media] of Object.entries(content)) content[type] = refer(withExamples(media)) as Media
    }
  }
}

/** Responses with the same schema may have different examples. The schema keeps the first. */
function withoutExamples(schema: object): object {
  return { ...schema, examples: undefined }
}

/** Copies the example of a whole body into its schema, so that the named schema has it too. */
function withExamples({ schema, ...media }: Media): Media {
  if (schema.title === undefined || media.example === undefined) return { schema, ...media }
  return { schema: { ...schema, examples: [media.example] }, ...media }
}
