import { setTimeout as pause } from 'node:timers/promises'

export interface ServiceMonitor {
  /** The highest resident memory of the service. */
  rssMaxMb: number
  /** The average load of one core. */
  cpuPercent: number
  probes: number
  probesFailed: number
  stop(): Promise<void>
}

const EVERY_MS = 250
const PROBE_TIMEOUT_MS = 5_000

/** Polls `/healthz` and `/metrics` during the load, as a load balancer and a scraper do. */
export function startMonitor(url: string): ServiceMonitor {
  const over = new AbortController()
  const monitor = { rssMaxMb: 0, cpuPercent: 0, probes: 0, probesFailed: 0 }
  let begun: { atMs: number; cpuSeconds: number } | undefined
  const note = (text: string) => {
    const cpuSeconds = sumOf(text, 'process_cpu_seconds_total')
    const atMs = performance.now()
    begun ??= { atMs, cpuSeconds }
    if (atMs > begun.atMs) monitor.cpuPercent = (100_000 * (cpuSeconds - begun.cpuSeconds)) / (atMs - begun.atMs)
    monitor.rssMaxMb = Math.max(monitor.rssMaxMb, sumOf(text, 'process_resident_memory_bytes') / 1024 / 1024)
  }
  const poll = async () => {
    while (!over.signal.aborted) {
      monitor.probes += 1
      try {
        const signal = AbortSignal.timeout(PROBE_TIMEOUT_MS)
        const [alive, metrics] = await Promise.all([
          fetch(`${url}/healthz`, { signal }),
          fetch(`${url}/metrics`, { signal }),
        ])
        const text = await metrics.text()
        await alive.arrayBuffer()
        if (alive.status !== 200 || metrics.status !== 200) monitor.probesFailed += 1
        note(text)
      } catch {
        monitor.probesFailed += 1
      }
      await pause(EVERY_MS)
    }
  }
  const polling = poll()
  return Object.assign(monitor, {
    stop: () => {
      over.abort()
      return polling
    },
  })
}

function sumOf(text: string, metric: string): number {
  const samples = text.matchAll(new RegExp(`^${metric}(?:\\{[^}]*\\})? (\\S+)$`, 'gm'))
  return Array.from(samples, ([, value]) => Number(value)).reduce((sum, value) => sum + value, 0)
}

/** Sends one request after the other until several in a row are as fast as without load. */
export async function timeToRecover(
  { url, token }: { url: string; token: string },
  { normalMs, withinMs }: { normalMs: number; withinMs: number },
): Promise<number | null> {
  const startMs = performance.now()
  for (let inARow = 0; ; ) {
    const tookMs = await timeRequest(url, token)
    inARow = tookMs !== null && tookMs <= normalMs ? inARow + 1 : 0
    const sinceMs = performance.now() - startMs
    if (inARow === 5) return sinceMs
    if (sinceMs > withinMs) return null
    await pause(20)
  }
}

/** Null when it was refused. */
export async function timeRequest(url: string, token: string): Promise<number | null> {
  const startMs = performance.now()
  const response = await fetch(`${url}/v1/projects?limit=20`, { headers: { authorization: `Bearer ${token}` } })
  await response.arrayBuffer()
  return response.status === 200 ? performance.now() - startMs : null
}
