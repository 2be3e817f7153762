const HOUR_MS = 3_600_000

/** Reads a `Retry-After` of seconds or a date, up to a maximum of an hour by default; null for anything else. */
export function readRetryAfter(value: string | string[] | undefined, nowMs: number, maxMs = HOUR_MS): number | null {
  if (typeof value !== 'string' || !/^(?:\d+$|[A-Z][a-z]+, )/.test(value)) return null
  const afterMs = /^\d/.test(value) ? Number(value) * 1000 : Date.parse(value) - nowMs
  return Number.isNaN(afterMs) ? null : Math.max(0, Math.min(afterMs, maxMs))
}
