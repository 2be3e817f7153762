import type { BoundedPage } from '../db/bounded-page.ts'
import type { Database } from '../db/database.ts'
import { WATCHED_STATUSES } from '../jobs/job.ts'
import type { ListedJob } from '../jobs/job-row.ts'
import { findJob } from '../jobs/job-store.ts'
import { findJobPage } from '../jobs/lists/list-store.ts'
import { readWords } from './arguments.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'
import { withJobServices } from './startup/with-job-services.ts'

const PAGE = 100

/** Asks the runtime about jobs now, without waiting for the sweep. */
export async function jobs(line: CommandLine): Promise<ExitCode> {
  const [verb, ...ids] = readWords(line)
  if (verb !== 'reconcile') throw new UsageError('jobs needs the subcommand reconcile')
  return withJobServices(line, async ({ jobWorker }, { db, config }) => {
    if (config.runtime === null)
      throw new CommandError('RUNTIME_URL is missing: there is no runtime to ask', EXIT.config)
    const wanted = ids.length > 0 ? ids : await watchedIds(db)
    for (const id of wanted) {
      await jobWorker.check(id)
      const job = await findJob(db, id)
      if (!job) throw new CommandError(`There is no job ${id}`)
      line.print([id, job.status, job.error_code ?? job.last_error ?? ''].join('  ').trimEnd())
    }
  })
}

async function watchedIds(db: Database): Promise<string[]> {
  const ids: string[] = []
  for (const status of WATCHED_STATUSES) {
    let after: readonly [string] | null = null
    do {
      const wanted = { filter: { status }, summary: true }
      const page: BoundedPage<ListedJob> = await findJobPage(db, wanted, { limit: PAGE, after })
      ids.push(...page.rows.map((row) => row.id))
      const last = page.rows.at(-1)
      after = page.hasMore && last ? [last.id] : null
    } while (after !== null)
  }
  return ids
}
