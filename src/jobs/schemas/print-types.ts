import { isJsonObject } from '../../core/json.ts'
import { decodePercents } from '../../core/text.ts'

/** The schemas of one job type, as `GET /v1/job-types` lists them. */
export interface PrintedJobType {
  name: string
  description: string | null
  input_schema?: unknown
  output_schema?: unknown
  resume_schema?: unknown
  configurable_schema?: unknown
}

type Keywords = Record<string, unknown>

/**
 * TypeScript types of these job types, for `createClient<JobTypes>`. A part without a schema is `unknown`; without a schema
 * of its own, `configurable` is left out, because it is not allowed.
 */
export function printJobTypes(types: readonly PrintedJobType[]): string {
  const printer = new TypePrinter()
  const members = types.map((type) => {
    const part = (kind: 'input' | 'output' | 'resume' | 'configurable') => {
      const schema = type[`${kind}_schema`] ?? true
      return `    ${kind}: ${indent(printer.printRoot(pascalCase(`${type.name}-${kind}`), schema), 4)}\n`
    }
    const configurable = type.configurable_schema == null ? '' : part('configurable')
    const body = `${part('input')}${part('output')}${part('resume')}${configurable}`
    return `${comment(type.description, 2)}  ${propertyName(type.name)}: {\n${body}  }\n`
  })
  return `${printer.definitions.join('')}export interface JobTypes {\n${members.join('')}}`
}

class TypePrinter {
  /** Types that a schema refers to. They may refer to themselves, so they have names. */
  readonly definitions: string[] = []
  readonly #taken = new Set<string>(['JobTypes'])
  #root: unknown = true
  #rootName = ''
  #names = new Map<string, string>()
  /** References between here and the next object or list around it. A type may not consist of itself. */
  #direct: readonly string[] = []

  printRoot(name: string, schema: unknown): string {
    this.#root = schema
    this.#rootName = name
    this.#names = new Map()
    this.#direct = ['#']
    return this.#print(schema)
  }

  #print(schema: unknown): string {
    if (schema === false) return 'never'
    if (!isJsonObject(schema)) return 'unknown'
    const parts = this.#partsOf(schema).filter((part) => part !== 'unknown')
    if (parts.length === 0) return 'unknown'
    return parts.length === 1 ? (parts[0] ?? '') : parts.map(inParentheses).join(' & ')
  }

  /** One type for each keyword. A value must match all of them. */
  #partsOf(schema: Keywords): string[] {
    const { $ref, allOf, anyOf, oneOf } = schema
    const own = 'const' in schema ? literal(schema.const) : this.#printOwn(schema)
    const alternatives = [anyOf, oneOf].filter(Array.isArray).map((group: unknown[]) => this.#printUnion(group))
    const all = Array.isArray(allOf) ? allOf.map((part) => this.#print(part)) : []
    return [...(typeof $ref === 'string' ? [this.#refer($ref)] : []), own, ...all, ...alternatives]
  }

  #printUnion(schemas: readonly unknown[]): string {
    return union(schemas.map((schema) => this.#print(schema)))
  }

  #printOwn(schema: Keywords): string {
    if (Array.isArray(schema.enum)) return union(schema.enum.map(literal))
    const types = schema.type === undefined ? impliedTypes(schema) : [schema.type].flat()
    return types.length === 0 ? 'unknown' : union(types.map((type) => this.#printType(String(type), schema)))
  }

  #printType(type: string, schema: Keywords): string {
    switch (type) {
      case 'integer':
        return 'number'
      case 'array':
        return this.#within([], () => this.#printArray(schema))
      case 'object':
        return this.#within([], () => this.#printObject(schema))
      default:
        return ['string', 'number', 'boolean', 'null'].includes(type) ? type : 'unknown'
    }
  }

  #printArray({ items = true, prefixItems }: Keywords): string {
    if (!Array.isArray(prefixItems)) return `${inParentheses(this.#print(items))}[]`
    const first = prefixItems.map((item) => `${inParentheses(this.#print(item))}?`)
    const rest = items === false ? [] : [`...${inParentheses(this.#print(items))}[]`]
    return `[${[...first, ...rest].join(', ')}]`
  }

  #printObject({ properties, required, additionalProperties }: Keywords): string {
    const names = Array.isArray(required) ? required : []
    const fields = Object.entries(isJsonObject(properties) ? properties : {}).map(([name, schema]) => {
      const mark = names.includes(name) ? '' : '?'
      const note = isJsonObject(schema) ? schema.description : null
      return `${comment(note, 2)}  ${propertyName(name)}${mark}: ${indent(this.#print(schema), 2)}\n`
    })
    const isOpen = additionalProperties === true || isJsonObject(additionalProperties)
    if (fields.length === 0) return `{ [key: string]: ${isOpen ? this.#print(additionalProperties) : 'unknown'} }`
    // With named fields, an index signature would also have to allow their types.
    return `{\n${fields.join('')}${isOpen ? '  [key: string]: unknown\n' : ''}}`
  }

  #within(direct: readonly string[], print: () => string): string {
    const outer = this.#direct
    this.#direct = direct
    const text = print()
    this.#direct = outer
    return text
  }

  #refer(pointer: string): string {
    if (this.#direct.includes(pointer)) return 'unknown'
    const known = this.#names.get(pointer)
    if (known !== undefined) return known
    const name = this.#reserve(
      pointer === '#' ? this.#rootName : this.#rootName + pascalCase(pointer.split('/').at(-1)),
    )
    this.#names.set(pointer, name)
    const type = this.#within([...this.#direct, pointer], () => this.#print(resolve(this.#root, pointer)))
    this.definitions.push(`export type ${name} = ${type}\n\n`)
    return name
  }

  #reserve(wanted: string): string {
    let name = wanted
    for (let n = 2; this.#taken.has(name); n++) name = `${wanted}${n}`
    this.#taken.add(name)
    return name
  }
}

/** A schema without `type` that has keywords of one kind means that kind. */
function impliedTypes({ properties, items, prefixItems }: Keywords): string[] {
  if (properties !== undefined) return ['object']
  return items !== undefined || prefixItems !== undefined ? ['array'] : []
}

function resolve(root: unknown, pointer: string): unknown {
  const steps = pointer.split('/').slice(1)
  return steps.reduce<unknown>((at, step) => {
    const key = decodePercents(step).replaceAll('~1', '/').replaceAll('~0', '~')
    return typeof at === 'object' && at !== null ? (at as Record<string, unknown>)[key] : undefined
  }, root)
}

function union(parts: readonly string[]): string {
  const unique = [...new Set(parts)]
  if (unique.length === 0) return 'never'
  if (unique.includes('unknown')) return 'unknown'
  return unique.length === 1 ? (unique[0] ?? '') : unique.map(inParentheses).join(' | ')
}

/** Only a type with an operator outside of all brackets needs parentheses. */
function inParentheses(type: string): string {
  let outside = type.replace(/\/\*\*.*\*\/|"(?:[^"\\]|\\.)*"/g, '')
  for (let before = ''; before !== outside; ) {
    before = outside
    outside = outside.replace(/\{[^{}()[\]]*\}|\([^{}()[\]]*\)|\[[^{}()[\]]*\]/g, '')
  }
  return / [&|] /.test(outside) ? `(${type})` : type
}

/** The exact type of a value: a list or an object of literals too. */
function literal(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(literal).join(', ')}]`
  if (!isJsonObject(value)) return JSON.stringify(value)
  const fields = Object.entries(value).map(([name, inner]) => `${propertyName(name)}: ${literal(inner)}`)
  return `{ ${fields.join('; ')} }`
}

function propertyName(name: string): string {
  return /^[A-Za-z_$][\w$]*$/.test(name) ? name : JSON.stringify(name)
}

/** A description must not end the comment that holds it. */
function comment(text: unknown, spaces: number): string {
  if (typeof text !== 'string' || text === '') return ''
  return `${' '.repeat(spaces)}/** ${text.replaceAll('*/', '* /').replace(/\s+/g, ' ')} */\n`
}

function indent(text: string, spaces: number): string {
  return text.replaceAll('\n', `\n${' '.repeat(spaces)}`)
}

function pascalCase(name = ''): string {
  const words = name.replace(/(?:^|[^A-Za-z0-9]+)([A-Za-z0-9]?)/g, (_, letter: string) => letter.toUpperCase())
  return /^[A-Z]/.test(words) ? words : `T${words}`
}
