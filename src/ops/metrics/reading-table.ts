interface ReadingSpec {
  help: string
  type: 'gauge' | 'counter'
  labels: readonly string[]
}

/** Every metric whose value is read during a scrape, by its name without the prefix. */
export const READINGS = {
  jobs_unfinished: { type: 'gauge', labels: ['status'], help: 'Jobs that have not ended; 10001 stands for more' },
  jobs_oldest_unfinished_age_seconds: {
    type: 'gauge',
    labels: ['status'],
    help: 'Since the oldest job that has not ended was created; 0 when there is none',
  },
  callbacks_waiting: { type: 'gauge', labels: [], help: 'Callbacks received and not yet written' },
  runtime_breaker_state: { type: 'gauge', labels: ['state'], help: '1 for the state the breaker is in' },
  outbox_depth: { type: 'gauge', labels: [], help: 'Deliveries that are to be attempted; 10001 stands for more' },
  outbox_oldest_due_age_seconds: {
    type: 'gauge',
    labels: [],
    help: 'How long the delivery that is due longest is overdue; 0 when none is',
  },
  outbox_parked: {
    type: 'gauge',
    labels: [],
    help: 'Deliveries that wait for credentials, beside the depth; 10001 stands for more',
  },
  outbox_in_flight: { type: 'gauge', labels: [], help: 'Deliveries this process is attempting' },
  push_state: {
    type: 'gauge',
    labels: ['state'],
    help: '1 for the state of push: ok, no_credentials, halted, dropping, holding',
  },
  streams_open: { type: 'gauge', labels: [], help: 'Event streams open on this process' },
  database_up: { type: 'gauge', labels: [], help: '1 when the database answered this scrape' },
  redis_up: { type: 'gauge', labels: ['use'], help: '1 while Redis serves this use; absent without REDIS_URL' },
  identity_keys: { type: 'gauge', labels: [], help: 'Keys of the identity provider in use' },
  identity_keys_stale: { type: 'gauge', labels: [], help: '1 when the last attempt to fetch the keys failed' },
  event_loop_lag_seconds: { type: 'gauge', labels: ['quantile'], help: 'How late timers were since the last scrape' },
  event_loop_busy_seconds_total: { type: 'counter', labels: [], help: 'Time the event loop spent working' },
  process_resident_memory_bytes: { type: 'gauge', labels: [], help: 'Memory the process holds' },
  process_heap_used_bytes: { type: 'gauge', labels: [], help: 'Of it, what JavaScript uses' },
  process_cpu_seconds_total: { type: 'counter', labels: ['mode'], help: 'Processor time' },
  process_uptime_seconds: { type: 'gauge', labels: [], help: 'Since the process started' },
  build_info: { type: 'gauge', labels: ['version', 'variant', 'engine'], help: 'Always 1: what is running' },
} as const satisfies Record<string, ReadingSpec>

export type GaugeName = keyof typeof READINGS

/** One number, or one per combination of labels; null leaves the metric out. */
export type Reading = number | null | readonly (readonly [Readonly<Record<string, string>>, number])[]

/** The reading of one gauge, with exactly its own labels. */
export type ReadingOf<Name extends GaugeName> = (typeof READINGS)[Name]['labels'] extends readonly []
  ? number | null
  : readonly (readonly [Readonly<Record<(typeof READINGS)[Name]['labels'][number], string>>, number])[]
