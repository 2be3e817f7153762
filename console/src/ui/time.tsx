import { useEffect, useState } from 'preact/hooks'

const UNITS: [unit: Intl.RelativeTimeFormatUnit, ms: number][] = [
  ['day', 86_400_000],
  ['hour', 3_600_000],
  ['minute', 60_000],
  ['second', 1_000],
]
const relative = new Intl.RelativeTimeFormat(undefined, { numeric: 'auto', style: 'short' })
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'long' })

/** The operator's time zone, for example `GMT+1`. */
export const ZONE =
  new Intl.DateTimeFormat(undefined, { timeZoneName: 'short' })
    .formatToParts(new Date())
    .find(({ type }) => type === 'timeZoneName')?.value ?? ''

/** A time as "5 min ago", with the exact time and its zone as its title. `isExact` shows both: on a phone there is no title. */
export function Time({ at, isExact = false }: { at: string | null; isExact?: boolean }) {
  const now = useNow()
  if (at === null) return <span class="muted">–</span>
  const ms = Date.parse(at) - now
  const [unit, size] = UNITS.find(([, length]) => Math.abs(ms) >= length) ?? ['second', 1_000]
  const ago = relative.format(Math.round(ms / size), unit)
  if (!isExact) {
    return (
      <time dateTime={at} title={exactTime(at)}>
        {ago}
      </time>
    )
  }
  return (
    <time dateTime={at}>
      {exactTime(at)} <span class="muted">({ago})</span>
    </time>
  )
}

/** The exact time with its zone, for text that must not change by itself. */
export function Moment({ at }: { at: string }) {
  return <time dateTime={at}>{exactTime(at)}</time>
}

/** The exact time with its zone: "Jan 31, 2026, 1:00:00 PM GMT+1". */
export function exactTime(at: string | number): string {
  return exact.format(new Date(at))
}

/** The time since then as "53 s", with the exact time as its title. */
export function Elapsed({ since }: { since: string | null }) {
  const now = useNow()
  if (since === null) return <span class="muted">–</span>
  const ms = Math.max(0, now - Date.parse(since))
  return (
    <time dateTime={since} title={exactTime(since)}>
      {duration(Math.trunc(ms / 1_000) * 1_000)}
    </time>
  )
}

/** A duration in words, of its two largest units: "1 hour 5 minutes". */
export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`
  if (ms < 60_000) return count(Math.floor(ms / 100) / 10, 'second')
  const from = UNITS.findIndex(([, length]) => ms >= length)
  let rest = ms
  const parts = UNITS.slice(from, from + 2).map(([unit, length]) => {
    const amount = Math.floor(rest / length)
    rest -= amount * length
    return amount === 0 ? '' : count(amount, unit)
  })
  return parts.filter((part) => part !== '').join(' ')
}

function count(amount: number, unit: string): string {
  return `${amount} ${unit}${amount === 1 ? '' : 's'}`
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
