import { SHORT_TOKEN_MS } from '../outside/identity.ts'
import type { SimRun } from '../outside/runtime.ts'
import { PUBLIC_URL } from '../system/sim-config.ts'
import type { World } from '../system/simulated-system.ts'
import type { Prng } from '../time/prng.ts'
import { liveWithDevices } from './device-scenario.ts'
import { JobStory } from './job-scenario.ts'

/** Everybody who uses the service under this seed, and what they are up to. */
export function populate(world: World): void {
  const { plan, identity, luck } = world
  for (let index = 0; index < plan.users; index++) beginUser(world, identity.user(index))
  for (let index = 0; index < plan.foreignRuns; index++) beginForeignRun(world, index)
  if (plan.blackoutMs > 0) beginLastJob(world)
  if (luck.chance(0.3)) {
    const client = world.client('admin', identity.admin.token)
    world.follow({ client, path: '/v1/events?all=true', subject: null, jobId: null })
  }
  probeShortToken(world)
}

function beginUser(world: World, { sub, token }: { sub: string; token: string }): void {
  const { plan, prng, time, provider } = world
  const client = world.client(sub, token)
  const luck = prng.split(`user ${sub}`)
  // All at once, and the same moment for everybody.
  const crowdAtMs = prng.split('crowd').int(0, plan.chaosMs * 0.6)
  void liveWithDevices({ client, time, prng: luck.split('devices'), provider, goesOn: () => world.chaos })
  if (luck.chance(0.6)) world.follow({ client, path: '/v1/events', subject: sub, jobId: null })
  for (let index = 0; index < Math.ceil(plan.jobs / plan.users); index++) {
    const story = storyOf(world, { sub, token }, luck.split(`job ${index}`), `${sub}-${index}`)
    const type = luck.weighted({ agent: 3, report: plan.theme === 'pauses' ? 0 : 4, review: 4, ghost: 0.3 })
    const atMs = plan.theme === 'crowds' ? crowdAtMs + luck.int(0, 500) : luck.int(0, plan.chaosMs * 0.8)
    time.after(atMs, () => void story.start(type))
  }
}

/** A job in the last moment before everything goes dark: its run may begin, and end, with nobody to remember it. */
function beginLastJob(world: World): void {
  const { plan, prng, identity, time } = world
  const luck = prng.split('last job')
  const story = storyOf(world, identity.user(0), luck, 'last')
  time.after(plan.chaosMs - luck.int(1, 150), () => void story.start('report'))
}

/** A run that somebody started on the runtime itself; its callback may come before anybody follows it, or nobody ever does. */
function beginForeignRun(world: World, index: number): void {
  const { plan, prng, identity, time, runtime } = world
  const luck = prng.split(`foreign ${index}`)
  const story = storyOf(world, identity.user(luck.int(0, plan.users - 1)), luck, `foreign-${index}`)
  time.after(luck.int(0, plan.chaosMs * 0.8), () => {
    const assistant = luck.pick(['agent', 'report', 'review'])
    const path = assistant === 'agent' ? '/webhooks/agent' : `/webhooks/jobs/${assistant}`
    const run = runtime.startForeign(assistant, `${PUBLIC_URL}${path}`)
    if (luck.chance(0.3)) return
    // As likely as not at the very moment its callback arrives.
    const endMs = run.plan.pendingMs + run.plan.runningMs
    time.after(luck.chance(0.5) ? endMs + luck.int(-50, 400) : luck.int(0, 30_000), () => void story.follow(run))
  })
}

/** Somebody who watches the runtime follows a run of ours, as one started elsewhere, before its start is answered. */
export function contest(world: World, run: SimRun): void {
  const { plan, prng, identity, chaos, contested } = world
  const luck = prng.split(`contest ${run.runId}`)
  if (!chaos || run.metadata.job_id === undefined || !luck.chance(plan.contested)) return
  world.trace.fault('run_contested', run.runId)
  contested.add(run.threadId)
  const user = identity.user(luck.int(0, plan.users - 1))
  void storyOf(world, user, luck, `contest-${run.runId}`).follow(run)
}

function storyOf(world: World, user: { sub: string; token: string }, prng: Prng, marker: string): JobStory {
  const { time, promises, plan, violate } = world
  const client = world.client(user.sub, user.token)
  return new JobStory(
    {
      client,
      time,
      prng,
      promises,
      theme: plan.theme,
      onViolation: violate,
      goesOn: () => world.chaos,
      watch: (jobId) => world.follow({ client, path: `/jobs/${jobId}/events`, subject: null, jobId }),
    },
    marker,
  )
}

/** A token that is over opens nothing, however well it is remembered. */
function probeShortToken(world: World): void {
  const client = world.client('short', world.identity.short.token)
  const ask = async (expected: number) => {
    const answer = await client.ask({ method: 'GET', path: '/jobs' })
    if (answer === null || answer.status === 503 || answer.status === expected || world.suspensions > 0) return
    world.violate('tokens', `a token was answered ${answer.status} instead of ${expected}`)
  }
  for (const atMs of [5_000, 15_000]) world.time.after(atMs, () => void ask(200))
  world.time.after(SHORT_TOKEN_MS + 1_500, () => void ask(401))
}
