import type { SimulatedSystem } from '../system/simulated-system.ts'
import type { JobView } from './job-scenario.ts'
import { setLimits } from './limit-scenario.ts'
import { ERASED_USER, send, startJob, unexpected } from './operator-scenario.ts'

const SHARE_OF_SEEDS = 0.2

/** In some seeds an admin erases a user whose jobs have ended, run, or wait for an answer. */
export function startErasure(system: SimulatedSystem): void {
  const random = system.prng.split('erasures')
  if (!random.chance(SHARE_OF_SEEDS)) return
  system.time.after(random.int(0, system.plan.faultsMs * 0.3), () => void liveAndLeave(system))
}

async function liveAndLeave(system: SimulatedSystem): Promise<void> {
  const { identity, observed, plan, time } = system
  const random = system.prng.split('erased user')
  const jobs: JobView[] = []
  const delays = system.prng.split('erased delays')
  for (let index = random.int(1, 4); index > 0; index--) {
    const delay = delays.chance(0.3) ? { inMs: delays.int(2_000, plan.faultsMs) } : {}
    const marker = `erased-${index}`
    await startJob(system, { part: random.split(`job ${index}`), jobs, user: ERASED_USER, marker, ...delay })
  }
  const waitMs = random.int(0, plan.faultsMs * 0.4)
  // In some of them the callbacks of the jobs arrive during the erasure.
  const early = system.prng.split('early erasure')
  await time.sleep(early.chance(0.3) ? early.int(0, 4_000) : waitMs)
  if (!system.faultsActive || jobs.length === 0) return
  const { sub } = identity.user(ERASED_USER)
  const admin = system.client('eraser', identity.admin.token)
  const limited = system.prng.split('limits of the erased user')
  // The limit is below the usage of some, so that a threshold is erased too.
  if (limited.chance(0.5)) await setLimits(system, { admin, part: limited, sub, limits: { runs: 1, tokens: null } })
  const answer = await send(system, { admin, part: random }, { method: 'DELETE', path: `/v1/users/${sub}` })
  // The erasure has ended, and the answer was lost.
  const hasEnded = answer?.status === 404
  if (answer?.status !== 202 && !hasEnded) return unexpected(system, 'DELETE /v1/users/{sub}', answer)
  observed.operators.hasErased = true
  if (!hasEnded) observed.operators.operations.add((JSON.parse(answer.body) as { id: string }).id)
}
