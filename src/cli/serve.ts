import { type CommandLine, EXIT, type ExitCode } from './io.ts'
import { loadSettings } from './startup/load-job-types.ts'
import { openMigratedDatabase } from './startup/open-database.ts'
import { runService } from './startup/run-service.ts'

/** Production: runs until it is told to stop, and then leaves no request unanswered. */
export async function serve(line: CommandLine): Promise<ExitCode> {
  const { config, ...loaded } = loadSettings(line)
  const opened = await openMigratedDatabase(config.database)
  const service = await runService(config, opened, loaded)
  await stopSignal(line.stopping)
  // Somebody at a keyboard has no load balancer to wait for.
  await service.stop({ lameDuck: line.stopping.reason === 'SIGTERM' })
  return EXIT.ok
}

export function stopSignal(stopping: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (stopping.aborted) resolve()
    else stopping.addEventListener('abort', () => resolve(), { once: true })
  })
}
