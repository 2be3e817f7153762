import { recordAudit } from '../audit/record-audit.ts'
import { systemClock, toRfc3339 } from '../core/clock.ts'
import { writeJson } from '../core/json/json-text.ts'
import type { Database } from '../db/database.ts'
import { findHead, readEvents } from '../events/event-store.ts'
import { repeatJob } from '../jobs/actions/retry-job.ts'
import { toJob } from '../jobs/api/present-job.ts'
import { JOB_STATUSES, UNFINISHED_STATUSES } from '../jobs/job.ts'
import type { ListedJob } from '../jobs/job-row.ts'
import type { JobServices } from '../jobs/job-services.ts'
import { findJob } from '../jobs/job-store.ts'
import { jobIdPages } from '../jobs/lists/id-pages.ts'
import { findJobPage } from '../jobs/lists/list-store.ts'
import { askerWithoutScopes } from '../jobs/runs/caller.ts'
import { readArguments, readLimit } from './arguments.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'
import { commandLineOrigin } from './startup/command-line-origin.ts'
import { loadSettings } from './startup/load-job-types.ts'
import { openToRead } from './startup/open-database.ts'
import { withJobServices } from './startup/with-job-services.ts'

const OPTIONS = {
  json: { type: 'boolean' },
  status: { type: 'string' },
  type: { type: 'string' },
  user: { type: 'string' },
  limit: { type: 'string' },
} as const
type Options = { json?: boolean; status?: string; type?: string; user?: string; limit?: string }

interface ReadContext {
  line: CommandLine
  db: Database
  ids: readonly string[]
  options: Options
}

interface Context extends ReadContext {
  services: JobServices
}

/** `read` also works beside a running service on the embedded database; `change` does not. `ids`: how many it takes. */
type Verb = { ids: 'none' | 'one' | 'some' | 'any' } & (
  | { read: (c: ReadContext) => Promise<void> }
  | { change: (c: Context) => Promise<void>; needsRuntime?: true }
)

const VERBS: Record<string, Verb> = {
  list: { ids: 'none', read: list },
  get: { ids: 'one', read: get },
  cancel: { ids: 'some', change: cancel },
  retry: { ids: 'some', needsRuntime: true, change: retry },
  tail: { ids: 'none', read: tail },
  reconcile: { ids: 'any', needsRuntime: true, change: reconcile },
}

const TAIL_EVERY_MS = 500
/** The object of the audit entry when no job is named. */
const ALL_UNFINISHED = '*'

/** Lists, shows, cancels, repeats and follows jobs, and asks the runtime about them. */
export async function jobs(line: CommandLine): Promise<ExitCode> {
  const { values: options, positionals } = readArguments(line.args, { options: OPTIONS, allowPositionals: true })
  const [verb = '', ...ids] = positionals
  const command = Object.hasOwn(VERBS, verb) ? VERBS[verb] : undefined
  if (!command) throw new UsageError(`jobs needs a subcommand: ${Object.keys(VERBS).join(', ')}`)
  checkIds(verb, command.ids, ids)
  checkOptions(verb, options)
  if ('read' in command) return readOnly(line, (db) => command.read({ line, db, ids, options }))
  return withJobServices(line, async (services, { db, config }) => {
    if (command.needsRuntime && config.runtime === null) {
      throw new CommandError('RUNTIME_URL is missing: there is no runtime to ask', EXIT.config)
    }
    await command.change({ line, services, db, ids, options })
  })
}

async function readOnly(line: CommandLine, work: (db: Database) => Promise<void>): Promise<ExitCode> {
  const { db, close } = await openToRead(loadSettings(line).config.database)
  try {
    await work(db)
    return EXIT.ok
  } finally {
    await close()
  }
}

function checkIds(verb: string, wanted: 'none' | 'one' | 'some' | 'any', { length }: readonly string[]): void {
  if (wanted === 'none' && length > 0) throw new UsageError(`jobs ${verb} takes no id`)
  if (wanted === 'one' && length !== 1) throw new UsageError(`jobs ${verb} needs one id`)
  if (wanted === 'some' && length === 0) throw new UsageError(`jobs ${verb} needs at least one id`)
}

function checkOptions(verb: string, { json: _json, ...filters }: Options): void {
  const [name] = Object.keys(filters)
  if (verb !== 'list' && name !== undefined) throw new UsageError(`jobs ${verb} takes no --${name}`)
  const { status } = filters
  if (status !== undefined && !JOB_STATUSES.some((one) => one === status)) {
    throw new UsageError(`--status must be one of ${JOB_STATUSES.join(', ')}`)
  }
  readLimit(filters.limit)
}

async function list({ line, db, options }: ReadContext): Promise<void> {
  const { status, type, user: createdBy, limit } = options
  const filter = { ...(status && { status }), ...(type && { type }), ...(createdBy && { createdBy }) }
  const { rows } = await findJobPage(db, { filter, summary: true }, { limit: readLimit(limit), after: null })
  for (const row of rows) print(line, options, row)
}

async function get({ line, db, ids, options }: ReadContext): Promise<void> {
  const job = await jobOrFail(db, ids[0] ?? '')
  if (options.json) line.print(writeJson(toJob(job)))
  else for (const [name, value] of Object.entries(toJob(job))) line.print(`${name.padEnd(16)} ${shown(value)}`)
}

async function cancel({ line, services, db, ids, options }: Context): Promise<void> {
  for (const id of ids) {
    await services.jobs.cancel(id, commandLineOrigin())
    // Asks the runtime to stop the run.
    await services.jobWorker.check(id)
    print(line, options, await jobOrFail(db, id))
  }
}

async function retry({ line, services, db, ids, options }: Context): Promise<void> {
  const by = commandLineOrigin()
  for (const id of ids) {
    const { job, begin } = await db.transaction((tx) =>
      repeatJob(tx, services, { id, asker: askerWithoutScopes(by.actor), by, byAdmin: true }),
    )
    begin()
    await services.jobWorker.idle()
    print(line, options, await jobOrFail(db, job.id))
  }
}

/** Prints the events of jobs from now on, until it is interrupted. */
async function tail({ line, db, options }: ReadContext): Promise<void> {
  for (let after = (await findHead(db)).seq; !line.stopping.aborted; ) {
    const { seq: upTo } = await findHead(db)
    const events = await readEvents(db, { after, upTo, filter: {}, limit: 500 })
    for (const { job_id, type, data, created_at } of events) {
      if (job_id === null) continue
      const { status, settled_by } = JSON.parse(data) as { status: string; settled_by: string | null }
      const at = toRfc3339(created_at)
      if (options.json) line.print(JSON.stringify({ at, type, job_id, status, settled_by }))
      else line.print([at, job_id, type, status, settled_by ?? ''].join('  ').trimEnd())
    }
    after = events.length === 500 ? (events.at(-1)?.seq ?? upTo) : Math.max(after, upTo)
    if (events.length < 500) await systemClock.sleep(TAIL_EVERY_MS, line.stopping)
  }
}

async function reconcile({ line, services, db, ids, options }: Context): Promise<void> {
  const { jobWorker, jobContext } = services
  const by = commandLineOrigin()
  const wanted = ids.length > 0 ? ids : await unfinishedIds(db)
  // One entry for each id that the operator named, or one for all jobs together.
  for (const id of ids.length > 0 ? ids : [ALL_UNFINISHED]) {
    const checked = { by, action: 'job.checked', object: { kind: 'job', id } } as const
    await db.transaction((tx) => recordAudit(tx, jobContext, checked))
  }
  // Jobs that the operator did not name may be deleted meanwhile.
  const read = ids.length > 0 ? jobOrFail : findJob
  let checked = 0
  let changed = 0
  for (const id of wanted) {
    const before = await read(db, id)
    if (before) await jobWorker.check(id)
    const job = await read(db, id)
    if (!before || !job) continue
    checked += 1
    if (job.status !== before.status) changed += 1
    if (options.json) print(line, options, job)
    else line.print([id, whatHappened(before, job), job.error_code ?? job.last_error ?? ''].join('  ').trimEnd())
  }
  if (!options.json) line.print(`${checked} checked, ${changed} changed`)
}

function whatHappened(before: ListedJob, job: ListedJob): string {
  if (job.status !== before.status) return `${before.status} → ${job.status}`
  if (!UNFINISHED_STATUSES.some((status) => status === job.status)) return `${job.status}, nothing to check`
  const wasChecked = toJob(job).reconcile.checked_at !== toJob(before).reconcile.checked_at
  return `${job.status}, ${wasChecked ? 'unchanged' : 'not checked: another process is checking it'}`
}

async function unfinishedIds(db: Database): Promise<string[]> {
  const ids: string[] = []
  for (const status of UNFINISHED_STATUSES) for await (const page of jobIdPages(db, { status })) ids.push(...page)
  return ids
}

async function jobOrFail(db: Database, id: string): Promise<ListedJob> {
  const job = await findJob(db, id)
  if (!job) throw new CommandError(`There is no job ${id}`)
  return job
}

function print(line: CommandLine, { json }: Options, row: ListedJob): void {
  const { input: _input, output: _output, ...job } = toJob(row)
  if (json) return line.print(writeJson(job))
  const words = [job.id, job.status, job.type, job.created_at, job.created_by ?? '–', job.error?.code ?? '']
  line.print(words.join('  ').trimEnd())
}

function shown(value: unknown): string {
  return typeof value === 'string' ? value : writeJson(value)
}
