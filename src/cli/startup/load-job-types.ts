import { type Config, parseConfig } from '../../config.ts'
import { ConfigError, ConfigReader } from '../../config-reader.ts'
import { type JobTypes, JobTypesError, parseJobTypes, parseProjectNotifications } from '../../jobs/job-types.ts'
import type { ProjectNotifications } from '../../projects/project-news.ts'
import type { CommandLine } from '../io.ts'
import { faultsOfTextSizes } from './check-texts.ts'

const DEFAULT_FILE = 'job-types.json'
const NO_FILE = '{"types":{}}'

export interface LoadedJobTypes {
  jobTypes: JobTypes
  projectNotifications: ProjectNotifications
}

/** The settings and the job types; what is wrong with either is named together. */
export function loadSettings(line: CommandLine): LoadedJobTypes & { config: Config } {
  const faults: string[] = []
  const config = collect(faults, () => parseConfig(line.env, line.readFile))
  const loaded = collect(faults, () => loadJobTypes(line))
  if (!config || !loaded) throw new ConfigError(faults)
  return { config, ...loaded }
}

/** The configured job types; without a file, only the built-in `agent`. A file that was asked for must be there. */
export function loadJobTypes(line: CommandLine): LoadedJobTypes {
  const asked = new ConfigReader(line.env, line.readFile).text('JOB_TYPES_FILE')
  const file = asked ?? DEFAULT_FILE
  try {
    return parse(line.readFile(file))
  } catch (error) {
    if (error instanceof JobTypesError) {
      throw new ConfigError([`JOB_TYPES_FILE ${file}: ${error.message.replaceAll('\n', '\n  ')}`])
    }
    const { code } = error as NodeJS.ErrnoException
    if (code === undefined) throw error
    if (code === 'ENOENT' && asked === null) return parse(NO_FILE)
    throw new ConfigError([`JOB_TYPES_FILE cannot be read (${code}): ${file}`])
  }
}

function parse(text: string): LoadedJobTypes {
  const loaded = { jobTypes: parseJobTypes(text), projectNotifications: parseProjectNotifications(text) }
  const faults = faultsOfTextSizes(loaded)
  if (faults.length > 0) throw new JobTypesError(faults)
  return loaded
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
