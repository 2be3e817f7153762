export const UUID_PATTERN = '^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$'
const UUID = new RegExp(UUID_PATTERN)

/** The form of the ids of runs and threads. They are stored and compared in lower case: some servers ignore the case. */
export function isUuid(value: unknown): value is string {
  return typeof value === 'string' && UUID.test(value)
}
