import { TOKENS } from '../outside/run-plans.ts'
import type { SimulatedSystem } from '../system/simulated-system.ts'
import type { Prng } from '../time/prng.ts'
import { type Operator, send, startJob, unexpected } from './operator-scenario.ts'

/** The user whose limits an admin changes. No other client uses it. */
const LIMITED_USER = 5
const SHARE_OF_SEEDS = 0.3

/** In some seeds an admin gives a user limits and changes them, while the user starts jobs at the edge of the limits. */
export function startLimits(system: SimulatedSystem): void {
  const random = system.prng.split('limits')
  if (!random.chance(SHARE_OF_SEEDS)) return
  const { plan, time, identity } = system
  const { sub, token } = identity.user(LIMITED_USER)
  const admin = system.client('limiter', identity.admin.token)
  const at = (toMs: number, run: () => Promise<void>) =>
    time.after(random.int(0, toMs), () => {
      if (system.faultsActive) void run()
    })
  system.follow({ client: system.client(sub, token), path: '/v1/events', subject: sub, jobId: null })
  // The first limits are set while the first jobs start.
  for (let index = random.int(1, 4); index > 0; index--) {
    const part = random.split(`limits ${index}`)
    at(index === 1 ? 2_000 : plan.faultsMs, () => setLimits(system, { admin, part, sub, limits: limitsOf(part) }))
  }
  for (let index = random.int(4, 8); index > 0; index--) {
    const part = random.split(`job ${index}`)
    at(plan.faultsMs * 0.8, () => startJob(system, { part, jobs: [], user: LIMITED_USER, marker: `limited-${index}` }))
  }
}

function limitsOf(part: Prng): { runs: number | null; tokens: number | null } {
  const runs = part.chance(0.8) ? part.int(0, 5) : null
  return { runs, tokens: part.chance(0.4) ? part.int(1, 4) * TOKENS.total : null }
}

export async function setLimits(
  system: SimulatedSystem,
  { admin, part, sub, limits }: Operator & { sub: string; limits: ReturnType<typeof limitsOf> },
): Promise<void> {
  const request = { method: 'PUT', path: `/v1/users/${sub}/limits`, body: limits } as const
  const answer = await send(system, { admin, part }, request)
  if (answer?.status !== 200) unexpected(system, 'PUT /v1/users/{sub}/limits', answer)
}
