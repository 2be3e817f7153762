/** The type and range of one fault setting. A ratio is a probability from 0 to 1. */
type FaultSpec = { group: string; label: string } & (
  | { kind: 'switch'; initial: boolean }
  | { kind: 'ratio'; initial: number }
  | { kind: 'number'; min: number; max: number; unit: string; initial: number }
  | { kind: 'choice'; of: readonly string[]; initial: string }
)

export type FaultSpecs = Readonly<Record<string, FaultSpec>>

/** The settings that a table of specs describes, by name. */
export type FaultSettings<Specs extends FaultSpecs> = {
  -readonly [Name in keyof Specs]: Specs[Name] extends { kind: 'choice'; of: readonly (infer Choice)[] }
    ? Choice
    : Specs[Name] extends { kind: 'switch' }
      ? boolean
      : number
}

export function defaultSettings<Specs extends FaultSpecs>(specs: Specs): FaultSettings<Specs> {
  return Object.fromEntries(Object.entries(specs).map(([name, { initial }]) => [name, initial])) as FaultSettings<Specs>
}

/** Checks changes against the specs. If one change is invalid, all are refused. */
export function readChanges<Specs extends FaultSpecs>(
  specs: Specs,
  body: unknown,
): { changes: Partial<FaultSettings<Specs>> } | { problems: string[] } {
  if (body === null || typeof body !== 'object' || Array.isArray(body))
    return { problems: ['the body must be an object'] }
  const problems = Object.entries(body).flatMap(([name, value]) => {
    const spec = Object.hasOwn(specs, name) ? specs[name] : undefined
    if (!spec) return `${name} is no fault setting: there are ${Object.keys(specs).join(', ')}`
    const rule = brokenRule(spec, value)
    return rule === null ? [] : `${name} must be ${rule}`
  })
  return problems.length > 0 ? { problems } : { changes: body as Partial<FaultSettings<Specs>> }
}

function brokenRule(spec: FaultSpec, value: unknown): string | null {
  switch (spec.kind) {
    case 'switch':
      return typeof value === 'boolean' ? null : 'true or false'
    case 'ratio':
      return typeof value === 'number' && value >= 0 && value <= 1 ? null : 'a number from 0 to 1'
    case 'number': {
      const { min, max } = spec
      const fits = Number.isInteger(value) && Number(value) >= min && Number(value) <= max
      return fits ? null : `a whole number from ${min} to ${max}`
    }
    case 'choice':
      return spec.of.includes(String(value)) ? null : `one of ${spec.of.join(', ')}`
  }
}
