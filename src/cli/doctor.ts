import { parseConfig } from '../config.ts'
import { ConfigError } from '../config-reader.ts'
import { systemClock } from '../core/clock.ts'
import { reasonOf } from '../core/errors.ts'
import { silentLog } from '../core/log.ts'
import {
  DEPENDENCY_CHECKS,
  type DependencyCheck,
  type ProbeContext,
  type ProbeResult,
} from '../ops/dependency-checks.ts'
import { connectProviders } from '../push/provider-registry.ts'
import { type CommandLine, EXIT, type ExitCode } from './io.ts'
import { loadJobTypes } from './startup/load-job-types.ts'
import { openDatabase } from './startup/open-database.ts'

const INDENT = ' '.repeat(16)

/** Checks every dependency the way the service will use it, and tells the operator how to fix problems. */
export async function doctor(line: CommandLine): Promise<ExitCode> {
  const config = parseConfig(line.env, line.readFile)
  const context: ProbeContext = {
    config,
    openDatabase: () => openDatabase(config.database),
    connectPush: () => connectProviders(config, { clock: systemClock, log: silentLog }),
  }
  let failed = false
  for (const check of [...DEPENDENCY_CHECKS, jobTypesCheck(line)]) {
    const { ok, text, hint = ok ? null : check.howToFix } = await check.probe(context).catch(toFailure)
    failed ||= !ok
    line.print(`${ok ? 'ok  ' : 'FAIL'}  ${check.label.padEnd(9)} ${text.replaceAll(/\n\s*/g, `\n${INDENT}`)}`)
    if (hint !== null) line.print(`${INDENT}→ ${hint}`)
  }
  return failed ? EXIT.unavailable : EXIT.ok
}

/** Not a dependency of a running service: without valid job types it does not start. */
function jobTypesCheck(line: CommandLine): Pick<DependencyCheck, 'label' | 'probe' | 'howToFix'> {
  return {
    label: 'job types',
    // Does not ask the runtime whether it has the graphs: they may change while the service runs.
    probe: async () => ({ ok: true, text: [...loadJobTypes(line).jobTypes.keys()].join(', ') }),
    howToFix: 'Correct the file, or point JOB_TYPES_FILE to another one; until then `serve` does not start',
  }
}

function toFailure(error: unknown): ProbeResult {
  return { ok: false, text: error instanceof ConfigError ? error.faults.join('\n') : reasonOf(error) }
}
