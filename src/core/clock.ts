import { uptime } from 'node:os'

/** Time is passed as an argument, so that tests and the simulation control it. */
export interface Clock {
  /** Milliseconds since the Unix epoch. In the service it never jumps, so differences are durations. */
  now(): number
  /** The same for times that people or other systems chose, such as the expiry of a key: it follows a clock that is set. */
  calendar(): number
  /** Milliseconds since a fixed moment. It never jumps when the clock is set. */
  elapsed(): number
  /** How long the machine has been suspended so far, which `elapsed` does not count; absent: it never is. */
  suspendedMs?(): number
  /** Resolves after `ms`, or at once when the signal aborts; it never rejects. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>
}

export const systemClock: Clock = {
  now: () => Date.now(),
  calendar: () => Date.now(),
  elapsed: () => performance.now(),
  // The uptime goes on while the machine is suspended, and the other one does not.
  suspendedMs: () => uptime() * 1_000 - Number(process.hrtime.bigint() / 1_000_000n),
  sleep: (ms, signal) =>
    new Promise((resolve) => {
      if (signal?.aborted) return resolve()
      const done = () => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', done)
        resolve()
      }
      const timer = setTimeout(done, ms)
      signal?.addEventListener('abort', done, { once: true })
    }),
}

const DAY_MS = 86_400_000
const MAX_DAYS = 1_000
const TWO_DIGITS = Array.from({ length: 60 }, (_, n) => String(n).padStart(2, '0'))
const THREE_DIGITS = Array.from({ length: 1_000 }, (_, n) => String(n).padStart(3, '0'))
const days = new Map<number, string>()

/** RFC 3339 in UTC with milliseconds, equal to `toISOString`, but four times as fast: lists contain many times. */
export function toRfc3339(epochMs: number): string {
  const day = Math.floor(epochMs / DAY_MS)
  const ms = Math.floor(epochMs) - day * DAY_MS
  const seconds = Math.floor(ms / 1_000)
  const minutes = Math.floor(seconds / 60)
  const time = `${TWO_DIGITS[Math.floor(minutes / 60)]}:${TWO_DIGITS[minutes % 60]}:${TWO_DIGITS[seconds % 60]}`
  return `${days.get(day) ?? spellOutDay(day)}${time}.${THREE_DIGITS[ms % 1_000]}Z`
}

function spellOutDay(day: number): string {
  const [date] = new Date(day * DAY_MS).toISOString().split('T', 1)
  if (days.size >= MAX_DAYS) days.clear()
  days.set(day, `${date}T`)
  return `${date}T`
}
