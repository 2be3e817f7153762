import { availableParallelism, loadavg } from 'node:os'
import { BASELINES, compareAuthedReads, compareJobReads } from './authed-read.ts'
import { compareCallbacks } from './callbacks.ts'
import type { Figures, Outcome } from './comparison.ts'
import { startBenchEnvironment } from './environment.ts'
import { comparePush } from './push/push.ts'
import { compareDisks } from './slow-disk/slow-disk.ts'
import { slowSyncMissing } from './slow-disk/slow-sync.ts'
import { measureColdStart, measureIdleMegabytes } from './startup.ts'

type Pace = typeof QUICK

const QUICK = {
  rounds: 9,
  roundMs: 500,
  warmUpMs: 5_000,
  callbackRounds: 3,
  push: { rounds: 3, size: 2_000 },
  slowDisk: { rounds: 5, roundMs: 500, warmUpMs: 1_500 },
}
const THOROUGH: Pace = {
  rounds: 21,
  roundMs: 2_000,
  warmUpMs: 10_000,
  callbackRounds: 9,
  push: { rounds: 9, size: 4_000 },
  slowDisk: { rounds: 11, roundMs: 1_000, warmUpMs: 4_000 },
}

/** Each benchmark prints the figures of the wanted names. */
const BENCHMARKS: { names: readonly string[]; run: (wanted: readonly string[], pace: Pace) => Promise<void> }[] = [
  { names: [...BASELINES.map((name) => `authed-read-vs-${name}`), 'job-read-vs-bare'], run: reads },
  {
    names: ['callback-vs-express', 'callback-vs-pgbench', 'callback-vs-pgbench-settling'],
    run: (_wanted, pace) => callbacks(pace),
  },
  { names: ['push-vs-firebase-admin', 'push-outbox-vs-raw'], run: (_wanted, pace) => push(pace) },
  {
    names: ['slow-disk'],
    run: (_wanted, pace) => slowDisk(pace),
  },
  {
    names: ['cold-start'],
    run: async () => print(`figure cold-start ${(await measureColdStart()).toFixed(0)} ms`),
  },
  {
    names: ['idle-memory'],
    run: async () => print(`figure idle-memory ${(await measureIdleMegabytes()).toFixed(0)} MB`),
  },
]

async function reads(wanted: readonly string[], pace: Pace): Promise<void> {
  const environment = await startBenchEnvironment()
  try {
    const baselines = BASELINES.filter((name) => wanted.includes(`authed-read-vs-${name}`))
    if (baselines.length > 0) printRatios('authed-read', await compareAuthedReads(environment, { baselines, ...pace }))
    if (wanted.includes('job-read-vs-bare')) printRatios('job-read', await compareJobReads(environment, pace))
  } finally {
    await environment.close()
  }
}

function printRatios<Baseline extends string>(subject: string, { ours, baselines }: Outcome<Baseline>): void {
  for (const [name, { ratio, figures }] of baselines) {
    print(`ratio ${subject}-vs-${name} ${ratio.toFixed(2)}`)
    print(`  ours     ${describe(ours)}`)
    print(`  ${name.padEnd(8)} ${describe(figures)}`)
  }
}

async function callbacks(pace: Pace): Promise<void> {
  const outcome = await compareCallbacks({ rounds: pace.callbackRounds, roundMs: 1_000, warmUpMs: 4_000 })
  print(`ratio callback-vs-express ${outcome.vsExpress.toFixed(2)}`)
  print(`ratio callback-vs-pgbench ${outcome.vsPgbench.toFixed(2)}`)
  print(`ratio callback-vs-pgbench-settling ${outcome.vsPgbenchSettling.toFixed(2)}`)
  print(`  ours     ${describe(outcome.ours)}`)
  print(`  express  ${describe(outcome.express)}`)
  print(`  echo     ${describe(outcome.echo)}`)
  const [one, all] = [outcome.pgbenchPerSecond, outcome.pgbenchSettlingPerSecond]
  print(`  pgbench  ${one.toFixed(0)} commits/s of one callback, ${all.toFixed(0)} of one with all it brings about`)
}

async function push({ push: { rounds, size } }: Pace): Promise<void> {
  const messages = { outbox: 3 * size, raw: 3 * size, 'firebase-admin': size }
  const outcome = await comparePush({ rounds, messages })
  print(`ratio push-vs-firebase-admin ${outcome.vsFirebaseAdmin.toFixed(2)}`)
  print(`ratio push-outbox-vs-raw ${outcome.outboxVsRaw.toFixed(2)}`)
  for (const [way, { messagesPerSecond, cpuMicroseconds }] of outcome.figures) {
    const rate = `${messagesPerSecond.toFixed(0)} messages/s`
    print(`  ${way.padEnd(14)} ${rate}, ${cpuMicroseconds.toFixed(0)} µs of processor a message`)
  }
}

async function slowDisk(pace: Pace): Promise<void> {
  const missing = slowSyncMissing()
  if (missing) return print(`# slow-disk is skipped: it ${missing}`)
  const { disks } = await compareDisks(pace.slowDisk)
  for (const [delayMs, { readRatio, writeRatio }] of disks) {
    if (delayMs === 0) continue
    print(`ratio sqlite-reads-slow-disk-${delayMs}ms ${readRatio.toFixed(2)}`)
    print(`ratio sqlite-writes-slow-disk-${delayMs}ms ${writeRatio.toFixed(2)}`)
  }
  for (const [delayMs, disk] of disks) {
    const reads = `${disk.readsPerSecond.toFixed(0)} reads/s, p99 ${disk.readP99Ms.toFixed(1)} ms`
    const writes = `${disk.writesPerSecond.toFixed(0)} callbacks/s, p50 ${disk.writeP50Ms.toFixed(1)} ms`
    print(`  sync +${delayMs} ms: ${reads}, event loop late by ${disk.loopP99Ms.toFixed(1)} ms (p99); alone ${writes}`)
  }
}

function describe({ requestsPerSecond, p50Ms, p99Ms, cpuMicroseconds, generatorBusy }: Figures): string {
  return [
    `${requestsPerSecond.toFixed(0)} req/s`,
    `p50 ${p50Ms.toFixed(1)} ms`,
    `p99 ${p99Ms.toFixed(1)} ms`,
    ...(cpuMicroseconds === null ? [] : [`${cpuMicroseconds.toFixed(0)} µs of processor a request`]),
    `generator ${Math.round(generatorBusy * 100)} % busy`,
  ].join(', ')
}

function print(line: string): void {
  process.stdout.write(`${line}\n`)
}

/** `npm run bench -- [--quick] [name …]` prints `ratio` and `figure` lines for programs, and other lines for people. */
async function main(args: readonly string[]): Promise<number> {
  const given = args.filter((arg) => arg !== '--quick')
  const all = BENCHMARKS.flatMap(({ names }) => names)
  const unknown = given.filter((name) => !all.includes(name))
  if (unknown.length > 0) {
    print(`No such benchmark: ${unknown.join(', ')}\nThere are: ${all.join(', ')}`)
    return 64
  }
  const pace = args.includes('--quick') ? QUICK : THOROUGH
  print(`# node ${process.version}, ${availableParallelism()} cores, load before ${loadavg()[0]?.toFixed(1)}`)
  print(`# ${pace.rounds} rounds of ${pace.roundMs} ms after ${pace.warmUpMs} ms of warm-up for each server`)
  for (const { names, run } of BENCHMARKS) {
    const wanted = names.filter((name) => given.length === 0 || given.includes(name))
    if (wanted.length > 0) await run(wanted, pace)
  }
  return 0
}

process.exitCode = await main(process.argv.slice(2))
