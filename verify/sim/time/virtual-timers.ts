import type { Timer, VirtualTime } from './virtual-time.ts'

const real = { setTimeout, clearTimeout }
let time: VirtualTime | null = null

/** While a simulation runs, the timers of frameworks (a request timeout, for example) use virtual time too. */
export function useTime(current: VirtualTime | null): void {
  time = current
}

export function installTimers(): void {
  globalThis.setTimeout = ((run: (...args: unknown[]) => void, ms = 0, ...args: unknown[]) =>
    time ? handleOf(time.after(ms, () => run(...args))) : real.setTimeout(run, ms, ...args)) as typeof setTimeout
  globalThis.clearTimeout = ((handle: Timer | NodeJS.Timeout | undefined) => {
    if (handle && 'cancel' in handle) handle.cancel()
    else real.clearTimeout(handle)
  }) as typeof clearTimeout
}

function handleOf(timer: Timer): Timer & { unref: () => unknown; ref: () => unknown } {
  const handle = { ...timer, unref: () => handle, ref: () => handle }
  return handle
}
