import { availableParallelism, loadavg } from 'node:os'
import { setTimeout as pause } from 'node:timers/promises'
import { type OverloadEnvironment, startOverloadEnvironment } from './environment.ts'
import { measureLargeAnswers } from './large-answers.ts'
import { KINDS, type LoadResult, ordinaryLatencies, type Phase, perSecond, quantile, total } from './load-result.ts'
import { type ServiceMonitor, startMonitor, timeRequest, timeToRecover } from './service-monitor.ts'

const QUICK = { warmUpMs: 3_000, stepMs: 1_500, phaseMs: 4_000, pauseMs: 1_000 }
const THOROUGH = { warmUpMs: 8_000, stepMs: 4_000, phaseMs: 15_000, pauseMs: 3_000 }
type Pace = typeof QUICK

const RAMP = { fromPerSecond: 300, factor: 1.35, maxSteps: 14 }
/** Of twenty requests, eleven read, three start a job and six are callbacks. */
const MIX = { read: 11, start: 3, callback: 6 }
const MULTIPLES = [1, 2, 5]
const RECOVERY_MS = 10_000
const MEMORY_MB = 700
const GOODPUT_SHARE = 0.8
const TIMEOUT_SHARE = 0.05
/** Enough runs for the callbacks of all phases on the fastest machine. */
const RUNS_PER_SECOND = 6_000

interface Row {
  multiple: number
  result: LoadResult
  monitor: ServiceMonitor
}

/**
 * Raises the load until the service does not keep up in two steps in a row: one step can meet a checkpoint of the database.
 * The highest goodput of any step is the knee.
 */
async function findKnee(
  environment: OverloadEnvironment,
  pace: Pace,
): Promise<{ kneePerSecond: number; results: LoadResult[] }> {
  const results: LoadResult[] = []
  let kneePerSecond = 0
  let rate = RAMP.fromPerSecond
  let missed = 0
  for (let step = 0; step < RAMP.maxSteps; step++) {
    const result = await environment.send({ ratePerSecond: rate, durationMs: pace.stepMs })
    results.push(result)
    const goodput = perSecond(result, result.succeeded)
    const p99Ms = quantile(ordinaryLatencies(result), 0.99)
    print(`# ramp ${rate.toFixed(0)}/s offered: ${goodput.toFixed(0)}/s done, p99 ${p99Ms.toFixed(0)} ms`)
    kneePerSecond = Math.max(kneePerSecond, goodput)
    missed = goodput < rate * 0.85 ? missed + 1 : 0
    if (missed === 2) break
    rate *= RAMP.factor
  }
  return { kneePerSecond, results }
}

async function loadAt(environment: OverloadEnvironment, multiple: number, phase: Phase): Promise<Row> {
  const monitor = startMonitor(environment.url)
  const result = await environment.send(phase)
  await monitor.stop()
  return { multiple, result, monitor }
}

async function normalLatencyMs({ url, token }: OverloadEnvironment): Promise<number> {
  const latencies: number[] = []
  while (latencies.length < 50) {
    const tookMs = await timeRequest(url, token)
    if (tookMs !== null) latencies.push(tookMs)
  }
  return quantile(latencies, 0.99)
}

function describe({ multiple, result, monitor }: Row): string {
  const cells = [
    `${multiple}×`,
    perSecond(result, result.offered).toFixed(0),
    perSecond(result, result.succeeded).toFixed(0),
    KINDS.map((kind) => (result.succeeded[kind] / result.seconds).toFixed(0)).join(' / '),
    [0.5, 0.99].map((share) => quantile(ordinaryLatencies(result), share).toFixed(0)).join(' / '),
    [0.5, 0.99].map((share) => quantile(result.latenciesMs.callback, share).toFixed(0)).join(' / '),
    String(total(result.refused)),
    String(result.refusedWithoutRetryAfter),
    String(result.unsent),
    String(total(result.offered) - total(result.succeeded) - total(result.refused) - result.unsent),
    `${result.offered.callback} / ${result.succeeded.callback}`,
    monitor.rssMaxMb.toFixed(0),
    `${monitor.cpuPercent.toFixed(0)} %`,
    `${(result.generatorBusy * 100).toFixed(0)} %`,
  ]
  return `| ${cells.join(' | ')} |`
}

const HEADINGS = [
  'load',
  'offered/s',
  'goodput/s',
  'read / start / callback',
  'p50 / p99 ms',
  'of callbacks',
  '429+503 with Retry-After',
  'without',
  'not sent',
  'failed',
  'callbacks offered / accepted',
  'RSS MB',
  'its CPU',
  'generator busy',
]

interface Outcome {
  rows: Row[]
  peakPerSecond: number
  lost: number
  recoveredMs: number | null
}

function findFaults({ rows, peakPerSecond, lost, recoveredMs }: Outcome): string[] {
  const faults: string[] = []
  for (const { multiple, result, monitor } of rows) {
    const goodput = perSecond(result, result.succeeded)
    // The ramp may miss the knee: then a multiple of it is less than the service can handle.
    const share = goodput / Math.min(peakPerSecond, perSecond(result, result.offered))
    if (multiple > 1 && share < GOODPUT_SHARE)
      faults.push(`goodput at ${multiple}× is ${(share * 100).toFixed(0)} % of what was possible`)
    if (result.refusedWithoutRetryAfter > 0) faults.push(`refusals without Retry-After at ${multiple}×`)
    for (const [what, count] of Object.entries(result.failures)) {
      // Past the knee some requests time out: clients wait less long than the longest queue takes.
      const isAllowed = what === 'timeout' && multiple > 1 && count <= total(result.offered) * TIMEOUT_SHARE
      if (!isAllowed) faults.push(`${count} times ${what} at ${multiple}×`)
    }
    if (monitor.rssMaxMb > MEMORY_MB) faults.push(`${monitor.rssMaxMb.toFixed(0)} MB at ${multiple}×`)
    if (monitor.probesFailed > 0)
      faults.push(`${monitor.probesFailed} of ${monitor.probes} probes failed at ${multiple}×`)
  }
  if (lost > 0) faults.push(`${lost} accepted callbacks are lost`)
  if (recoveredMs === null) faults.push(`no recovery within ${RECOVERY_MS} ms`)
  return faults
}

function print(line: string): void {
  process.stdout.write(`${line}\n`)
}

/**
 * `npm run overload -- [--quick] [--callers]` prints tables, and exits with 1 if a limit is exceeded. With `--callers` it
 * only measures single callers with large answers.
 */
async function main(args: readonly string[]): Promise<number> {
  const pace = args.includes('--quick') ? QUICK : THOROUGH
  print(`# node ${process.version}, ${availableParallelism()} cores, load before ${loadavg()[0]?.toFixed(1)}`)
  const faults = args.includes('--callers') ? [] : await measureOverload(pace)
  for (const engine of ['postgres', 'sqlite'] as const) {
    faults.push(...(await measureLargeAnswers({ engine, phaseMs: pace.phaseMs, print })))
  }
  for (const fault of faults) print(`FAIL ${fault}`)
  print(faults.length === 0 ? 'ok' : `${faults.length} faults`)
  return faults.length === 0 ? 0 : 1
}

async function measureOverload(pace: Pace): Promise<string[]> {
  const seconds = (pace.warmUpMs + RAMP.maxSteps * pace.stepMs + MULTIPLES.length * pace.phaseMs) / 1_000
  const environment = await startOverloadEnvironment({ runs: Math.round(seconds * RUNS_PER_SECOND * 0.3), mix: MIX })
  try {
    const warmUp = await environment.send({ ratePerSecond: RAMP.fromPerSecond, durationMs: pace.warmUpMs })
    const normalMs = Math.max(50, 3 * (await normalLatencyMs(environment)))
    const { kneePerSecond, results } = await findKnee(environment, pace)
    print(`# knee ${kneePerSecond.toFixed(0)}/s`)
    const rows: Row[] = []
    for (const multiple of MULTIPLES) {
      await pause(pace.pauseMs)
      rows.push(
        await loadAt(environment, multiple, { ratePerSecond: kneePerSecond * multiple, durationMs: pace.phaseMs }),
      )
    }
    const recoveredMs = await timeToRecover(environment, { normalMs, withinMs: RECOVERY_MS })
    const everything = [warmUp, ...results, ...rows.map(({ result }) => result)]
    const accepted = everything.flatMap((result) => result.acceptedRuns)
    const lost = await environment.countMissing(accepted)

    print(`\n| ${HEADINGS.join(' | ')} |\n|${'---|'.repeat(HEADINGS.length)}`)
    for (const row of rows) print(describe(row))
    print(`\naccepted callbacks: ${accepted.length}, lost: ${lost}`)
    print(`an ordinary request is answered within ${normalMs.toFixed(0)} ms again after ${recoveredMs?.toFixed(0)} ms`)
    const peakPerSecond = Math.max(kneePerSecond, ...rows.map(({ result }) => perSecond(result, result.succeeded)))
    return findFaults({ rows, peakPerSecond, lost, recoveredMs })
  } finally {
    await environment.close()
  }
}

process.exitCode = await main(process.argv.slice(2))
