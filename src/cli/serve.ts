import { parseConfig } from '../config.ts'
import { type CommandLine, EXIT, type ExitCode, untilStopping } from './io.ts'
import { loadSettings } from './startup/load-job-types.ts'
import { openMigratedDatabase } from './startup/open-database.ts'
import { type RunningService, runService } from './startup/run-service.ts'

/** Runs the service until SIGTERM or SIGINT, then stops it without losing a request. */
export async function serve(line: CommandLine): Promise<ExitCode> {
  let service: RunningService | undefined
  let isHungUp = false
  const reload = () => service?.reload(() => parseConfig(line.env, line.readFile))
  // Before the start, which may take long: without a listener, SIGHUP ends the process.
  line.onHangUp(() => {
    isHungUp = true
    void reload()
  })
  const { config, ...loaded } = loadSettings(line)
  const opened = await openMigratedDatabase(config.database)
  service = await runService(config, opened, loaded)
  if (isHungUp) await reload()
  await untilStopping(line)
  // SIGINT comes from a keyboard. SIGTERM means a deployment, where the load balancer needs time to notice.
  await service.stop({ lameDuck: line.stopping.reason === 'SIGTERM' })
  return EXIT.ok
}
