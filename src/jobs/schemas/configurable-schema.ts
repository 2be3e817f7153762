import { isJsonObject } from '../../core/json.ts'

/** The keys of a run's configuration that only this service or the runtime sets. */
const RESERVED = ['caller', 'user_id', 'thread_id', 'run_id', 'graph_id', 'assistant_id']
const RESERVED_PREFIXES = ['checkpoint', 'langgraph_', '__']

/**
 * Faults of a `configurable_schema` that would let a client set a reserved key. With `additionalProperties: false` at its top,
 * a schema allows exactly the keys that its `properties` name, whatever its other keywords say.
 */
export function faultsOfConfigurableSchema(place: string, schema: unknown): string[] {
  if (!isJsonObject(schema) || schema.additionalProperties !== false) {
    return [
      `${place} must say "additionalProperties": false: otherwise a client could set reserved keys such as caller`,
    ]
  }
  if (schema.patternProperties !== undefined) {
    return [`${place}/patternProperties is not supported: name each key in properties`]
  }
  const names = Object.entries(isJsonObject(schema.properties) ? schema.properties : {})
  const reserved = names.filter(([name, part]) => part !== false && isReserved(name))
  return reserved.map(([name]) => `${place}/properties/${name} is reserved: only the service and the runtime set it`)
}

function isReserved(name: string): boolean {
  return RESERVED.includes(name) || RESERVED_PREFIXES.some((prefix) => name.startsWith(prefix))
}
