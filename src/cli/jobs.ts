import { writeJson } from '../core/json/json-text.ts'
import type { Job } from '../jobs/api/job-schema.ts'
import { JOB_STATUSES } from '../jobs/job.ts'
import type { BulkOperation } from '../operations/operation-schema.ts'
import { readArguments, readLimit } from './arguments.ts'
import { findService, SERVICE_OPTIONS } from './client/find-service.ts'
import { followOperation, readsFrom } from './client/follow-operation.ts'
import { printList } from './client/print-list.ts'
import type { ServiceClient } from './client/service-client.ts'
import { tailEvents } from './client/tail-events.ts'
import { type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'

const FILTERS = {
  status: { type: 'string' },
  type: { type: 'string' },
  user: { type: 'string' },
  limit: { type: 'string' },
} as const
type Filters = { [Name in keyof typeof FILTERS]?: string }
const AGAIN = { again: { type: 'boolean' } } as const

interface Context {
  line: CommandLine
  service: ServiceClient
  ids: readonly string[]
  filters: Filters
  json: boolean
  /** Of a retry: repeat also jobs that were retried already. */
  again: boolean
}

/** `ids`: how many the verb takes. */
const VERBS: Record<string, { ids: 'none' | 'one' | 'some' | 'any'; run: (context: Context) => Promise<void> }> = {
  list: { ids: 'none', run: list },
  get: { ids: 'one', run: get },
  cancel: { ids: 'some', run: (context) => change(context, 'cancel') },
  retry: { ids: 'some', run: (context) => change(context, 'retry') },
  tail: { ids: 'none', run: tailEvents },
  reconcile: { ids: 'any', run: (context) => (context.ids.length > 0 ? change(context, 'check') : checkAll(context)) },
}

/** An operation needs a filter. Every job is later than this. */
const EVERY_JOB = { created_after: '1970-01-01T00:00:00Z' }

/** Lists, shows, cancels, repeats and follows jobs, and asks the runtime about them. */
export async function jobs(line: CommandLine): Promise<ExitCode> {
  const options = { ...SERVICE_OPTIONS, ...FILTERS, ...AGAIN }
  const { values, positionals } = readArguments(line.args, { options, allowPositionals: true })
  const { json = false, again = false, url, key, ...filters } = values
  const [verb = '', ...ids] = positionals
  const command = Object.hasOwn(VERBS, verb) ? VERBS[verb] : undefined
  if (!command) throw new UsageError(`jobs needs a subcommand: ${Object.keys(VERBS).join(', ')}`)
  checkIds(verb, command.ids, ids)
  checkFilters(verb, filters)
  if (again && verb !== 'retry') throw new UsageError(`jobs ${verb} takes no --again`)
  const service = await findService(line, { ...(url && { url }), ...(key && { key }) })
  await command.run({ line, service, ids, filters, json, again })
  return EXIT.ok
}

function checkIds(verb: string, wanted: 'none' | 'one' | 'some' | 'any', { length }: readonly string[]): void {
  if (wanted === 'none' && length > 0) throw new UsageError(`jobs ${verb} takes no id`)
  if (wanted === 'one' && length !== 1) throw new UsageError(`jobs ${verb} needs one id`)
  if (wanted === 'some' && length === 0) throw new UsageError(`jobs ${verb} needs at least one id`)
}

function checkFilters(verb: string, filters: Filters): void {
  const [name] = Object.keys(filters)
  if (verb !== 'list' && name !== undefined) throw new UsageError(`jobs ${verb} takes no --${name}`)
  const { status } = filters
  if (status !== undefined && !JOB_STATUSES.some((one) => one === status)) {
    throw new UsageError(`--status must be one of ${JOB_STATUSES.join(', ')}`)
  }
  readLimit(filters.limit)
}

async function list({ line, service, filters, json }: Context): Promise<void> {
  const { status, type, user: created_by } = filters
  const limit = readLimit(filters.limit)
  const found = service.list<Job>('/jobs', { status, type, created_by, fields: 'summary', limit: `${limit}` })
  await printList(line, found, { json, limit, show, none: 'No jobs' })
}

async function get({ line, service, ids, json }: Context): Promise<void> {
  const job = await service.call<Job>(pathOf(ids[0] ?? ''))
  if (json) return line.print(writeJson(job))
  for (const [name, value] of Object.entries(job)) {
    line.print(`${name.padEnd(16)} ${typeof value === 'string' ? value : writeJson(value)}`)
  }
}

/** Does the same to each job, and prints the job that the service answers with. */
async function change(
  { line, service, ids, json, again }: Context,
  action: 'cancel' | 'retry' | 'check',
): Promise<void> {
  for (const id of ids) {
    const body = again ? { body: { again } } : {}
    const job = await service.call<Job>(`${pathOf(id)}/${action}`, { method: 'POST', ...body })
    const { input: _input, output: _output, ...summary } = job
    line.print(json ? writeJson(summary) : show(job))
  }
}

/** The service checks the jobs in the background, also when the command is interrupted. */
async function checkAll({ line, service, json }: Context): Promise<void> {
  const body = { action: 'check', filter: EVERY_JOB }
  const started = await service.call<BulkOperation>('/v1/operations', { method: 'POST', body })
  const showProgress = ({ id, done, failed, total }: BulkOperation) =>
    `${done + failed} of ${total} checked, ${failed} failed  ${id}`
  await followOperation(line, started, { ...readsFrom(service, started.id), show: json ? null : showProgress })
}

function pathOf(id: string): string {
  return `/jobs/${encodeURIComponent(id)}`
}

function show({ id, status, type, created_at, created_by, error, reconcile }: Job): string {
  const trouble = error?.code ?? reconcile.last_error ?? ''
  return [id, status, type, created_at, created_by ?? '–', trouble].join('  ').trimEnd()
}
