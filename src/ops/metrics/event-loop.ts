import { monitorEventLoopDelay, performance } from 'node:perf_hooks'

const RESOLUTION_MS = 20
const NS_PER_SECOND = 1e9

export interface EventLoopWatch {
  /** By quantile, measured since the last call. */
  lagSeconds(): { '0.5': number; '0.99': number; '1': number }
  busySeconds(): number
  stop(): void
}

/** Measures how late and how busy the event loop is. The only cost is one timer. */
export function watchEventLoop(): EventLoopWatch {
  const delays = monitorEventLoopDelay({ resolution: RESOLUTION_MS })
  delays.enable()
  return {
    lagSeconds: () => {
      const lag = {
        '0.5': secondsLate(delays.percentile(50)),
        '0.99': secondsLate(delays.percentile(99)),
        '1': secondsLate(delays.max),
      }
      delays.reset()
      return lag
    },
    busySeconds: () => performance.eventLoopUtilization().active / 1_000,
    stop: () => void delays.disable(),
  }
}

/** The histogram records the time between two ticks, which includes the timer's own interval. */
function secondsLate(betweenTicksNs: number): number {
  return Math.max(0, betweenTicksNs / NS_PER_SECOND - RESOLUTION_MS / 1_000)
}
