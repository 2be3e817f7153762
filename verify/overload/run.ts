import { availableParallelism, loadavg } from 'node:os'
import { setTimeout as pause } from 'node:timers/promises'
import { startWorld, type World } from './environment.ts'
import { KINDS, ordinaryLatencies, type Phase, perSecond, quantile, type Tally, total } from './load-result.ts'
import { startWatch, timeRequest, timeToRecover, type Watch } from './service-monitor.ts'

const QUICK = { warmUpMs: 3_000, stepMs: 1_500, phaseMs: 4_000, pauseMs: 1_000 }
const THOROUGH = { warmUpMs: 8_000, stepMs: 4_000, phaseMs: 15_000, pauseMs: 3_000 }
type Pace = typeof QUICK

const RAMP = { fromPerSecond: 300, factor: 1.35, maxSteps: 14 }
/** Of twenty requests, eleven read, three start a job and six bring the end of a run. */
const MIX = { read: 11, start: 3, callback: 6 }
const MULTIPLES = [1, 2, 5]
const RECOVERY_MS = 10_000
const MEMORY_MB = 700
const GOODPUT_SHARE = 0.8
const TIMEOUT_SHARE = 0.05
/** For what the quickest machine could take, at five times its knee, in all phases together. */
const RUNS_PER_SECOND = 6_000

interface Row {
  multiple: number
  tally: Tally
  watch: Watch
}

/** More and more load until the service no longer keeps up; the most it got done in any step is its knee. */
async function findKnee(world: World, pace: Pace): Promise<{ kneePerSecond: number; tallies: Tally[] }> {
  const tallies: Tally[] = []
  let kneePerSecond = 0
  let rate = RAMP.fromPerSecond
  for (let step = 0; step < RAMP.maxSteps; step++) {
    const tally = await world.send({ ratePerSecond: rate, durationMs: pace.stepMs })
    tallies.push(tally)
    const goodput = perSecond(tally, tally.succeeded)
    const p99Ms = quantile(ordinaryLatencies(tally), 0.99)
    print(`# ramp ${rate.toFixed(0)}/s offered: ${goodput.toFixed(0)}/s done, p99 ${p99Ms.toFixed(0)} ms`)
    kneePerSecond = Math.max(kneePerSecond, goodput)
    if (goodput < rate * 0.85) break
    rate *= RAMP.factor
  }
  return { kneePerSecond, tallies }
}

async function loadAt(world: World, multiple: number, phase: Phase): Promise<Row> {
  const watch = startWatch(world.url)
  const tally = await world.send(phase)
  await watch.stop()
  return { multiple, tally, watch }
}

async function normalLatencyMs({ url, token }: World): Promise<number> {
  const latencies: number[] = []
  while (latencies.length < 50) {
    const tookMs = await timeRequest(url, token)
    if (tookMs !== null) latencies.push(tookMs)
  }
  return quantile(latencies, 0.99)
}

function describe({ multiple, tally, watch }: Row): string {
  const cells = [
    `${multiple}×`,
    perSecond(tally, tally.offered).toFixed(0),
    perSecond(tally, tally.succeeded).toFixed(0),
    KINDS.map((kind) => (tally.succeeded[kind] / tally.seconds).toFixed(0)).join(' / '),
    [0.5, 0.99].map((share) => quantile(ordinaryLatencies(tally), share).toFixed(0)).join(' / '),
    [0.5, 0.99].map((share) => quantile(tally.latenciesMs.callback, share).toFixed(0)).join(' / '),
    String(total(tally.refused)),
    String(tally.refusedWithoutHint),
    String(tally.unsent),
    String(total(tally.offered) - total(tally.succeeded) - total(tally.refused) - tally.unsent),
    `${tally.offered.callback} / ${tally.succeeded.callback}`,
    watch.rssMaxMb.toFixed(0),
    `${watch.cpuPercent.toFixed(0)} %`,
    `${(tally.generatorBusy * 100).toFixed(0)} %`,
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
  for (const { multiple, tally, watch } of rows) {
    const goodput = perSecond(tally, tally.succeeded)
    const share = goodput / peakPerSecond
    if (multiple > 1 && share < GOODPUT_SHARE)
      faults.push(`goodput at ${multiple}× is ${(share * 100).toFixed(0)} % of the peak`)
    if (tally.refusedWithoutHint > 0) faults.push(`refusals without Retry-After at ${multiple}×`)
    for (const [what, count] of Object.entries(tally.failures)) {
      // Past the knee some wait in vain: the patience of a client is shorter than the longest queue.
      const isBearable = what === 'timeout' && multiple > 1 && count <= total(tally.offered) * TIMEOUT_SHARE
      if (!isBearable) faults.push(`${count} times ${what} at ${multiple}×`)
    }
    if (watch.rssMaxMb > MEMORY_MB) faults.push(`${watch.rssMaxMb.toFixed(0)} MB at ${multiple}×`)
    if (watch.probesFailed > 0) faults.push(`${watch.probesFailed} of ${watch.probes} probes failed at ${multiple}×`)
  }
  if (lost > 0) faults.push(`${lost} accepted callbacks are lost`)
  if (recoveredMs === null) faults.push(`no recovery within ${RECOVERY_MS} ms`)
  return faults
}

function print(line: string): void {
  process.stdout.write(`${line}\n`)
}

/** What `npm run overload -- [--quick]` runs: the table for people, and an exit code that says whether it held. */
async function main(args: readonly string[]): Promise<number> {
  const pace = args.includes('--quick') ? QUICK : THOROUGH
  print(`# node ${process.version}, ${availableParallelism()} cores, load before ${loadavg()[0]?.toFixed(1)}`)
  const seconds = (pace.warmUpMs + RAMP.maxSteps * pace.stepMs + MULTIPLES.length * pace.phaseMs) / 1_000
  const world = await startWorld({ runs: Math.round(seconds * RUNS_PER_SECOND * 0.3), mix: MIX })
  try {
    const warmUp = await world.send({ ratePerSecond: RAMP.fromPerSecond, durationMs: pace.warmUpMs })
    const normalMs = Math.max(50, 3 * (await normalLatencyMs(world)))
    const { kneePerSecond, tallies } = await findKnee(world, pace)
    print(`# knee ${kneePerSecond.toFixed(0)}/s`)
    const rows: Row[] = []
    for (const multiple of MULTIPLES) {
      await pause(pace.pauseMs)
      rows.push(await loadAt(world, multiple, { ratePerSecond: kneePerSecond * multiple, durationMs: pace.phaseMs }))
    }
    const recoveredMs = await timeToRecover(world, { normalMs, withinMs: RECOVERY_MS })
    const everything = [warmUp, ...tallies, ...rows.map(({ tally }) => tally)]
    const accepted = everything.flatMap((tally) => tally.acceptedRuns)
    const lost = await world.countMissing(accepted)

    print(`\n| ${HEADINGS.join(' | ')} |\n|${'---|'.repeat(HEADINGS.length)}`)
    for (const row of rows) print(describe(row))
    print(`\naccepted callbacks: ${accepted.length}, lost: ${lost}`)
    print(`an ordinary request is answered within ${normalMs.toFixed(0)} ms again after ${recoveredMs?.toFixed(0)} ms`)
    const peakPerSecond = Math.max(kneePerSecond, ...rows.map(({ tally }) => perSecond(tally, tally.succeeded)))
    const faults = findFaults({ rows, peakPerSecond, lost, recoveredMs })
    for (const fault of faults) print(`FAIL ${fault}`)
    print(faults.length === 0 ? 'ok' : `${faults.length} faults`)
    return faults.length === 0 ? 0 : 1
  } finally {
    await world.close()
  }
}

process.exitCode = await main(process.argv.slice(2))
