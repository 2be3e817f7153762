import { defaultSettings, type FaultSettings, type FaultSpecs } from '../fault-settings.ts'

/** How the receiver answers all webhooks. */
export const RECEIVER_FAULTS = {
  answer: {
    group: 'Answers',
    kind: 'choice',
    of: ['200', '500', '410', 'redirect', 'cut', 'none'],
    initial: '200',
    label: 'The answer',
  },
  latency_ms: {
    group: 'Answers',
    kind: 'number',
    min: 0,
    max: 600_000,
    unit: 'ms',
    initial: 0,
    label: 'Answered after',
  },
  retry_after_seconds: {
    group: 'Answers',
    kind: 'number',
    min: 0,
    max: 86_400,
    unit: 's',
    initial: 0,
    label: 'Retry-After with 500, none when 0',
  },
} as const satisfies FaultSpecs

export type ReceiverFaults = FaultSettings<typeof RECEIVER_FAULTS>

export const NO_RECEIVER_FAULTS: Readonly<ReceiverFaults> = defaultSettings(RECEIVER_FAULTS)
