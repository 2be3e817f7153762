import { parseConfig } from '../config.ts'
import { type CommandLine, EXIT, type ExitCode, untilStopping } from './io.ts'
import { loadSettings } from './startup/load-job-types.ts'
import { openMigratedDatabase } from './startup/open-database.ts'
import { runService } from './startup/run-service.ts'

/** Runs the service until SIGTERM or SIGINT, then stops it without losing a request. */
export async function serve(line: CommandLine): Promise<ExitCode> {
  const { config, ...loaded } = loadSettings(line)
  const opened = await openMigratedDatabase(config.database)
  const service = await runService(config, opened, loaded)
  line.onReload(() => void service.reload(() => parseConfig(line.env, line.readFile)))
  await untilStopping(line)
  // SIGINT comes from a keyboard. SIGTERM means a deployment, where the load balancer needs time to notice.
  await service.stop({ lameDuck: line.stopping.reason === 'SIGTERM' })
  return EXIT.ok
}
