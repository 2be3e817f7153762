import type { Config } from '../config.ts'
import { type JobTypes, JobTypesError, parseJobTypes, parseProjectNotifications } from '../jobs/job-types.ts'
import type { ProjectNotifications } from '../projects/project-news.ts'
import { CommandError, type CommandLine, EXIT } from './io.ts'

const NO_FILE = '{"types":{}}'

export interface LoadedJobTypes {
  jobTypes: JobTypes
  projectNotifications: ProjectNotifications
}

/** The configured job types; without a file, only the built-in `agent`. A file that was asked for must be there. */
export function loadJobTypes(line: CommandLine, config: Config): LoadedJobTypes {
  const text = readOrDefault(line, config)
  try {
    return { jobTypes: parseJobTypes(text), projectNotifications: parseProjectNotifications(text) }
  } catch (error) {
    if (!(error instanceof JobTypesError)) throw error
    throw new CommandError(`JOB_TYPES_FILE ${config.jobTypesFile}: ${error.message}`, EXIT.config, { cause: error })
  }
}

function readOrDefault(line: CommandLine, config: Config): string {
  try {
    return line.readFile(config.jobTypesFile)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'ENOENT' && !line.env.JOB_TYPES_FILE) return NO_FILE
    throw new CommandError(`JOB_TYPES_FILE cannot be read (${code}): ${config.jobTypesFile}`, EXIT.config)
  }
}
