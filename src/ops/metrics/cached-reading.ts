import type { Clock } from '../../core/clock.ts'

interface CachedReadingOptions<T> {
  clock: Clock
  /** For how long a result or a failure is cached. */
  maxAgeMs: number
  timeoutMs: number
  read: () => Promise<T>
}

/**
 * Limits how often a store is read, independent of the number of callers: results are cached, only one read runs at a time,
 * and no caller waits longer than the timeout. A store that is slow or down gets no additional load.
 */
export function cacheReading<T>({ clock, maxAgeMs, timeoutMs, read }: CachedReadingOptions<T>): () => Promise<T> {
  let latest: Promise<T> | undefined
  let readAtMs = 0
  let isReading = false
  return () => {
    if (latest && (isReading || clock.now() - readAtMs < maxAgeMs)) return latest
    readAtMs = clock.now()
    isReading = true
    const reading = read().finally(() => {
      isReading = false
    })
    latest = inTime(reading, { clock, timeoutMs })
    return latest
  }
}

async function inTime<T>(reading: Promise<T>, { clock, timeoutMs }: { clock: Clock; timeoutMs: number }): Promise<T> {
  const over = new AbortController()
  const late = clock.sleep(timeoutMs, over.signal).then(() => {
    throw new Error(`no answer within ${timeoutMs} ms`)
  })
  try {
    return await Promise.race([reading, late])
  } finally {
    over.abort()
  }
}
