interface MetricSpec {
  help: string
  labels: readonly string[]
}

interface HistogramSpec extends MetricSpec {
  buckets: readonly number[]
}

/** From a read in memory to the request timeout. */
const ANSWER_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10] as const

/**
 * Every counter, by its name without the prefix. A typo in a name or a label does not compile. A label has a few fixed
 * values: never an id, a path or text from outside.
 */
export const COUNTERS = {
  http_requests_total: {
    help: 'Answered requests, by route pattern. Unknown paths have the route "unknown", CORS preflights the route "preflight"',
    labels: ['method', 'route', 'status'],
  },
  http_malformed_requests_total: {
    help: 'Refused before a request was parsed: broken HTTP, headers too large, too slow, no valid path',
    labels: ['code'],
  },
  requests_shed_total: {
    help: 'Requests refused because of overload, before the gate: changes first, callbacks last',
    labels: ['urgency'],
  },
  requests_bounded_total: {
    help: 'Requests refused by a limit on one caller or on memory: principal; body, answer, alone or with principal_, unproven_, address_',
    labels: ['bound'],
  },
  gate_outcomes_total: {
    help: 'Decisions of the gate: public, ok, missing, invalid, spent (over the rate limit), forbidden, unavailable',
    labels: ['outcome'],
  },
  credentials_refused_total: { help: 'Refused credentials, by reason', labels: ['reason'] },
  tier_charges_total: {
    help: 'Requests charged to a rate-limit tier, and whether the limit was exceeded',
    labels: ['tier', 'exceeded'],
  },
  jobs_ended_total: {
    help: 'Jobs that ended, by the first hint: callback, read or sweep; "none" means that this service ended the job itself',
    labels: ['type', 'status', 'settled_by'],
  },
  job_output_misfits_total: {
    help: 'Outputs that do not match the schema of their job type, or were too large to check',
    labels: ['type', 'reason'],
  },
  extra_runs_total: {
    help: 'Runs that the runtime started besides the one that the job follows, because it handled a repeated start late',
    labels: [],
  },
  callbacks_total: { help: 'Stored callbacks, by outcome; replays are not counted again', labels: ['outcome'] },
  runtime_calls_total: {
    help: 'Calls to the agent runtime: answered, refused, unreachable, or skipped by the circuit breaker',
    labels: ['outcome'],
  },
  sweep_rounds_total: {
    help: 'Rounds of the sweep: looked (searched for due jobs), skipped (the circuit breaker is open), failed',
    labels: ['result'],
  },
  sweep_jobs_taken_total: { help: 'Jobs leased by the sweep', labels: [] },
  push_verdicts_total: {
    help: 'Results of delivery attempts: sent, validated, disable, drop, retry, halt, or not attempted (expired, gone, no_credentials)',
    labels: ['verdict'],
  },
  webhook_attempts_total: {
    help: 'Attempts to deliver a webhook, by the class of the answer’s status: 2xx, 3xx, 4xx, 5xx, or no_answer',
    labels: ['outcome'],
  },
  deliveries_total: {
    help: 'State changes of deliveries, by new state; pending means that another attempt follows',
    labels: ['channel', 'state'],
  },
  history_trimmed_total: {
    help: 'Records deleted by retention: callbacks, timeline entries, notifications, jobs',
    labels: ['kind'],
  },
  streams_opened_total: { help: 'Opened event streams', labels: [] },
  live_joins_total: {
    help: 'Streams of runs that this service joined at the runtime: ended, broken, refused or unreachable',
    labels: ['outcome'],
  },
  live_viewers_cut_total: { help: 'Viewers of live output disconnected because they read too slowly', labels: [] },
  database_unavailable_total: {
    help: 'Statements and transactions that failed because the database was unreachable or too busy',
    labels: ['engine', 'kind'],
  },
  database_lock_timeouts_total: {
    help: 'Statements and transactions that failed because another transaction held a lock for too long',
    labels: ['engine', 'kind'],
  },
  readings_failed_total: {
    help: 'Gauges that are missing from a scrape because they could not be read',
    labels: ['gauge'],
  },
} as const satisfies Record<string, MetricSpec>

/** Every histogram. */
export const HISTOGRAMS = {
  http_request_duration_seconds: {
    help: 'Time from a request’s arrival to its answer, without event streams',
    labels: ['method', 'route'],
    buckets: ANSWER_SECONDS,
  },
  job_duration_seconds: {
    help: 'Time from a job’s creation, or from its `run_at`, to its end',
    labels: ['type', 'status'],
    buckets: [1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600],
  },
  runtime_call_duration_seconds: {
    help: 'Duration of calls to the agent runtime',
    labels: [],
    buckets: ANSWER_SECONDS,
  },
  push_send_duration_seconds: {
    help: 'Duration of attempts to send one message to the push provider',
    labels: [],
    buckets: ANSWER_SECONDS,
  },
  webhook_send_duration_seconds: {
    help: 'Duration of attempts to deliver a webhook',
    labels: [],
    buckets: ANSWER_SECONDS,
  },
  database_duration_seconds: {
    help: 'Duration of single statements and whole transactions, including the wait for a connection',
    labels: ['engine', 'kind'],
    buckets: [0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10],
  },
  group_commit_batch_size: {
    help: 'Number of items in one shared transaction',
    labels: ['queue'],
    buckets: [1, 2, 5, 10, 25, 50, 100, 200, 500],
  },
  event_feed_lag_seconds: {
    help: 'Time from an event’s commit to its dispatch to the streams of this process',
    labels: [],
    buckets: ANSWER_SECONDS,
  },
} as const satisfies Record<string, HistogramSpec>
