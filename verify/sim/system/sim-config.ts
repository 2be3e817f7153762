import { type Config, parseConfig } from '../../../src/config.ts'
import { type JobTypes, toJobTypes } from '../../../src/jobs/job-types.ts'
import type { NodeName } from '../faults/plan.ts'
import { ISSUER } from '../outside/identity.ts'

export const RUNTIME_URL = 'http://runtime.sim'
export const RUNTIME_KEY = 'runtime-key'
export const PUBLIC_URL = 'http://api.sim'
export const WEBHOOK_SECRET = 'sim-webhook-secret'

/** One node of each variant; both share one database. */
export function configOf(node: NodeName): Config {
  const env = {
    NODE_ENV: 'test',
    API_VARIANT: node,
    ISSUER_URL: ISSUER,
    RUNTIME_URL,
    RUNTIME_API_KEY: RUNTIME_KEY,
    PUBLIC_URL,
    WEBHOOK_SECRET,
    RATE_LIMIT_UNAUTHENTICATED: '1000000',
    RATE_LIMIT_AUTHENTICATED: '1000000',
    RATE_LIMIT_SERVICE: '1000000',
  }
  return parseConfig(env, () => '')
}

const text = (title: string) => ({ title, body: '' })

/** Clients configure each run with the id of the request that asks for it. */
const configurable_schema = { properties: { asked: { type: 'string' } }, additionalProperties: false }

/** A type for each way of finding an output, types that pause and types that do not, and one whose graph does not exist. */
export const JOB_TYPES: JobTypes = toJobTypes({
  agent: { configurable_schema, assistant_id: 'agent', may_pause: true, deadline_seconds: 600 },
  report: {
    configurable_schema,
    assistant_id: 'report',
    output_key: 'report',
    usage_key: 'usage',
    may_pause: false,
    deadline_seconds: 600,
  },
  review: {
    configurable_schema,
    assistant_id: 'review',
    output_key: '/result/summary',
    may_pause: true,
    deadline_seconds: 900,
    notifications: {
      completed: text('Reviewed'),
      failed: text('Not reviewed'),
      cancelled: text('Cancelled'),
      awaiting_input: text('A question'),
    },
  },
  /** Its questions are open for a moment, and an owner has few runs at once. */
  inquiry: {
    configurable_schema,
    assistant_id: 'inquiry',
    output_key: 'report',
    usage_key: 'usage',
    deadline_seconds: 300,
    answer_within_seconds: 15,
    remind_after_seconds: 5,
    max_running_per_owner: 2,
  },
  /** Runs for long; its deadline leaves the sweep many checks. */
  archive: {
    configurable_schema,
    assistant_id: 'archive',
    output_key: 'report',
    usage_key: 'usage',
    deadline_seconds: 3 * 3600,
  },
  ghost: { configurable_schema, assistant_id: 'ghost', output_key: 'nothing', deadline_seconds: 240 },
})

/** Of the types without runs of an hour. */
export const MAX_DEADLINE_MS = 900_000
export const LONG_DEADLINE_MS = 3 * 3_600_000
