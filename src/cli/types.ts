import { systemClock } from '../core/clock.ts'
import { reasonOf } from '../core/errors.ts'
import { exchange, type HttpAnswer } from '../core/exchange.ts'
import { isJsonObject } from '../core/json.ts'
import { toJobType } from '../jobs/api/present-job.ts'
import { type PrintedJobType, printJobTypes } from '../jobs/schemas/print-types.ts'
import { readArguments } from './arguments.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'
import { loadJobTypes } from './startup/load-job-types.ts'

const TIMEOUT_MS = 10_000
const MAX_BYTES = 16 * 1024 * 1024
const OPTIONS = { file: { type: 'string' }, url: { type: 'string' }, key: { type: 'string' } } as const

/** Prints TypeScript types of the job types in a file, or of a running service. */
export async function types(line: CommandLine): Promise<ExitCode> {
  const { file, url, key } = readArguments(line.args, { options: OPTIONS, allowPositionals: false }).values
  if (file !== undefined && url !== undefined) throw new UsageError('types takes either --file or --url')
  if (key !== undefined && url === undefined) throw new UsageError('--key needs --url')
  const found = url === undefined ? readFileTypes(line, file) : await askService(line, url, key)
  const source = url ?? file ?? line.env.JOB_TYPES_FILE ?? 'job-types.json'
  line.print(`// The job types of ${source}. Made by \`project-api types\`: do not edit.\n\n${printJobTypes(found)}`)
  return EXIT.ok
}

function readFileTypes(line: CommandLine, file: string | undefined): PrintedJobType[] {
  const env = file === undefined ? line.env : { ...line.env, JOB_TYPES_FILE: file }
  return [...loadJobTypes({ ...line, env }).jobTypes.values()].map(toJobType)
}

/** The key may come from the environment, where other users of the machine cannot read it. */
async function askService(line: CommandLine, url: string, given: string | undefined): Promise<PrintedJobType[]> {
  const key = given ?? line.env.PROJECT_API_KEY?.trim()
  if (!key) throw new UsageError('--url needs a service key: --key KEY, or PROJECT_API_KEY in the environment')
  if (!/^[\x21-\x7e]+$/.test(key)) throw new UsageError('the key must be one word of ASCII characters')
  if (!/^https?:\/\//.test(url) || !URL.canParse(url)) throw new UsageError('--url must start with http:// or https://')
  const answer = await ask(`${url.replace(/\/+$/, '')}/v1/job-types`, key, line)
  if (answer.status !== 200) {
    throw new CommandError(`${url} answered ${answer.status}: is the key valid?`, EXIT.unavailable)
  }
  return readList(answer.text) ?? notOurs(url)
}

async function ask(url: string, key: string, { stopping }: CommandLine): Promise<HttpAnswer> {
  const headers = { 'x-api-key': key }
  const options = { fetch, clock: systemClock, url, headers, timeoutMs: TIMEOUT_MS, maxBytes: MAX_BYTES }
  return exchange({ ...options, signal: stopping }).catch((error: unknown) => {
    throw new CommandError(`${url} cannot be read: ${reasonOf(error)}`, EXIT.unavailable, { cause: error })
  })
}

function readList(text: string): PrintedJobType[] | null {
  try {
    const list: unknown = JSON.parse(text)
    const data = isJsonObject(list) ? list.data : null
    if (!Array.isArray(data)) return null
    const isType = (one: unknown) => isJsonObject(one) && typeof one.name === 'string'
    return data.every(isType) ? (data as unknown as PrintedJobType[]) : null
  } catch {
    return null
  }
}

function notOurs(url: string): never {
  throw new CommandError(`${url} does not answer with a list of job types: is it this service?`, EXIT.unavailable)
}
