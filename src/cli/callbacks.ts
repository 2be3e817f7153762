import { readArguments } from './arguments.ts'
import { findService, SERVICE_OPTIONS } from './client/find-service.ts'
import { type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'

/** Processes stored callbacks again. */
export async function callbacks(line: CommandLine): Promise<ExitCode> {
  const { values, positionals } = readArguments(line.args, { options: SERVICE_OPTIONS, allowPositionals: true })
  const [verb, ...ids] = positionals
  if (verb !== 'replay' || ids.length === 0) {
    throw new UsageError('callbacks needs the subcommand replay and at least one id')
  }
  const service = await findService(line, values)
  for (const id of ids) {
    const path = `/v1/callbacks/${encodeURIComponent(id)}/replay`
    const { outcome, job_id } = await service.call<{ outcome: string; job_id: string }>(path, { method: 'POST' })
    line.print(values.json ? JSON.stringify({ id, outcome, job_id }) : [id, outcome, job_id].join('  '))
  }
  return EXIT.ok
}
