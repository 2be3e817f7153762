interface MetricSpec {
  help: string
  labels: readonly string[]
}

interface HistogramSpec extends MetricSpec {
  buckets: readonly number[]
}

/** From a read in memory to the longest time for an answer. */
const ANSWER_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10] as const

/**
 * Every counter, by its name without the prefix. A typo in a name or a label does not compile. A label has few fixed values:
 * never an id, a path or a text from outside.
 */
export const COUNTERS = {
  http_requests_total: {
    help: 'Requests answered, by route pattern; unknown paths share the route "unknown"',
    labels: ['method', 'route', 'status'],
  },
  http_malformed_requests_total: {
    help: 'Refused before they became a request: broken HTTP, headers too large, too slow, no valid path',
    labels: ['code'],
  },
  requests_shed_total: {
    help: 'Refused because of overload, before the gate: ordinary requests first, callbacks last',
    labels: ['urgency'],
  },
  gate_outcomes_total: {
    help: 'What the gate decided: public, ok, missing, invalid, spent, forbidden, unavailable',
    labels: ['outcome'],
  },
  credentials_refused_total: { help: 'Credentials refused, by what was wrong with them', labels: ['reason'] },
  tier_charges_total: {
    help: 'Requests charged to a rate-limit tier, and whether the limit was exceeded',
    labels: ['tier', 'exceeded'],
  },
  jobs_ended_total: {
    help: 'Jobs that ended, by who noticed first; "none" was decided here',
    labels: ['type', 'status', 'settled_by'],
  },
  callbacks_total: { help: 'Callbacks taken in, by outcome; replays are not counted again', labels: ['outcome'] },
  runtime_calls_total: {
    help: 'Calls of the agent runtime: answered, refused, unreachable, or skipped by the breaker',
    labels: ['outcome'],
  },
  sweep_rounds_total: {
    help: 'Rounds of the sweep: looked, skipped while the runtime is left alone, failed',
    labels: ['result'],
  },
  sweep_jobs_taken_total: { help: 'Jobs the sweep leased', labels: [] },
  push_verdicts_total: {
    help: 'What became of attempts to deliver: sent, validated, disable, drop, retry, halt, or not attempted (expired, gone, no_credentials)',
    labels: ['verdict'],
  },
  deliveries_total: {
    help: 'Deliveries marked, by the state they got; pending is another attempt later',
    labels: ['state'],
  },
  history_trimmed_total: {
    help: 'Forgotten because its job ended long enough ago: callbacks, timeline entries, notifications, jobs',
    labels: ['kind'],
  },
  streams_opened_total: { help: 'Event streams opened', labels: [] },
  database_unavailable_total: {
    help: 'Statements and transactions the database could not be reached for, or was too busy',
    labels: ['engine', 'kind'],
  },
  readings_failed_total: {
    help: 'Gauges that could not be read for a scrape, and are therefore missing from it',
    labels: ['gauge'],
  },
} as const satisfies Record<string, MetricSpec>

/** Every histogram. */
export const HISTOGRAMS = {
  http_request_duration_seconds: {
    help: 'From a request’s arrival to its answer; event streams are left out',
    labels: ['method', 'route'],
    buckets: ANSWER_SECONDS,
  },
  job_duration_seconds: {
    help: 'From a job’s creation to its end',
    labels: ['type', 'status'],
    buckets: [1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600],
  },
  runtime_call_duration_seconds: {
    help: 'Calls of the agent runtime that were made',
    labels: [],
    buckets: ANSWER_SECONDS,
  },
  push_send_duration_seconds: {
    help: 'Attempts to hand one message to the push provider',
    labels: [],
    buckets: ANSWER_SECONDS,
  },
  database_duration_seconds: {
    help: 'Single statements and whole transactions, waiting for their turn included',
    labels: ['engine', 'kind'],
    buckets: [0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10],
  },
  group_commit_batch_size: {
    help: 'Items that shared one transaction',
    labels: ['queue'],
    buckets: [1, 2, 5, 10, 25, 50, 100, 200, 500],
  },
  event_feed_lag_seconds: {
    help: 'From an event’s cause to its dispatch to the streams of this process',
    labels: [],
    buckets: ANSWER_SECONDS,
  },
} as const satisfies Record<string, HistogramSpec>
