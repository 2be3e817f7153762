import { toJobType } from '../jobs/api/present-job.ts'
import { type PrintedJobType, printJobTypes } from '../jobs/schemas/print-types.ts'
import { readArguments } from './arguments.ts'
import { namedService } from './client/find-service.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'
import { loadJobTypes } from './startup/load-job-types.ts'

const OPTIONS = { file: { type: 'string' }, url: { type: 'string' }, key: { type: 'string' } } as const

/** Prints TypeScript types of the job types in a file, or of a running service. */
export async function types(line: CommandLine): Promise<ExitCode> {
  const { file, url, key } = readArguments(line.args, { options: OPTIONS, allowPositionals: false }).values
  if (file !== undefined && url !== undefined) throw new UsageError('types takes either --file or --url')
  if (key !== undefined && url === undefined) throw new UsageError('--key needs --url')
  const found = url === undefined ? readFileTypes(line, file) : await askService(line, { url, ...(key && { key }) })
  const source = url ?? file ?? line.env.JOB_TYPES_FILE ?? 'job-types.json'
  line.print(`// The job types of ${source}. Made by \`project-api types\`: do not edit.\n\n${printJobTypes(found)}`)
  return EXIT.ok
}

function readFileTypes(line: CommandLine, file: string | undefined): PrintedJobType[] {
  const env = file === undefined ? line.env : { ...line.env, JOB_TYPES_FILE: file }
  return [...loadJobTypes({ ...line, env }).jobTypes.values()].map(toJobType)
}

async function askService(line: CommandLine, given: { url: string; key?: string }): Promise<PrintedJobType[]> {
  const service = namedService(line, given)
  const list = await service.call<{ data?: PrintedJobType[] }>('/v1/job-types')
  if (Array.isArray(list?.data) && list.data.every(({ name }) => typeof name === 'string')) return list.data
  const message = `${service.url} does not answer with a list of job types: is it this service?`
  throw new CommandError(message, EXIT.unavailable)
}
