import { Ajv } from 'ajv'
import { type Static, Type } from 'typebox'
import { type Config, parseConfig } from '../../config.ts'
import { ConfigError, ConfigReader } from '../../config-reader.ts'
import { isJsonObject } from '../../core/json.ts'
import {
  faultsOfJobTypes,
  faultsOfOddNames,
  type JobTypes,
  jobTypesSchema,
  linkOf,
  toJobTypes,
} from '../../jobs/job-types.ts'
import { type ProjectNotifications, projectNotificationsSchema } from '../../projects/project-notifications.ts'
import { faultsOfTexts, type NotificationText } from '../../push/notification-text.ts'
import { PUSH_PROVIDERS } from '../../push/provider-registry.ts'
import { SETTINGS } from '../../settings.ts'
import type { CommandLine } from '../io.ts'

const NO_FILE = '{"types":{}}'

const fileSchema = Type.Object(
  { types: jobTypesSchema, project_notifications: Type.Optional(projectNotificationsSchema) },
  { additionalProperties: false },
)

interface LoadedJobTypes {
  jobTypes: JobTypes
  projectNotifications: ProjectNotifications
}

export class JobTypesError extends Error {
  constructor(faults: readonly string[]) {
    super(`The job types have faults:\n${faults.map((fault) => `  ${fault}`).join('\n')}`)
    this.name = 'JobTypesError'
  }
}

/** The settings and the job types; the faults of both are reported together. */
export function loadSettings(line: Pick<CommandLine, 'env' | 'readFile'>): LoadedJobTypes & { config: Config } {
  const faults: string[] = []
  const config = collect(faults, () => parseConfig(line.env, line.readFile, { toServe: true }))
  const loaded = collect(faults, () => loadJobTypes(line))
  if (!config || !loaded) throw new ConfigError(faults)
  return { config, ...loaded }
}

/** The configured job types; without a file, only the built-in `agent`. A file named by a setting must exist. */
export function loadJobTypes(line: Pick<CommandLine, 'env' | 'readFile'>): LoadedJobTypes {
  const asked = new ConfigReader(line.env, line.readFile).text(SETTINGS.jobTypesFile.name)
  const file = asked ?? SETTINGS.jobTypesFile.default
  try {
    return parseJobTypesFile(line.readFile(file))
  } catch (error) {
    if (error instanceof JobTypesError) {
      throw new ConfigError([`JOB_TYPES_FILE ${file}: ${error.message.replaceAll('\n', '\n  ')}`])
    }
    const { code } = error as NodeJS.ErrnoException
    if (code === undefined) throw error
    if (code === 'ENOENT' && asked === null) return parseJobTypesFile(NO_FILE)
    throw new ConfigError([`JOB_TYPES_FILE cannot be read (${code}): ${file}`])
  }
}

/** Reads the file's text; a `JobTypesError` names every fault in it. */
export function parseJobTypesFile(text: string): LoadedJobTypes {
  const document = parseJson(text)
  if (isJsonObject(document)) refuse(faultsOfOddNames(document.types))
  refuse(faultsOfSchema(document))
  const { types, project_notifications: projectNotifications = {} } = document as Static<typeof fileSchema>
  refuse([...faultsOfTexts('/project_notifications', projectNotifications), ...faultsOfJobTypes(types)])
  const loaded = { jobTypes: toJobTypes(types), projectNotifications }
  refuse(faultsOfTextSizes(loaded))
  return loaded
}

/** Every fault with its path: `/types/report must have required property 'assistant_id'`. */
function faultsOfSchema(document: unknown): string[] {
  // TypeScript has checked the schema; checking it again would add about 60 ms to the startup.
  const validate = new Ajv({ allErrors: true, meta: false, validateSchema: false }).compile(fileSchema)
  validate(document)
  return (validate.errors ?? []).map(({ instancePath, message }) => `${instancePath || '/'} ${message}`)
}

function refuse(faults: readonly string[]): void {
  if (faults.length > 0) throw new JobTypesError(faults)
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new JobTypesError([`it is not valid JSON: ${(error as Error).message}`])
  }
}

function collect<T>(faults: string[], load: () => T): T | undefined {
  try {
    return load()
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    faults.push(...error.faults)
    return undefined
  }
}

/** All our ids have this length. */
const ID = 'ntf_00000000000000000000000000'
/** A UUID. */
const LONGEST_THREAD = '00000000-0000-0000-0000-000000000000'
/** A project's name has at most 200 characters, and a control character takes six bytes. */
const LONGEST_NAME = '\u0001'.repeat(200)

/** The configured texts that are too long for a push together with their data: every delivery would fail. */
function faultsOfTextSizes(texts: { jobTypes: JobTypes; projectNotifications: ProjectNotifications }): string[] {
  const faults: string[] = []
  const check = (place: string, text: NotificationText, data: Record<string, string>, link: string | null) => {
    for (const { limits, payloadBytesOf } of PUSH_PROVIDERS) {
      const bytes = payloadBytesOf({ ...text, data, link, tag: ID })
      if (bytes <= limits.payloadBytes) continue
      faults.push(`${place} makes a push of ${bytes} bytes, over ${limits.payloadBytes}`)
    }
  }
  for (const [type, jobType] of texts.jobTypes) {
    const { notifications } = jobType
    const link = linkOf(jobType, { id: ID, project_id: ID, thread_id: LONGEST_THREAD })
    for (const [status, text] of Object.entries(notifications)) {
      check(`/types/${type}/notifications/${status}`, text, { job_id: ID, type, status }, link)
    }
  }
  for (const [change, text] of Object.entries(texts.projectNotifications)) {
    check(`/project_notifications/${change}`, text, { project_id: ID, name: LONGEST_NAME }, null)
  }
  return faults
}
