import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import type { SeedReport } from './simulate.ts'
import { createSimulator } from './simulate.ts'
import { type SeedResult, startWorker } from './worker-process.ts'

const MAX_SHOWN_FAILURES = 5

/**
 * `npm run sim -- --seeds N [--from S] [--workers W]` plays N seeds and prints a summary line. A seed that breaks an
 * invariant shows its trace and fails the run. `--seed S` plays one seed again, with exactly the same trace.
 */
async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      seeds: { type: 'string', default: '200' },
      seed: { type: 'string' },
      from: { type: 'string', default: '1' },
      workers: { type: 'string', default: String(availableParallelism()) },
      verbose: { type: 'boolean', default: false },
    },
  })
  if (values.seed !== undefined) return replay(Number(values.seed))
  const first = Number(values.from)
  const count = Number(values.seeds)
  const workers = Math.max(1, Math.min(Number(values.workers), count))
  const startedMs = performance.now()
  const results = await play({ first, count, workers, verbose: values.verbose })
  const seconds = (performance.now() - startedMs) / 1000
  say(summary(results, seconds))
  return results.length === count && results.every(({ violations }) => violations.length === 0) ? 0 : 1
}

/** Plays one seed and prints its trace. */
async function replay(seed: number): Promise<number> {
  const simulator = await createSimulator()
  const report = await simulator.run(seed)
  for (const line of report.trace) say(line)
  say(`seed ${seed}: ${report.jobs} jobs, trace ${report.digest}, ${report.violations.length} violations`)
  showViolations(report)
  return report.violations.length === 0 ? 0 : 1
}

async function play(options: {
  first: number
  count: number
  workers: number
  verbose: boolean
}): Promise<SeedResult[]> {
  const { first, count, workers, verbose } = options
  const results: SeedResult[] = []
  let failures = 0
  const started = Array.from({ length: workers }, (_, index) =>
    startWorker({ first: first + index, step: workers, end: first + count }, (result) => {
      results.push(result)
      if (verbose) say(`seed ${result.seed}: ${result.jobs} jobs, trace ${result.digest}`)
      if (result.violations.length === 0) return
      failures += 1
      if (failures === 1) for (const line of result.trace) say(line)
      say(`seed ${result.seed} failed; again: npm run sim -- --seed ${result.seed}`)
      showViolations(result)
      if (failures >= MAX_SHOWN_FAILURES) for (const worker of started) worker.stop()
    }),
  )
  await Promise.all(started.map((worker) => worker.done))
  return results
}

function showViolations({ violations }: Pick<SeedReport, 'violations'>): void {
  for (const { invariant, what } of violations) say(`  ${invariant}: ${what}`)
}

function summary(results: readonly SeedResult[], seconds: number): string {
  const sum = (figureOf: (result: SeedResult) => number) =>
    results.reduce((total, result) => total + figureOf(result), 0)
  const faults = new Map<string, number>()
  for (const { faults: counted } of results) {
    for (const [kind, count] of Object.entries(counted)) faults.set(kind, (faults.get(kind) ?? 0) + count)
  }
  const failed = results.filter(({ violations }) => violations.length > 0).length
  const listed = [...faults].sort(([a], [b]) => (a < b ? -1 : 1)).map(([kind, count]) => `${kind} ${count}`)
  return [
    `${results.length} seeds`,
    `${failed} failed`,
    `${sum(({ replayed }) => (replayed ? 1 : 0))} played twice`,
    `${sum(({ jobs }) => jobs)} jobs`,
    `${sum(({ faults: counted }) => Object.values(counted).reduce((a, b) => a + b, 0))} faults (${listed.join(', ')})`,
    `${seconds.toFixed(1)} s`,
    `${Math.round((results.length / seconds) * 60)} seeds/min`,
  ].join(', ')
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

process.exitCode = await main()
