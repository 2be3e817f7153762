import { CallbackAuthenticity } from '../auth/callback-authenticity.ts'
import type { Config } from '../config.ts'
import { systemClock } from '../core/clock.ts'
import { IdGenerator } from '../core/ids.ts'
import { silentLog } from '../core/log.ts'
import { systemRandom } from '../core/random.ts'
import type { BoundedPage } from '../db/bounded-page.ts'
import type { Database } from '../db/database.ts'
import { replayStoredCallback } from '../jobs/callbacks/replay.ts'
import { WATCHED_STATUSES } from '../jobs/job.ts'
import type { JobRow } from '../jobs/job-row.ts'
import { createJobServices, type JobServices } from '../jobs/job-services.ts'
import { findJob, findJobPage } from '../jobs/job-store.ts'
import { hasPushTurnedOff } from '../users/user-store.ts'
import { readArguments } from './arguments.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'
import { loadSettings } from './startup/load-job-types.ts'
import { openMigratedDatabase } from './startup/open-database.ts'

const PAGE = 100

/** Asks the runtime about jobs now, without waiting for the sweep. */
export async function jobs(line: CommandLine): Promise<ExitCode> {
  const [verb, ...ids] = readWords(line)
  if (verb !== 'reconcile') throw new UsageError('jobs needs to be told to reconcile')
  return withJobServices(line, async ({ jobWorker }, { db, config }) => {
    if (config.runtime === null)
      throw new CommandError('RUNTIME_URL is missing: there is no runtime to ask', EXIT.config)
    const wanted = ids.length > 0 ? ids : await watchedIds(db)
    for (const id of wanted) {
      await jobWorker.check(id, 'read', line.stopping)
      const job = await findJob(db, id)
      if (!job) throw new CommandError(`There is no job ${id}`)
      line.print([id, job.status, job.error_code ?? job.last_error ?? ''].join('  ').trimEnd())
    }
  })
}

/** Processes stored callbacks again. */
export async function callbacks(line: CommandLine): Promise<ExitCode> {
  const [verb, ...ids] = readWords(line)
  if (verb !== 'replay' || ids.length === 0) throw new UsageError('callbacks needs to be told to replay, and which')
  return withJobServices(line, async ({ jobContext, intake, jobWorker }) => {
    for (const id of ids) {
      const { outcome, jobId } = await replayStoredCallback(jobContext, intake, id)
      line.print([id, outcome, jobId].join('  '))
    }
    await jobWorker.idle()
  })
}

function readWords(line: CommandLine): readonly string[] {
  return readArguments(line.args, { options: {}, allowPositionals: true }).positionals
}

async function withJobServices(
  line: CommandLine,
  work: (services: JobServices, world: { db: Database; config: Config }) => Promise<void>,
): Promise<ExitCode> {
  const { config, jobTypes: types } = loadSettings(line)
  const opened = await openMigratedDatabase(config.database)
  const services = createJobServices({
    db: opened.db,
    clock: systemClock,
    random: systemRandom,
    ids: new IdGenerator(systemClock, systemRandom),
    log: silentLog,
    types,
    pushOptOut: hasPushTurnedOff,
    fetch,
    runtime: config.runtime,
    publicUrl: config.publicUrl,
    usageLimitRuns: config.usageLimitRuns,
    callbackAuthenticity: new CallbackAuthenticity(config.webhookSecrets, systemClock),
    sweeps: false,
  })
  try {
    await work(services, { db: opened.db, config })
    return EXIT.ok
  } finally {
    await services.close()
    await opened.close()
  }
}

async function watchedIds(db: Database): Promise<string[]> {
  const ids: string[] = []
  for (const status of WATCHED_STATUSES) {
    let after: readonly [string] | null = null
    do {
      const page: BoundedPage<JobRow> = await findJobPage(db, { createdBy: null, status }, { limit: PAGE, after })
      ids.push(...page.rows.map((row) => row.id))
      const last = page.rows.at(-1)
      after = page.hasMore && last ? [last.id] : null
    } while (after !== null)
  }
  return ids
}
