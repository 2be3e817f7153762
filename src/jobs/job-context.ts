import type { Clock } from '../core/clock.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Log } from '../core/log.ts'
import type { Meter } from '../core/metrics/meter.ts'
import type { Random } from '../core/random.ts'
import type { Tracer } from '../core/tracing.ts'
import type { Database, Queryable, Transaction } from '../db/database.ts'
import type { DeletedEvent } from '../events/event-store.ts'
import type { PushOptOut } from '../push/push-opt-out.ts'
import type { DeletedMark } from '../push/trim-notifications.ts'
import type { RuntimeClient } from '../runtime/runtime-client.ts'
import type { CallbackRow } from './callback-store.ts'
import type { JobTypes } from './job-types.ts'

/** The dependencies of the code that creates, checks and ends jobs. */
export interface JobContext {
  db: Database
  clock: Clock
  random: Random
  ids: IdGenerator
  log: Log
  meter?: Meter
  tracer?: Tracer
  types: JobTypes
  pushOptOut: PushOptOut
  /** Why the service would refuse this user now; null: it would not. */
  findRefusal: (db: Queryable, sub: string) => Promise<'user_blocked' | 'user_erased' | null>
  /** How many jobs a caller without a limit of its own may start per month; null: any number. */
  usageLimitRuns: number | null
  /** The statistics, which count a record before it is deleted with its job. */
  countDeleted?: CountDeleted
  /** Null when none is configured. Callbacks still settle jobs then, but no job can be started. */
  runtime: RuntimeClient | null
  /** How the runtime learns the id of a user or a service account; null: it learns no id. */
  identify: ((id: string) => string) | null
  /** Where the runtime posts the end of this job's run. Null when this service has no public URL. */
  callbackUrl: (job: { id: string; type: string; start_attempts: number }) => string | null
}

/** Why the service itself cancelled a job, as its timeline says. */
export type CancelReason = 'user_blocked' | 'user_erased' | 'usage_limit_exceeded'

/** Records that are deleted with their job, as the statistics count them. */
export interface DeletedRecords {
  events?: readonly DeletedEvent[]
  callbacks?: readonly Pick<CallbackRow, 'id' | 'outcome' | 'received_at'>[]
  marks?: readonly DeletedMark[]
}

/** Counts what the transaction deletes, if it was not counted yet. */
export type CountDeleted = (tx: Transaction, deleted: DeletedRecords) => Promise<void>
