/** How the sandbox runtime misbehaves. All at rest, it behaves; each can be turned while it runs. */
export interface Dials {
  pending_ms: number
  running_ms: number
  zombie: boolean
  drop_callbacks: number
  duplicate_callbacks: number
  late_callbacks_ms: number
  reorder_callbacks: boolean
  corrupt_callbacks: number
  failing_callbacks: number
  delivery: string
  content_type: string
  lookup_latency_ms: number
  lookup_failure: number
  lookup_failure_status: number
  hang_lookups: boolean
  lose_runs: boolean
  start_failure: number
  start_failure_status: number
  lose_start_answers: number
  refuse_webhook: boolean
}

export type DialGroup = 'Runs' | 'Callbacks' | 'Lookups' | 'Starts'

/** A ratio is a chance from 0 to 1, drawn anew each time. */
export type DialSpec<Value> = { group: DialGroup; label: string; initial: Value } & (Value extends boolean
  ? { kind: 'switch' }
  : Value extends number
    ? { kind: 'ratio' } | { kind: 'ms'; max: number } | { kind: 'status' }
    : { kind: 'choice'; of: readonly string[] })

const HOUR_MS = 3_600_000

export const DIALS: { readonly [Name in keyof Dials]: DialSpec<Dials[Name]> } = {
  pending_ms: { group: 'Runs', kind: 'ms', max: HOUR_MS, initial: 50, label: 'Time a run waits for a worker' },
  running_ms: { group: 'Runs', kind: 'ms', max: HOUR_MS, initial: 300, label: 'Time a run takes' },
  zombie: { group: 'Runs', kind: 'switch', initial: false, label: 'Runs never end' },
  drop_callbacks: { group: 'Callbacks', kind: 'ratio', initial: 0, label: 'Never sent' },
  duplicate_callbacks: { group: 'Callbacks', kind: 'ratio', initial: 0, label: 'Sent twice' },
  corrupt_callbacks: { group: 'Callbacks', kind: 'ratio', initial: 0, label: 'Cut short, so that they are not JSON' },
  failing_callbacks: { group: 'Callbacks', kind: 'ratio', initial: 0, label: 'Attempts whose connection breaks' },
  late_callbacks_ms: { group: 'Callbacks', kind: 'ms', max: HOUR_MS, initial: 0, label: 'Held back for' },
  reorder_callbacks: { group: 'Callbacks', kind: 'switch', initial: false, label: 'Overtaken by the next one' },
  delivery: { group: 'Callbacks', kind: 'choice', of: ['js', 'hosted'], initial: 'js', label: 'Delivered like' },
  content_type: {
    group: 'Callbacks',
    kind: 'choice',
    of: ['text/plain;charset=UTF-8', 'application/json'],
    initial: 'text/plain;charset=UTF-8',
    label: 'Content type',
  },
  lookup_latency_ms: { group: 'Lookups', kind: 'ms', max: HOUR_MS, initial: 0, label: 'Answered after' },
  lookup_failure: { group: 'Lookups', kind: 'ratio', initial: 0, label: 'Answered with a failure' },
  lookup_failure_status: { group: 'Lookups', kind: 'status', initial: 503, label: 'Its status' },
  hang_lookups: { group: 'Lookups', kind: 'switch', initial: false, label: 'Not answered while this is on' },
  lose_runs: { group: 'Lookups', kind: 'switch', initial: false, label: 'No run is known' },
  start_failure: { group: 'Starts', kind: 'ratio', initial: 0, label: 'Answered with a failure' },
  start_failure_status: { group: 'Starts', kind: 'status', initial: 503, label: 'Its status' },
  lose_start_answers: { group: 'Starts', kind: 'ratio', initial: 0, label: 'Started, and the answer is lost' },
  refuse_webhook: { group: 'Starts', kind: 'switch', initial: false, label: 'Callback URLs are refused (422)' },
}

export function dialsAtRest(): Dials {
  return Object.fromEntries(Object.entries(DIALS).map(([name, { initial }]) => [name, initial])) as unknown as Dials
}

/** The changes, or what is wrong with them; nothing is changed by halves. */
export function readDialChanges(body: unknown): { changes: Partial<Dials> } | { faults: string[] } {
  if (body === null || typeof body !== 'object' || Array.isArray(body))
    return { faults: ['the body must be an object'] }
  const faults = Object.entries(body).flatMap(([name, value]) => faultOf(name, value) ?? [])
  return faults.length > 0 ? { faults } : { changes: body as Partial<Dials> }
}

function faultOf(name: string, value: unknown): string | undefined {
  const spec = Object.hasOwn(DIALS, name) ? DIALS[name as keyof Dials] : undefined
  if (!spec) return `${name} is no dial: there are ${Object.keys(DIALS).join(', ')}`
  switch (spec.kind) {
    case 'switch':
      return typeof value === 'boolean' ? undefined : `${name} must be true or false`
    case 'ratio':
      return isBetween(value, 0, 1) ? undefined : `${name} must be a number from 0 to 1`
    case 'ms':
      return isBetween(value, 0, spec.max) ? undefined : `${name} must be milliseconds from 0 to ${spec.max}`
    case 'status':
      return Number.isInteger(value) && isBetween(value, 400, 599)
        ? undefined
        : `${name} must be a status of 4xx or 5xx`
    case 'choice':
      return spec.of.includes(String(value)) ? undefined : `${name} must be one of ${spec.of.join(', ')}`
  }
}

function isBetween(value: unknown, min: number, max: number): boolean {
  return typeof value === 'number' && value >= min && value <= max
}
