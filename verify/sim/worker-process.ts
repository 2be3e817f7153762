import { fork } from 'node:child_process'
import type { SeedReport } from './simulate.ts'

export interface SeedResult extends SeedReport {
  /** Played twice, with the same trace both times. */
  replayed: boolean
}

export interface WorkerTask {
  first: number
  step: number
  /** The first seed that is not played any more. */
  end: number
  /** The planted bug to play with, until a seed finds it. */
  plantedBug?: string
  /** The seed to play before all others. */
  likely?: number
}

const WORKER = new URL('./worker.ts', import.meta.url)
const LOAD_HOOK = new URL('./planted-bugs/load-hook.ts', import.meta.url)

/** A process that plays its share of the seeds and reports each; `done` rejects when the process fails. */
export function startWorker(
  task: WorkerTask,
  onResult: (result: SeedResult) => void,
): { done: Promise<void>; stop: () => void } {
  const { plantedBug } = task
  const hook = plantedBug === undefined ? [] : ['--import', LOAD_HOOK.href]
  const child = fork(WORKER, [JSON.stringify(task)], { execArgv: [...hook, '--disable-warning=ExperimentalWarning'] })
  let stopped = false
  const done = new Promise<void>((resolve, reject) => {
    child.on('message', (result) => onResult(result as SeedResult))
    child.once('error', reject)
    child.once('exit', (code) => {
      if (code === 0 || stopped) resolve()
      else reject(new Error(`a worker ended with ${code}${plantedBug === undefined ? '' : ` (${plantedBug})`}`))
    })
  })
  return {
    done,
    stop: () => {
      stopped = true
      child.kill()
    },
  }
}
