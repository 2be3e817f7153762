import { decodePercents } from '../../core/text.ts'
import type { OpenapiDocument } from './operations.ts'

type Schema = boolean | { readonly [keyword: string]: unknown }

/** The parts of a job type that the document describes. A schema is null if the type has none. */
export interface DescribedJobType {
  name: string
  input_schema: Schema | null
  output_schema: Schema | null
  resume_schema: Schema | null
  configurable_schema: Schema | null
}

const PREFIX = '#/components/schemas/'
const KINDS = {
  input_schema: 'JobInput',
  output_schema: 'JobOutput',
  resume_schema: 'JobResume',
  configurable_schema: 'JobConfigurable',
} as const

/**
 * Adds the schemas of the job types: `JobInput` becomes a union by `type`, so that generated clients know the input of each
 * type. Outputs and answers also allow any other JSON, because an output that does not match its schema is kept.
 */
export function describeTypedJobs(document: OpenapiDocument, types: readonly DescribedJobType[]): void {
  const components = new TypedComponents(document.components.schemas as Record<string, ObjectSchema>)
  const placed = types.map((type) => ({ type, refs: components.placeAll(type) }))
  if (placed.every(({ refs }) => Object.keys(refs).length === 0)) return
  components.unite(placed.map(({ type, refs }) => ({ name: type.name, refs })))
  components.offer(
    'Job',
    'output',
    placed.flatMap(({ refs }) => refs.output_schema ?? []),
  )
  components.offer(
    'JobAnswer',
    'input',
    placed.flatMap(({ refs }) => refs.resume_schema ?? []),
  )
  showExample(document, types)
}

interface ObjectSchema {
  properties: Record<string, object>
  examples?: unknown[]
}

interface Reference {
  $ref: string
}

type References = Partial<Record<keyof typeof KINDS, Reference>>

class TypedComponents {
  readonly #schemas: Record<string, ObjectSchema>

  constructor(schemas: Record<string, ObjectSchema>) {
    this.#schemas = schemas
  }

  placeAll(type: DescribedJobType): References {
    const refs: References = {}
    for (const [kind, suffix] of Object.entries(KINDS) as [keyof typeof KINDS, string][]) {
      const schema = type[kind]
      if (schema !== null) refs[kind] = this.#place(pascalCase(type.name) + suffix, schema)
    }
    return refs
  }

  /** Definitions become components of their own: not every generator follows a reference into a component. */
  #place(wanted: string, schema: Schema): Reference {
    const name = this.#reserve(wanted)
    const { $defs, definitions, $schema, ...rest } = typeof schema === 'boolean' ? { not: schema ? false : {} } : schema
    const moved = new Map<string, string>([['#', PREFIX + name]])
    const parts: [name: string, part: unknown][] = [[name, rest]]
    for (const [keyword, group] of Object.entries({ $defs, definitions })) {
      for (const [key, part] of Object.entries((group ?? {}) as object)) {
        const itsName = this.#reserve(name + pascalCase(key))
        moved.set(`#/${keyword}/${key.replaceAll('~', '~0').replaceAll('/', '~1')}`, PREFIX + itsName)
        parts.push([itsName, part])
      }
    }
    for (const [itsName, part] of parts) this.#schemas[itsName] = moveReferences(part, moved) as ObjectSchema
    return { $ref: PREFIX + name }
  }

  unite(types: readonly { name: string; refs: References }[]): void {
    const { examples, ...base } = this.#schemas.JobInput as ObjectSchema
    const mapping: Record<string, string> = {}
    for (const { name, refs } of types) {
      const title = this.#reserve(`${pascalCase(name)}JobRequest`)
      const type = { ...base.properties.type, enum: [name] }
      const { configurable, ...rest } = base.properties
      const described = {
        ...(refs.input_schema && { input: { ...rest.input, ...refs.input_schema } }),
        ...(refs.configurable_schema && { configurable: { ...configurable, ...refs.configurable_schema } }),
      }
      const properties = { ...rest, type, ...described }
      this.#schemas[title] = { ...base, title, properties } as ObjectSchema
      mapping[name] = PREFIX + title
    }
    const union = {
      title: 'JobInput',
      description: 'A job of one of the configured types.',
      oneOf: Object.values(mapping).map(($ref) => ({ $ref })),
      discriminator: { propertyName: 'type', mapping },
    }
    this.#schemas.JobInput = union as unknown as ObjectSchema
  }

  /** Any JSON is still allowed. */
  offer(name: string, field: string, alternatives: readonly Reference[]): void {
    const properties = this.#schemas[name]?.properties
    if (properties && alternatives.length > 0) {
      properties[field] = { ...properties[field], anyOf: [...alternatives, { description: 'Any other JSON.' }] }
    }
  }

  /** Two types may have names that differ only in their dashes. */
  #reserve(wanted: string): string {
    let name = wanted
    for (let n = 2; this.#schemas[name] !== undefined; n++) name = `${wanted}${n}`
    this.#schemas[name] = { properties: {} }
    return name
  }
}

/** The default example may use a job type that this service does not have. */
function showExample(document: OpenapiDocument, types: readonly DescribedJobType[]): void {
  const media = document.paths['/jobs']?.post?.requestBody?.content['application/json']
  if (!media) return
  const examples = types.flatMap(({ name, input_schema }) => {
    const given = typeof input_schema === 'object' ? input_schema?.examples : undefined
    return Array.isArray(given) ? given.map((input: unknown) => ({ type: name, input })) : []
  })
  delete media.example
  if (examples.length > 0) media.example = examples[0]
}

function moveReferences(node: unknown, moved: ReadonlyMap<string, string>): unknown {
  if (Array.isArray(node)) return node.map((inner) => moveReferences(inner, moved))
  if (typeof node !== 'object' || node === null) return node
  return Object.fromEntries(
    Object.entries(node).map(([key, value]) => [
      key,
      key === '$ref' && typeof value === 'string' ? moveReference(value, moved) : moveReferences(value, moved),
    ]),
  )
}

/** `#/$defs/node/properties/id` is below `#/$defs/node`. The names in a reference may be percent-encoded. */
function moveReference(ref: string, moved: ReadonlyMap<string, string>): string {
  const steps = ref.split('/')
  const definition = moved.get(steps.slice(0, 3).map(decodePercents).join('/'))
  if (definition !== undefined && steps.length >= 3) return [definition, ...steps.slice(3)].join('/')
  return (moved.get('#') ?? PREFIX) + ref.slice(1)
}

function pascalCase(name: string): string {
  return name.replace(/(?:^|[^A-Za-z0-9]+)([A-Za-z0-9]?)/g, (_, letter: string) => letter.toUpperCase())
}
