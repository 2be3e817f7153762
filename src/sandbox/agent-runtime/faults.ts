import { defaultSettings, type FaultSettings, type FaultSpecs } from '../fault-settings.ts'

const ms = { kind: 'number', min: 0, max: 3_600_000, unit: 'ms' } as const
const status = { kind: 'number', min: 400, max: 599, unit: '', initial: 503 } as const
const off = { kind: 'switch', initial: false } as const
const never = { kind: 'ratio', initial: 0 } as const

/** The faults of the sandbox runtime, and the duration of its runs. By default there are no faults. */
export const RUNTIME_FAULTS = {
  pending_ms: { group: 'Runs', ...ms, initial: 50, label: 'Time a run waits for a worker' },
  running_ms: { group: 'Runs', ...ms, initial: 300, label: 'Time a run takes' },
  token_ms: { group: 'Streams', ...ms, initial: 0, label: 'Time between two tokens; 0 spreads them over the run' },
  break_streams: { group: 'Streams', ...never, label: 'Broken after an event' },
  freeze_streams: { group: 'Streams', ...never, label: 'Frozen after an event: open, and silent' },
  refuse_streams: { group: 'Streams', ...off, label: 'Not offered (404)' },
  zombie: { group: 'Runs', ...off, label: 'Runs never end' },
  drop_callbacks: { group: 'Callbacks', ...never, label: 'Never sent' },
  duplicate_callbacks: { group: 'Callbacks', ...never, label: 'Sent twice' },
  corrupt_callbacks: { group: 'Callbacks', ...never, label: 'Cut short, so that they are not JSON' },
  failing_callbacks: { group: 'Callbacks', ...never, label: 'Attempts whose connection breaks' },
  late_callbacks_ms: { group: 'Callbacks', ...ms, initial: 0, label: 'Held back for' },
  reorder_callbacks: { group: 'Callbacks', ...off, label: 'Overtaken by the next one' },
  delivery: { group: 'Callbacks', kind: 'choice', of: ['js', 'hosted'], initial: 'js', label: 'Delivered like' },
  content_type: {
    group: 'Callbacks',
    kind: 'choice',
    of: ['text/plain;charset=UTF-8', 'application/json'],
    initial: 'text/plain;charset=UTF-8',
    label: 'Content type',
  },
  lookup_latency_ms: { group: 'Lookups', ...ms, initial: 0, label: 'Answered after' },
  lookup_failure: { group: 'Lookups', ...never, label: 'Answered with a failure' },
  lookup_failure_status: { group: 'Lookups', ...status, label: 'Its status' },
  hang_lookups: { group: 'Lookups', ...off, label: 'Not answered while this is on' },
  lose_runs: { group: 'Lookups', ...off, label: 'No run is known' },
  start_failure: { group: 'Starts', ...never, label: 'Answered with a failure' },
  start_failure_status: { group: 'Starts', ...status, label: 'Its status' },
  lose_start_answers: { group: 'Starts', ...never, label: 'Started, and the answer is lost' },
  late_starts_ms: { group: 'Starts', ...ms, initial: 0, label: 'Handled after' },
  break_starts: { group: 'Starts', ...never, label: 'Connection broken at once; still handled after that time' },
  refuse_webhook: { group: 'Starts', ...off, label: 'Callback URLs are refused (422)' },
} as const satisfies FaultSpecs

export type RuntimeFaults = FaultSettings<typeof RUNTIME_FAULTS>

export const NO_RUNTIME_FAULTS: Readonly<RuntimeFaults> = defaultSettings(RUNTIME_FAULTS)
