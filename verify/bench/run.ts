import { availableParallelism, loadavg } from 'node:os'
import { parseArgs } from 'node:util'
import {
  BASELINES,
  compareDistinctReads,
  compareJobReads,
  compareSharedReads,
  startReadServers,
} from './authed-read.ts'
import { compareCallbacks } from './callbacks/compare-callbacks.ts'
import { compareConfirmed } from './callbacks/compare-confirmed.ts'
import type { Figures, Outcome } from './comparison.ts'
import { startBenchEnvironment } from './environment.ts'
import { measureGrowth } from './growth/growth.ts'
import { measureLive } from './live/live.ts'
import { comparePush } from './push/push.ts'
import { measureSettlementCost } from './settlement/settlement-cost.ts'
import { compareDisks } from './slow-disk/slow-disk.ts'
import { slowSyncMissing } from './slow-disk/slow-sync.ts'
import { compareStarts, measureColdStart, measureIdleMegabytes } from './startup.ts'
import { measureLargeOutputs } from './streams/large-outputs.ts'
import { measureStreams } from './streams/streams.ts'
import { measureSweep } from './sweep.ts'
import { compareTracing } from './tracing.ts'
import { compareWebhooks } from './webhooks/webhooks.ts'
import { compareWholeJobs } from './whole-job/whole-job.ts'

type BenchPace = typeof QUICK

const QUICK = {
  reads: { warmUpRounds: 14, rounds: 7, roundMs: 500 },
  callbacks: { warmUpRounds: 9, rounds: 3, roundMs: 1_000 },
  confirmed: { rounds: 3, size: 1_500 },
  streams: { durationMs: 5_000 },
  sweepJobs: 2_000,
  push: { rounds: 3, size: 2_000 },
  webhooks: { rounds: 3, events: 300 },
  wholeJobs: { rounds: 3, jobs: 2_000 },
  slowDisk: { rounds: 5, roundMs: 500, warmUpMs: 1_500 },
  liveSeconds: 5,
}
const THOROUGH: BenchPace = {
  reads: { warmUpRounds: 6, rounds: 21, roundMs: 2_000 },
  callbacks: { warmUpRounds: 12, rounds: 9, roundMs: 1_000 },
  confirmed: { rounds: 9, size: 2_000 },
  streams: { durationMs: 20_000 },
  sweepJobs: 10_000,
  push: { rounds: 9, size: 4_000 },
  webhooks: { rounds: 9, events: 500 },
  wholeJobs: { rounds: 9, jobs: 4_000 },
  slowDisk: { rounds: 11, roundMs: 1_000, warmUpMs: 4_000 },
  liveSeconds: 20,
}

/** All users read the same page, and readers in one turn of the event loop share its text. */
const SHARED = 'authed-read-shared-page'

/** Each benchmark prints the figures of the wanted names. */
interface Benchmark {
  names: readonly string[]
  /** With `--quick`, it runs only by its name. */
  notQuick?: true
  run: (wanted: readonly string[], pace: BenchPace) => Promise<void>
}

const BENCHMARKS: readonly Benchmark[] = [
  {
    names: [
      ...BASELINES.map((name) => `${SHARED}-vs-${name}`),
      'authed-read-distinct-vs-bare',
      'job-read-vs-bare',
      'traced-read-vs-untraced',
    ],
    run: reads,
  },
  {
    names: ['callback-vs-express', 'callback-vs-echo', 'callback-vs-pgbench-settling'],
    run: (_wanted, pace) => callbacks(pace),
  },
  { names: ['callback-confirmed-vs-unconfirmed'], run: (_wanted, pace) => confirmed(pace) },
  { names: ['settlement-cost'], notQuick: true, run: settlementCost },
  { names: ['streams'], notQuick: true, run: (_wanted, pace) => streams(pace) },
  { names: ['large-outputs'], notQuick: true, run: largeOutputs },
  { names: ['sweep'], notQuick: true, run: (_wanted, pace) => sweep(pace) },
  { names: ['push-vs-firebase-admin', 'push-outbox-vs-raw'], run: (_wanted, pace) => push(pace) },
  { names: ['webhook-vs-raw'], run: (_wanted, pace) => webhooks(pace) },
  {
    names: ['whole-job', 'whole-job-vs-bullmq', 'whole-job-vs-pg-boss'],
    run: (_wanted, pace) => wholeJobs(pace),
  },
  {
    names: ['slow-disk'],
    run: (_wanted, pace) => slowDisk(pace),
  },
  { names: ['live'], notQuick: true, run: (_wanted, pace) => live(pace) },
  {
    names: ['cold-start'],
    run: async () => print(`figure cold-start ${(await measureColdStart()).toFixed(0)} ms`),
  },
  {
    names: ['idle-memory'],
    run: async () => print(`figure idle-memory ${(await measureIdleMegabytes()).toFixed(0)} MB`),
  },
  { names: ['cold-start-vs-bare', 'idle-memory-vs-bare'], run: starts },
]

async function starts(wanted: readonly string[]): Promise<void> {
  const { ours, bare } = await compareStarts()
  const describeStart = ({ readyMs, cpuMs, idleMegabytes }: typeof ours) => {
    const processor = cpuMs === null ? '' : `, ${cpuMs.toFixed(0)} ms of processor`
    return `ready after ${readyMs.toFixed(0)} ms${processor}, ${idleMegabytes.toFixed(0)} MB when idle`
  }
  if (wanted.includes('cold-start-vs-bare')) {
    print(`ratio cold-start-vs-bare ${(ours.readyMs / bare.readyMs).toFixed(2)}`)
  }
  if (wanted.includes('idle-memory-vs-bare')) {
    print(`ratio idle-memory-vs-bare ${(ours.idleMegabytes / bare.idleMegabytes).toFixed(2)}`)
  }
  print(`  build    ${describeStart(ours)}`)
  print(`  bare     ${describeStart(bare)}`)
}

async function reads(wanted: readonly string[], { reads: pace }: BenchPace): Promise<void> {
  const environment = await startBenchEnvironment()
  try {
    const baselines = BASELINES.filter((name) => wanted.includes(`${SHARED}-vs-${name}`))
    const servers = await startReadServers(environment, { withExpress: baselines.includes('express'), pace })
    try {
      if (baselines.length > 0) {
        printRatios(SHARED, await compareSharedReads(servers, environment, { wanted: baselines, pace }))
      }
      if (wanted.includes('authed-read-distinct-vs-bare')) {
        printRatios('authed-read-distinct', await compareDistinctReads(servers, environment, pace))
      }
      if (wanted.includes('job-read-vs-bare')) {
        printRatios('job-read', await compareJobReads(servers, environment, pace))
      }
      if (wanted.includes('traced-read-vs-untraced')) {
        printRatios('traced-read', await compareTracing(servers.ours, environment, pace))
      }
    } finally {
      await servers.stop()
    }
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

async function callbacks(pace: BenchPace): Promise<void> {
  const outcome = await compareCallbacks(pace.callbacks)
  print(`ratio callback-vs-express ${outcome.vsExpress.toFixed(2)}`)
  print(`ratio callback-vs-echo ${outcome.vsEcho.toFixed(2)}`)
  print(`ratio callback-vs-pgbench-settling ${outcome.vsPgbenchSettling.toFixed(2)}`)
  print(`  ours     ${describe(outcome.ours)}`)
  print(`  express  ${describe(outcome.express)}`)
  print(`  echo     ${describe(outcome.echo)}`)
  print(`  pgbench  ${outcome.pgbenchSettlingPerSecond.toFixed(0)} settled callbacks/s, one per commit`)
}

async function confirmed(pace: BenchPace): Promise<void> {
  const outcome = await compareConfirmed(pace.confirmed)
  print(`ratio callback-confirmed-vs-unconfirmed ${outcome.ratio.toFixed(2)}`)
  const [asked, plain] = [outcome.confirmedPerSecond, outcome.unconfirmedPerSecond]
  print(
    `  ${asked.toFixed(0)} jobs/s that the runtime confirms after 5 ms, ${plain.toFixed(0)} jobs/s without asking it`,
  )
}

async function settlementCost(): Promise<void> {
  for (const cost of await measureSettlementCost()) {
    const { engine } = cost
    print(`figure settlement-index-entries-${engine} ${cost.indexEntries.toFixed(1)} entries`)
    print(`figure settlement-wal-${engine} ${cost.walBytesWithoutImages.toFixed(0)} bytes`)
    const rows = `${cost.rows.toFixed(2)} rows (${cost.hotUpdates.toFixed(2)} updated without an index entry)`
    const images = `${cost.walBytes.toFixed(0)} bytes with the images of pages after a checkpoint`
    print(`  ${cost.statements.toFixed(2)} statements, ${rows}, ${images}`)
  }
}

async function sweep({ sweepJobs }: BenchPace): Promise<void> {
  for (const { engine, confirmedPerSecond } of await measureSweep(sweepJobs)) {
    print(`figure sweep-confirmed-per-second-${engine} ${confirmedPerSecond.toFixed(0)} jobs`)
  }
}

async function push({ push: { rounds, size } }: BenchPace): Promise<void> {
  const messages = { outbox: 3 * size, raw: 3 * size, 'firebase-admin': size }
  const outcome = await comparePush({ rounds, messages })
  print(`ratio push-vs-firebase-admin ${outcome.vsFirebaseAdmin.toFixed(2)}`)
  print(`ratio push-outbox-vs-raw ${outcome.outboxVsRaw.toFixed(2)}`)
  for (const [way, { messagesPerSecond, cpuMicroseconds }] of outcome.figures) {
    const rate = `${messagesPerSecond.toFixed(0)} messages/s`
    print(`  ${way.padEnd(14)} ${rate}, ${cpuMicroseconds.toFixed(0)} µs of processor a message`)
  }
}

async function webhooks({ webhooks: pace }: BenchPace): Promise<void> {
  const { vsRaw, figures } = await compareWebhooks(pace)
  print(`ratio webhook-vs-raw ${vsRaw.toFixed(2)}`)
  for (const [way, { messagesPerSecond, cpuMicroseconds }] of figures) {
    const rate = `${messagesPerSecond.toFixed(0)} messages/s`
    print(`  ${way.padEnd(14)} ${rate}, ${cpuMicroseconds.toFixed(0)} µs of processor a message`)
  }
}

async function wholeJobs({ wholeJobs: pace }: BenchPace): Promise<void> {
  const { figures, ratios } = await compareWholeJobs(pace)
  for (const [way, ratio] of ratios) print(`ratio whole-job-vs-${way} ${ratio.toFixed(2)}`)
  for (const [way, { jobsPerSecond, cpuMicroseconds, p50Ms, p99Ms }] of figures) {
    const delays = `event ${p50Ms.toFixed(1)} ms (p50) and ${p99Ms.toFixed(1)} ms (p99) after its callback`
    const cost = `${cpuMicroseconds.toFixed(0)} µs of processor a job`
    print(`  ${way.padEnd(8)} ${jobsPerSecond.toFixed(0)} jobs/s, ${cost}, ${delays}`)
  }
}

async function slowDisk(pace: BenchPace): Promise<void> {
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

async function live({ liveSeconds: seconds }: BenchPace): Promise<void> {
  const { viewers, jobs, eventsPerSecond, viewer, direct, ...cost } = await measureLive({ seconds })
  print(`figure live-added-p50 ${(viewer.p50Ms - direct.p50Ms).toFixed(1)} ms`)
  print(`figure live-added-p99 ${(viewer.p99Ms - direct.p99Ms).toFixed(1)} ms`)
  print(`figure live-memory-per-viewer ${cost.kilobytesPerViewer.toFixed(0)} KB`)
  print(`  ${viewers} viewers on ${jobs} jobs, ${eventsPerSecond.toFixed(0)} events/s`)
  print(`  viewers  p50 ${viewer.p50Ms.toFixed(1)} ms, p99 ${viewer.p99Ms.toFixed(1)} ms after the token`)
  print(`  runtime  p50 ${direct.p50Ms.toFixed(1)} ms, p99 ${direct.p99Ms.toFixed(1)} ms to its own client`)
  if (cost.cpuMicroseconds !== null) print(`  ${cost.cpuMicroseconds.toFixed(0)} µs of processor an event`)
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

async function streams(pace: BenchPace): Promise<void> {
  const outcome = await measureStreams(pace.streams)
  print(`figure stream-memory ${outcome.kilobytesPerStream.toFixed(1)} KB`)
  print(`figure stream-events-lost ${outcome.lost} events`)
  const rate = `${outcome.eventsPerSecond.toFixed(0)} events/s to their owners among ${outcome.viewers} viewers`
  print(`  ${rate}, p99 ${outcome.p99Ms.toFixed(0)} ms; then ${outcome.idleStreams} idle streams more`)
}

async function largeOutputs(): Promise<void> {
  const outcome = await measureLargeOutputs()
  print(`figure output-9mb-loop-held ${outcome.loopHeldMs.toFixed(0)} ms`)
  print(`figure output-9mb-memory ${outcome.memoryFactor.toFixed(1)} times its size`)
  print(`figure output-3mb-to-client ${outcome.threeMegabytesMs.toFixed(0)} ms`)
}

/** Each step with many jobs as a multiple of its time with 1,000 jobs. */
async function growth(jobs: number): Promise<void> {
  const { figures, loopHeldMs } = await measureGrowth(jobs, { engines: ['sqlite', 'postgres'], note: print })
  for (const { engine, step, fewMs, manyMs } of figures) {
    print(`ratio growth-${engine}-${step} ${(manyMs / fewMs).toFixed(2)}`)
    print(`  ${fewMs.toFixed(2)} ms with 1,000 jobs, ${manyMs.toFixed(2)} ms with ${jobs}`)
  }
  for (const [engine, heldMs] of loopHeldMs) print(`figure growth-loop-held-${engine} ${heldMs.toFixed(0)} ms`)
}

/**
 * `npm run bench -- [--quick] [name …]` prints `ratio` and `figure` lines for programs, and other lines for people.
 * `growth [--jobs N]` takes minutes and runs only by its name.
 */
async function main(args: readonly string[]): Promise<number> {
  const { values, positionals: given } = parseArgs({
    args: [...args],
    options: { quick: { type: 'boolean', default: false }, jobs: { type: 'string', default: '1000000' } },
    allowPositionals: true,
  })
  if (given.includes('growth')) {
    await growth(Number(values.jobs))
    return 0
  }
  const all = BENCHMARKS.flatMap(({ names }) => names)
  const unknown = given.filter((name) => !all.includes(name))
  if (unknown.length > 0) {
    print(`No such benchmark: ${unknown.join(', ')}\nThere are: ${[...all, 'growth'].join(', ')}`)
    return 64
  }
  const pace = values.quick ? QUICK : THOROUGH
  print(`# node ${process.version}, ${availableParallelism()} cores, load before ${loadavg()[0]?.toFixed(1)}`)
  const { rounds, roundMs, warmUpRounds } = pace.reads
  print(`# reads: ${rounds} rounds of ${roundMs} ms after ${warmUpRounds} rounds of warm-up for each server`)
  for (const { names, run, notQuick = false } of BENCHMARKS) {
    const isDefault = given.length === 0 && !(values.quick && notQuick)
    const wanted = names.filter((name) => isDefault || given.includes(name))
    if (wanted.length > 0) await run(wanted, pace)
  }
  return 0
}

process.exitCode = await main(process.argv.slice(2))
