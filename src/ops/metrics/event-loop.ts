import { monitorEventLoopDelay, performance } from 'node:perf_hooks'

const RESOLUTION_MS = 20
const NS_PER_SECOND = 1e9

export interface EventLoopWatch {
  /** By quantile, since the last call. */
  lagSeconds(): { '0.5': number; '0.99': number; '1': number }
  busySeconds(): number
  stop(): void
}

/** Watches how late the event loop is, and how busy; what it notices costs the loop nothing but a timer. */
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

/** What is recorded is the time between two ticks of the timer, the pause it was set to included. */
function secondsLate(betweenTicksNs: number): number {
  return Math.max(0, betweenTicksNs / NS_PER_SECOND - RESOLUTION_MS / 1_000)
}
