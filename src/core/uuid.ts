const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i

/** The form of the ids of runs and threads. They are stored and compared in lower case: some servers ignore the case. */
export function isUuid(value: unknown): value is string {
  return typeof value === 'string' && UUID.test(value)
}
