import { useEffect, useState } from 'preact/hooks'

const UNITS: [unit: Intl.RelativeTimeFormatUnit, ms: number][] = [
  ['day', 86_400_000],
  ['hour', 3_600_000],
  ['minute', 60_000],
  ['second', 1_000],
]
const relative = new Intl.RelativeTimeFormat(undefined, { numeric: 'auto', style: 'short' })
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' })

/** A time as "5 min ago", with the exact time as its title. */
export function Time({ at }: { at: string | null }) {
  const now = useNow()
  if (at === null) return <span class="muted">–</span>
  const ms = Date.parse(at) - now
  const [unit, size] = UNITS.find(([, length]) => Math.abs(ms) >= length) ?? ['second', 1_000]
  return (
    <time dateTime={at} title={exact.format(new Date(at))}>
      {relative.format(Math.trunc(ms / size), unit)}
    </time>
  )
}

/** The time since then as "53 s", with the exact time as its title. */
export function Elapsed({ since }: { since: string | null }) {
  const now = useNow()
  if (since === null) return <span class="muted">–</span>
  const ms = Math.max(0, now - Date.parse(since))
  return (
    <time dateTime={since} title={exact.format(new Date(since))}>
      {duration(Math.trunc(ms / 1_000) * 1_000)}
    </time>
  )
}

export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`
  if (ms < 60_000) return `${(ms / 1_000).toFixed(ms % 1_000 === 0 ? 0 : 1)} s`
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1_000)} s`
  return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`
}

const listeners = new Set<(now: number) => void>()
let isTicking = false

/** One timer for all times on the page. */
function useNow(): number {
  const [now, setNow] = useState(Date.now)
  useEffect(() => {
    listeners.add(setNow)
    if (!isTicking) setTimeout(tick, 1_000)
    isTicking = true
    return () => {
      listeners.delete(setNow)
    }
  }, [])
  return now
}

function tick(): void {
  const now = Date.now()
  for (const listener of listeners) listener(now)
  isTicking = listeners.size > 0
  if (isTicking) setTimeout(tick, 1_000)
}
