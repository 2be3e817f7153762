import { parseConfig } from '../config.ts'
import { ConfigError } from '../config-reader.ts'
import { systemClock } from '../core/clock.ts'
import { reasonOf } from '../core/errors.ts'
import { isJsonObject } from '../core/json.ts'
import { silentLog } from '../core/log.ts'
import {
  DEPENDENCY_CHECKS,
  type DependencyCheck,
  type DependencyReport,
  type ProbeContext,
  type ProbeResult,
} from '../ops/dependency-checks.ts'
import { connectProviders } from '../push/provider-registry.ts'
import { readArguments } from './arguments.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'
import { loadJobTypes } from './startup/load-job-types.ts'
import { openToRead } from './startup/open-database.ts'

const ASK_TIMEOUT_MS = 10_000
const MAX_REASONS = 3
const INDENT = ' '.repeat(16)

/** Checks every dependency the way the service will use it, and tells the operator how to fix problems. */
export async function doctor(line: CommandLine): Promise<ExitCode> {
  const { values } = readArguments(line.args, { options: { url: { type: 'string' } }, allowPositionals: false })
  return values.url === undefined ? probeAll(line) : askService(line, values.url)
}

async function probeAll(line: CommandLine): Promise<ExitCode> {
  const config = parseConfig(line.env, line.readFile)
  const context: ProbeContext = {
    config,
    openDatabase: () => openToRead(config.database),
    connectPush: () => connectProviders(config, { clock: systemClock, log: silentLog }),
  }
  let failed = false
  for (const check of [...DEPENDENCY_CHECKS, jobTypesCheck(line)]) {
    const { ok, warns = false, text, hint = ok ? null : check.howToFix } = await check.probe(context).catch(toFailure)
    failed ||= !ok
    printFinding(line, { mark: MARKS[ok ? (warns ? 'degraded' : 'ok') : 'down'], label: check.label, text, hint })
  }
  return failed ? EXIT.unavailable : EXIT.ok
}

/** Asks a running service for its own view, which `/readyz` gives to every client. Needs no settings. */
async function askService(line: CommandLine, address: string): Promise<ExitCode> {
  if (!/^https?:$/.test(URL.parse(address)?.protocol ?? '')) {
    throw new UsageError('--url must be the address of a service, such as https://api.example.com')
  }
  const { status, checks } = await fetchReadiness(address)
  line.print(`${status === 'ready' ? 'ok  ' : 'FAIL'}  ${address} is ${status.replace('_', ' ')}`)
  for (const [name, { state, detail }] of Object.entries(checks)) {
    const check = DEPENDENCY_CHECKS.find((one) => one.name === name)
    const hint = state === 'ok' ? null : (check?.howToFix ?? null)
    printFinding(line, { mark: MARKS[state], label: check?.label ?? name, text: detail ?? state, hint })
  }
  return status === 'ready' ? EXIT.ok : EXIT.unavailable
}

const MARKS = { ok: 'ok', degraded: 'WARN', down: 'FAIL' } as const

interface Readiness {
  status: 'ready' | 'not_ready'
  checks: Record<string, DependencyReport>
}

async function fetchReadiness(address: string): Promise<Readiness> {
  let answer: unknown
  try {
    const url = `${address.replace(/\/+$/, '')}/readyz`
    const response = await fetch(url, { signal: AbortSignal.timeout(ASK_TIMEOUT_MS), redirect: 'error' })
    answer = await response.json()
  } catch (error) {
    throw new CommandError(
      `${address} does not answer: ${reasonOf((error as Error).cause ?? error)}`,
      EXIT.unavailable,
      { cause: error },
    )
  }
  if (isJsonObject(answer) && isJsonObject(answer.checks)) return answer as unknown as Readiness
  throw new CommandError(`${address} answers, but is no service of this kind`, EXIT.unavailable)
}

function printFinding(
  line: CommandLine,
  { mark, label, text, hint }: { mark: string; label: string; text: string; hint: string | null },
): void {
  line.print(`${mark.padEnd(4)}  ${label.padEnd(9)} ${text.replaceAll(/\n\s*/g, `\n${INDENT}`)}`)
  if (hint !== null) line.print(`${INDENT}→ ${hint}`)
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
  if (error instanceof ConfigError) return { ok: false, text: error.faults.join('\n') }
  const reasons: string[] = []
  for (let cause: unknown = error; cause !== undefined && reasons.length < MAX_REASONS; ) {
    const reason = reasonOf(cause)
    if (!reasons.some((earlier) => earlier.includes(reason))) reasons.push(reason)
    cause = cause instanceof Error ? cause.cause : undefined
  }
  return { ok: false, text: reasons.join(': ') }
}
