/** How the sandbox push provider misbehaves as a whole; one message misbehaves by the prefix of its registration token. */
export interface PushDials {
  latency_ms: number
  slow_ms: number
  retry_after_seconds: number
  refuse: string
  exchange: string
  token_seconds: number
}

export type PushDialSpec = { group: 'Messages' | 'Access tokens'; label: string } & (
  | { kind: 'number'; min: number; max: number; unit: string; initial: number }
  | { kind: 'choice'; of: readonly string[]; initial: string }
)

export const PUSH_DIALS: { readonly [Name in keyof PushDials]: PushDialSpec } = {
  latency_ms: {
    group: 'Messages',
    kind: 'number',
    min: 0,
    max: 600_000,
    unit: 'ms',
    initial: 0,
    label: 'Answered after',
  },
  slow_ms: {
    group: 'Messages',
    kind: 'number',
    min: 0,
    max: 600_000,
    unit: 'ms',
    initial: 3_000,
    label: 'And slow- ones after',
  },
  retry_after_seconds: {
    group: 'Messages',
    kind: 'number',
    min: 0,
    max: 3_600,
    unit: 's',
    initial: 0,
    label: 'Retry-After, none when 0',
  },
  refuse: {
    group: 'Messages',
    kind: 'choice',
    of: ['nothing', 'wrong_project', 'permission', 'third_party_auth', 'mismatch', 'unregistered', 'quota', 'down'],
    initial: 'nothing',
    label: 'Refuse all messages with',
  },
  exchange: {
    group: 'Access tokens',
    kind: 'choice',
    of: ['issued', 'refused', 'down', 'hanging'],
    initial: 'issued',
    label: 'They are',
  },
  token_seconds: {
    group: 'Access tokens',
    kind: 'number',
    min: 1,
    max: 86_400,
    unit: 's',
    initial: 3_600,
    label: 'They live for',
  },
}

export function pushDialsAtRest(): PushDials {
  return Object.fromEntries(
    Object.entries(PUSH_DIALS).map(([name, { initial }]) => [name, initial]),
  ) as unknown as PushDials
}

/** The changes, or what is wrong with them; nothing is changed by halves. */
export function readPushDialChanges(body: unknown): { changes: Partial<PushDials> } | { faults: string[] } {
  if (body === null || typeof body !== 'object' || Array.isArray(body)) {
    return { faults: ['the body must be an object'] }
  }
  const faults = Object.entries(body).flatMap(([name, value]) => faultOf(name, value) ?? [])
  return faults.length > 0 ? { faults } : { changes: body as Partial<PushDials> }
}

function faultOf(name: string, value: unknown): string | undefined {
  const spec = Object.hasOwn(PUSH_DIALS, name) ? PUSH_DIALS[name as keyof PushDials] : undefined
  if (!spec) return `${name} is no dial: there are ${Object.keys(PUSH_DIALS).join(', ')}`
  if (spec.kind === 'choice') {
    return spec.of.includes(String(value)) ? undefined : `${name} must be one of ${spec.of.join(', ')}`
  }
  const fits = Number.isInteger(value) && Number(value) >= spec.min && Number(value) <= spec.max
  return fits ? undefined : `${name} must be a whole number from ${spec.min} to ${spec.max}`
}
