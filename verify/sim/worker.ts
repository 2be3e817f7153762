import { enableCompileCache } from 'node:module'
import { COMPILE_CACHE } from '../../test/support/compile-cache.ts'
import type { SeedResult, WorkerTask } from './worker-process.ts'

// Imported after the cache is on: loading takes half of a short run.
enableCompileCache(COMPILE_CACHE)
const { createSimulator } = await import('./simulate.ts')

/** One seed in this many is played twice, to prove that the seed alone decides what happens (I9). */
const REPLAY_EVERY = 50

const task = JSON.parse(process.argv[2] ?? '{}') as WorkerTask
const simulator = await createSimulator()

let played = 0
for (const seed of seedsOf(task)) {
  const report = await simulator.run(seed)
  const replayed = task.plantedBug === undefined && played++ % REPLAY_EVERY === 0
  if (replayed) {
    const again = await simulator.run(seed)
    if (again.digest !== report.digest) {
      const line = report.trace.findIndex((text, index) => text !== again.trace[index])
      const what = `line ${line} was «${report.trace[line]}», then «${again.trace[line]}»`
      report.violations.push({ invariant: 'I9', what })
    }
  }
  const failed = report.violations.length > 0
  await send({ ...report, replayed, trace: failed ? report.trace : [] })
  if (failed && task.plantedBug !== undefined) break
}
process.exit(0)

function* seedsOf({ likely, first, step, end }: WorkerTask): Iterable<number> {
  if (likely !== undefined) yield likely
  for (let seed = first; seed < end; seed += step) yield seed
}

function send(result: SeedResult): Promise<void> {
  return new Promise((resolve, reject) => {
    process.send?.(result, (error: Error | null) => (error ? reject(error) : resolve()))
  })
}
