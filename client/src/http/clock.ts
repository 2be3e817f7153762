/** Time and randomness are arguments, so that tests control them. */
export interface Clock {
  /** Milliseconds since the Unix epoch. */
  now(): number
  /** Resolves after `ms`, or at once when the signal aborts. It never rejects. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>
}

/** The longest delay of `setTimeout`. A longer one would end at once. */
const MAX_TIMER_MS = 2 ** 31 - 1

export const systemClock: Clock = {
  now: () => Date.now(),
  sleep: (ms, signal) =>
    new Promise((resolve) => {
      if (signal?.aborted) return resolve()
      let timer: ReturnType<typeof setTimeout>
      const wait = (leftMs: number) => {
        const next = leftMs > MAX_TIMER_MS ? () => wait(leftMs - MAX_TIMER_MS) : done
        timer = setTimeout(next, Math.min(leftMs, MAX_TIMER_MS))
      }
      const done = () => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', done)
        resolve()
      }
      wait(ms)
      signal?.addEventListener('abort', done, { once: true })
    }),
}
