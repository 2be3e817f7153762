import type { Clock } from '../../core/clock.ts'

export interface RareReadingOptions<T> {
  clock: Clock
  /** For how long an answer, or a failure, is handed out again. */
  maxAgeMs: number
  timeoutMs: number
  read: () => Promise<T>
}

/**
 * Asks rarely, whoever asks and however often: never twice at once, and nobody waits longer than the timeout. A store
 * that is slow or down gets one question at a time.
 */
export function readRarely<T>({ clock, maxAgeMs, timeoutMs, read }: RareReadingOptions<T>): () => Promise<T> {
  let latest: Promise<T> | undefined
  let askedAtMs = 0
  let underWay = false
  return () => {
    if (latest && (underWay || clock.now() - askedAtMs < maxAgeMs)) return latest
    askedAtMs = clock.now()
    underWay = true
    const asked = read().finally(() => {
      underWay = false
    })
    latest = inTime(asked, { clock, timeoutMs })
    return latest
  }
}

async function inTime<T>(asked: Promise<T>, { clock, timeoutMs }: { clock: Clock; timeoutMs: number }): Promise<T> {
  const over = new AbortController()
  const late = clock.sleep(timeoutMs, over.signal).then(() => {
    throw new Error(`no answer within ${timeoutMs} ms`)
  })
  try {
    return await Promise.race([asked, late])
  } finally {
    over.abort()
    // It loses the race now, and must not count as unhandled.
    late.catch(() => {})
  }
}
