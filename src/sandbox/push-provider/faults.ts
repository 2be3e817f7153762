import { defaultSettings, type FaultSettings, type FaultSpecs } from '../fault-settings.ts'

const ms = { kind: 'number', min: 0, max: 600_000, unit: 'ms' } as const

/**
 * The faults of the sandbox push provider for all messages. For one message, the prefix of its registration token decides
 * (`answers.ts`).
 */
export const PUSH_FAULTS = {
  latency_ms: { group: 'Messages', ...ms, initial: 0, label: 'Answered after' },
  slow_ms: { group: 'Messages', ...ms, initial: 3_000, label: 'And slow- ones after' },
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
} as const satisfies FaultSpecs

export type PushFaults = FaultSettings<typeof PUSH_FAULTS>

export const NO_PUSH_FAULTS: Readonly<PushFaults> = defaultSettings(PUSH_FAULTS)
