interface ReadingSpec {
  help: string
  type: 'gauge' | 'counter'
  labels: readonly string[]
}

/** Every metric whose value is read during a scrape, by its name without the prefix (`process_` and `nodejs_` have none). */
export const READINGS = {
  jobs_unfinished: { type: 'gauge', labels: ['status'], help: 'Jobs that have not ended; 10001 means more than 10000' },
  jobs_oldest_unfinished_age_seconds: {
    type: 'gauge',
    labels: ['status'],
    help: 'Age of the oldest job that has not ended and does not wait for its `run_at`; 0 if there is none',
  },
  callbacks_waiting: { type: 'gauge', labels: [], help: 'Callbacks received and not yet committed' },
  runtime_breaker_state: { type: 'gauge', labels: ['state'], help: '1 for the current state of the circuit breaker' },
  outbox_depth: {
    type: 'gauge',
    labels: ['channel'],
    help: 'Deliveries that wait for an attempt; 10001 means more than 10000',
  },
  outbox_oldest_due_age_seconds: {
    type: 'gauge',
    labels: ['channel'],
    help: 'How long the oldest due delivery is overdue; 0 if there is none',
  },
  outbox_parked: {
    type: 'gauge',
    labels: [],
    help: 'Deliveries that wait for credentials, not included in the depth; 10001 means more than 10000',
  },
  outbox_in_flight: { type: 'gauge', labels: ['channel'], help: 'Deliveries that this process is sending now' },
  webhook_endpoints: {
    type: 'gauge',
    labels: ['state'],
    help: 'Webhook endpoints: ok, failing since the last attempt, disabled because of failures or a 410, off by an admin',
  },
  push_state: {
    type: 'gauge',
    labels: ['state'],
    help: '1 for the current state of push: ok, no_credentials, halted, dropping, holding',
  },
  streams_open: { type: 'gauge', labels: [], help: 'Event streams open on this process' },
  live_viewers: { type: 'gauge', labels: [], help: 'Viewers of live output on this process' },
  live_upstreams: {
    type: 'gauge',
    labels: [],
    help: 'Streams of runs that this process has joined at the runtime: one for all viewers of a run',
  },
  live_memory_bytes: { type: 'gauge', labels: [], help: 'Memory used by live output for replay; at most 64 MB' },
  database_up: { type: 'gauge', labels: [], help: '1 when the database answered this scrape' },
  database_size_bytes: {
    type: 'gauge',
    labels: ['part'],
    help: 'Size of the database (data), and of the write-ahead log on SQLite (wal)',
  },
  disk_free_bytes: { type: 'gauge', labels: [], help: 'Free space on the disk of DATA_DIR; absent on PostgreSQL' },
  disk_size_bytes: { type: 'gauge', labels: [], help: 'Size of the disk of DATA_DIR; absent on PostgreSQL' },
  node_last_write_age_seconds: {
    type: 'gauge',
    labels: [],
    help: 'Time since this node last wrote its heartbeat; usually below 3',
  },
  clock_offset_seconds: {
    type: 'gauge',
    labels: [],
    help: "How far the service's time is ahead of the database's; not 0 after a step of the database's clock",
  },
  redis_up: {
    type: 'gauge',
    labels: ['use'],
    help: '1 while Redis is available for this use; absent without REDIS_URL',
  },
  identity_keys: { type: 'gauge', labels: [], help: 'Keys of the identity provider in use' },
  identity_keys_stale: { type: 'gauge', labels: [], help: '1 when the last attempt to fetch the keys failed' },
  nodejs_eventloop_lag_seconds: {
    type: 'gauge',
    labels: ['quantile'],
    help: 'How late timers were since the last scrape',
  },
  event_loop_busy_seconds_total: { type: 'counter', labels: [], help: 'Time the event loop spent working' },
  nodejs_heap_size_used_bytes: { type: 'gauge', labels: [], help: 'The part of the memory that JavaScript uses' },
  process_resident_memory_bytes: { type: 'gauge', labels: [], help: 'Memory used by the process' },
  process_cpu_seconds_total: { type: 'counter', labels: [], help: 'User and system CPU time used by the process' },
  process_start_time_seconds: { type: 'gauge', labels: [], help: 'When the process started, as a Unix time' },
  process_open_fds: {
    type: 'gauge',
    labels: [],
    help: 'Open files and connections of the process; absent where there is no /proc',
  },
  build_info: {
    type: 'gauge',
    labels: ['version', 'variant', 'engine'],
    help: 'Always 1; the labels name the running version',
  },
} as const satisfies Record<string, ReadingSpec>

export type GaugeName = keyof typeof READINGS

/** One number, or one per combination of labels; null leaves the metric out. */
export type Reading = number | null | readonly (readonly [Readonly<Record<string, string>>, number])[]

/** The reading of one gauge, with exactly its own labels. */
export type ReadingOf<Name extends GaugeName> = (typeof READINGS)[Name]['labels'] extends readonly []
  ? number | null
  : readonly (readonly [Readonly<Record<(typeof READINGS)[Name]['labels'][number], string>>, number])[]
