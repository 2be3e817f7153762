import type { Clock } from '../core/clock.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Log } from '../core/log.ts'
import type { Meter } from '../core/metrics/meter.ts'
import type { Random } from '../core/random.ts'
import type { Database } from '../db/database.ts'
import type { PushOptOut } from '../push/push-opt-out.ts'
import type { RuntimeClient } from '../runtime/runtime-client.ts'
import type { JobTypes } from './job-types.ts'

/** What everything that attends to jobs needs. */
export interface JobContext {
  db: Database
  clock: Clock
  random: Random
  ids: IdGenerator
  log: Log
  meter?: Meter
  types: JobTypes
  pushOptOut: PushOptOut
  /** Null when none is configured: callbacks still settle, starting is refused. */
  runtime: RuntimeClient | null
  /** Where the runtime reports the end of this job's run; null when we cannot be reached. */
  callbackUrl: (job: { id: string; type: string }) => string | null
}
