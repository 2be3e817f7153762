import { CallbackAuthenticity } from '../../auth/callback-authenticity.ts'
import type { Config } from '../../config.ts'
import { systemClock } from '../../core/clock.ts'
import { IdGenerator } from '../../core/ids.ts'
import { silentLog } from '../../core/log.ts'
import { systemRandom } from '../../core/random.ts'
import type { Database } from '../../db/database.ts'
import { Node } from '../../db/nodes/node.ts'
import { createJobServices, type JobServices } from '../../jobs/job-services.ts'
import { findRefusal } from '../../users/user-state-store.ts'
import { hasPushTurnedOff } from '../../users/user-store.ts'
import { type CommandLine, EXIT, type ExitCode } from '../io.ts'
import { loadSettings } from './load-job-types.ts'
import { openMigratedDatabase } from './open-database.ts'

/** Runs a command with the job services but without their sweep: only the jobs that the command names are processed. */
export async function withJobServices(
  line: CommandLine,
  work: (services: JobServices, opened: { db: Database; config: Config; node: Node }) => Promise<void>,
): Promise<ExitCode> {
  const { config, jobTypes: types } = loadSettings(line)
  const opened = await openMigratedDatabase(config.database)
  const node = await Node.start({ db: opened.db, clock: systemClock, random: systemRandom, log: silentLog })
  const { clock } = node
  const services = createJobServices({
    db: opened.db,
    node,
    clock,
    random: systemRandom,
    ids: new IdGenerator(clock, systemRandom),
    log: silentLog,
    types,
    pushOptOut: hasPushTurnedOff,
    findRefusal,
    fetch,
    runtime: config.runtime,
    runtimeIdentity: config.runtimeIdentity,
    publicUrl: config.publicUrl,
    usageLimitRuns: config.usageLimitRuns,
    maxUnfinishedJobs: config.maxUnfinishedJobs,
    callbackAuthenticity: new CallbackAuthenticity(config.webhookSecrets, clock),
    sweeps: false,
  })
  try {
    await work(services, { db: opened.db, config, node })
    return EXIT.ok
  } finally {
    await services.close()
    await node.close()
    await opened.close()
  }
}
