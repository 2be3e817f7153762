import type { SimRun } from '../outside/runtime.ts'
import type { SimulatedSystem } from '../system/simulated-system.ts'

const MAX_DELAY_MS = 30_000

/** Another client of the runtime, which the service does not know, may answer the question of a paused run. */
export function perhapsAnswerElsewhere(system: SimulatedSystem, run: SimRun): void {
  const { plan, prng, time, runtime, faultsActive } = system
  if (!run.paused || !faultsActive || plan.elsewhere === 0) return
  const random = prng.split(`elsewhere ${run.runId}`)
  if (!random.chance(plan.elsewhere)) return
  const how = random.weighted({ run: 4, 'by hand': 1 })
  time.after(random.int(0, MAX_DELAY_MS), () => runtime.answerElsewhere(run, how))
}
