import { createSimulator } from './simulate.ts'
import type { SeedResult, WorkerTask } from './worker-process.ts'

/** Every so many seeds, one is played a second time, to see that the seed alone decides what happens (I9). */
const REPLAY_EVERY = 50

const task = JSON.parse(process.argv[2] ?? '{}') as WorkerTask
const simulator = await createSimulator()

for (let seed = task.first, played = 0; seed < task.end; seed += task.step, played++) {
  const report = await simulator.run(seed)
  const replayed = played % REPLAY_EVERY === 0
  if (replayed) {
    const again = await simulator.run(seed)
    if (again.digest !== report.digest) {
      const line = report.trace.findIndex((text, index) => text !== again.trace[index])
      const what = `line ${line} was «${report.trace[line]}», then «${again.trace[line]}»`
      report.violations.push({ invariant: 'I9', what })
    }
  }
  const failed = report.violations.length > 0
  await tell({ ...report, replayed, trace: failed ? report.trace : [] })
  if (failed && task.untilFailure) break
}
process.exit(0)

function tell(result: SeedResult): Promise<void> {
  return new Promise((resolve, reject) => {
    process.send?.(result, (error: Error | null) => (error ? reject(error) : resolve()))
  })
}
