import { isDeepStrictEqual } from 'node:util'
import { type Content, type Document, type Media, operationsOf } from './openapi-operation.ts'

/** Not schemas, whatever they look like. */
const DATA = new Set(['example', 'examples', 'default', 'enum', 'const'])

/** Moves every schema that has a title to the components and refers to it there, so that generated clients have its name. */
export function nameSchemas(document: Document): void {
  const { schemas } = document.components

  const refer = (node: unknown): unknown => {
    if (Array.isArray(node)) return node.map(refer)
    if (typeof node !== 'object' || node === null) return node
    const entries = Object.entries(node).map(([key, value]) => [key, DATA.has(key) ? value : refer(value)])
    const inner = Object.fromEntries(entries) as { title?: unknown }
    return typeof inner.title === 'string' ? place(inner.title, inner) : inner
  }

  const place = (title: string, schema: object) => {
    schemas[title] ??= schema
    if (!isDeepStrictEqual(schemas[title], schema)) throw new Error(`Two schemas are called ${title}`)
    return { $ref: `#/components/schemas/${title}` }
  }

  for (const { requestBody, responses } of operationsOf(document)) {
    const contents = [requestBody, ...Object.values(responses)].map(
      (part): Content => (part && 'content' in part && part.content ? part.content : {}),
    )
    for (const content of contents) {
      for (const [type, media] of Object.entries(content)) content[type] = refer(withExamples(media)) as Media
    }
  }
}

/** The example of a whole body stands beside its schema; a schema of its own should have it too. */
function withExamples({ schema, ...media }: Media): Media {
  if (schema.title === undefined || media.example === undefined) return { schema, ...media }
  return { schema: { ...schema, examples: [media.example] }, ...media }
}
