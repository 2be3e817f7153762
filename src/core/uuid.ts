export const UUID_PATTERN = '^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$'
const UUID = new RegExp(UUID_PATTERN)

/** Ids of runs and threads are UUIDs. They are stored and compared in lower case, because some runtimes ignore the case. */
export function isUuid(value: unknown): value is string {
  return typeof value === 'string' && UUID.test(value)
}
