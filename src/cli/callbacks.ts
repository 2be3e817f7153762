import { replayStoredCallback } from '../jobs/callbacks/replay.ts'
import { readWords } from './arguments.ts'
import { type CommandLine, type ExitCode, UsageError } from './io.ts'
import { commandLineOrigin } from './startup/command-line-origin.ts'
import { withJobServices } from './startup/with-job-services.ts'

/** Processes stored callbacks again. */
export async function callbacks(line: CommandLine): Promise<ExitCode> {
  const [verb, ...ids] = readWords(line)
  if (verb !== 'replay' || ids.length === 0)
    throw new UsageError('callbacks needs the subcommand replay and at least one id')
  return withJobServices(line, async ({ jobContext, intake, jobWorker }) => {
    for (const id of ids) {
      const { outcome, jobId } = await replayStoredCallback(jobContext, intake, { id, by: commandLineOrigin() })
      line.print([id, outcome, jobId].join('  '))
    }
    await jobWorker.idle()
  })
}
