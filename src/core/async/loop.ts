import type { Clock } from '../clock.ts'

interface LoopOptions {
  clock: Clock
  everyMs: number
  /** The pause before the first round; absent: `everyMs`. */
  firstAfterMs?: number
  run: (signal: AbortSignal) => Promise<void>
  onError: (error: unknown) => void
}

export interface Loop {
  /** Starts the next round now, instead of at the end of the pause. */
  wake(): void
  /** Waits for the round in progress; no further round starts. */
  stop(): Promise<void>
}

/** Repeats background work. Rounds never overlap; a failed round is reported, and the next one follows. */
export function startLoop({ clock, everyMs, firstAfterMs = everyMs, run, onError }: LoopOptions): Loop {
  const stopping = new AbortController()
  let pause = new AbortController()
  let woken = false
  let pauseMs = firstAfterMs

  const rounds = async () => {
    while (!stopping.signal.aborted) {
      if (!woken) await clock.sleep(pauseMs, pause.signal)
      if (stopping.signal.aborted) return
      woken = false
      pauseMs = everyMs
      pause = new AbortController()
      try {
        await run(stopping.signal)
      } catch (error) {
        onError(error)
      }
    }
  }
  const done = rounds()

  return {
    wake: () => {
      woken = true
      pause.abort()
    },
    stop: () => {
      stopping.abort()
      pause.abort()
      return done
    },
  }
}
