import { SHORT_TOKEN_MS } from '../outside/identity.ts'
import { isOwn, type SimRun } from '../outside/runtime.ts'
import { PUBLIC_URL } from '../system/sim-config.ts'
import type { SimulatedSystem } from '../system/simulated-system.ts'
import type { Prng } from '../time/prng.ts'
import { runDeviceScenario } from './device-scenario.ts'
import { startErasure } from './erasure-scenario.ts'
import { JobScenario } from './job-scenario.ts'
import { startLimits } from './limit-scenario.ts'
import {
  BARRED_USER,
  send,
  startBulkCancel,
  startJob,
  startOperators,
  TIMED_USER,
  unexpected,
} from './operator-scenario.ts'
import { startWebhooks } from './webhook-scenario.ts'

/** Starts all clients of the service under this seed. */
export function startWorkload(system: SimulatedSystem): void {
  const { plan, identity, sharedPrng } = system
  for (let index = 0; index < plan.users; index++) startUser(system, identity.user(index))
  for (let index = 0; index < plan.foreignRuns; index++) startForeignRun(system, index)
  if (plan.blackoutMs > 0) startLastJob(system)
  if (sharedPrng.chance(0.3)) {
    const client = system.client('admin', identity.admin.token)
    system.follow({ client, path: '/v1/events?all=true', subject: null, jobId: null })
  }
  probeShortToken(system)
  startOperators(system)
  startBulkCancel(system)
  startErasure(system)
  startLimits(system)
  startTimed(system)
  startWebhooks(system)
}

/** In some seeds a user has questions that expire, jobs that start later, and more jobs than may run at once. */
function startTimed(system: SimulatedSystem): void {
  const random = system.prng.split('timed')
  if (!random.chance(0.3)) return
  const { plan, time, identity, provider } = system
  const user = identity.user(TIMED_USER)
  const client = system.client(user.sub, user.token)
  const devices = { client, time, prng: random.split('devices'), provider, isActive: () => system.faultsActive }
  void runDeviceScenario(devices)
  for (let index = random.int(2, 5); index > 0; index--) {
    const part = random.split(`job ${index}`)
    const scenario = scenarioOf(system, user, part, `timed-${index}`)
    const isDelayed = part.chance(0.5)
    time.after(random.int(0, plan.faultsMs * 0.5), () => {
      const runAtMs = isDelayed ? time.now + part.int(-1_000, 40_000) : undefined
      void scenario.start('inquiry', undefined, undefined, runAtMs)
    })
  }
  if (random.chance(0.5)) void barUser(system, random.split('barred'))
}

/** An admin blocks a user, about when the delayed jobs of that user are to start. */
async function barUser(system: SimulatedSystem, random: Prng): Promise<void> {
  const { time, identity, observed } = system
  const { sub } = identity.user(BARRED_USER)
  for (let index = random.int(1, 3); index > 0; index--) {
    const inMs = random.int(2_000, 40_000)
    await startJob(system, {
      part: random.split(`job ${index}`),
      jobs: [],
      user: BARRED_USER,
      marker: `barred-${index}`,
      inMs,
    })
  }
  await time.sleep(random.int(0, 20_000))
  if (!system.faultsActive) return
  const admin = system.client('barrer', identity.admin.token)
  const answer = await send(system, { admin, part: random }, { method: 'POST', path: `/v1/users/${sub}/block` })
  if (answer?.status !== 200) return unexpected(system, 'block', answer)
  observed.operators.barredAtMs = time.now
}

function startUser(system: SimulatedSystem, { sub, token }: { sub: string; token: string }): void {
  const { plan, prng, time, provider } = system
  const client = system.client(sub, token)
  const random = prng.split(`user ${sub}`)
  // The jobs of all users start within half a second.
  const crowdAtMs = prng.split('crowd').int(0, plan.faultsMs * 0.6)
  void runDeviceScenario({ client, time, prng: random.split('devices'), provider, isActive: () => system.faultsActive })
  if (random.chance(0.6)) system.follow({ client, path: '/v1/events', subject: sub, jobId: null })
  for (let index = 0; index < Math.ceil(plan.jobs / plan.users); index++) {
    const scenario = scenarioOf(system, { sub, token }, random.split(`job ${index}`), `${sub}-${index}`)
    const type = random.weighted({ agent: 3, report: plan.theme === 'pauses' ? 0 : 4, review: 4, ghost: 0.3 })
    const atMs = plan.theme === 'crowds' ? crowdAtMs + random.int(0, 500) : random.int(0, plan.faultsMs * 0.8)
    time.after(atMs, () => void scenario.start(type))
  }
}

/** A job just before the blackout: its run may start and end while no node is up. */
function startLastJob(system: SimulatedSystem): void {
  const { plan, prng, identity, time } = system
  const random = prng.split('last job')
  const scenario = scenarioOf(system, identity.user(0), random, 'last')
  time.after(plan.faultsMs - random.int(1, 150), () => void scenario.start('report'))
}

/** A run that was not started by the service. Its callback may arrive before a client follows it, or no client ever does. */
function startForeignRun(system: SimulatedSystem, index: number): void {
  const { plan, prng, identity, time, runtime } = system
  const random = prng.split(`foreign ${index}`)
  const user = identity.user(random.int(0, plan.users - 1))
  const scenario = scenarioOf(system, user, random, `foreign-${index}`)
  time.after(random.int(0, plan.faultsMs * 0.8), () => {
    const assistant = random.pick(['agent', 'report', 'review'])
    const path = assistant === 'agent' ? '/webhooks/agent' : `/webhooks/jobs/${assistant}`
    const run = runtime.startForeign(assistant, `${PUBLIC_URL}${path}`, user.sub)
    if (random.chance(0.3)) return
    // The request to follow also calls the runtime, possibly at the same time as a check on the other node.
    system.contested.add(run.threadId)
    // Half of the clients follow the run at the moment when its callback arrives.
    const endMs = run.plan.pendingMs + run.plan.runningMs
    time.after(
      random.chance(0.5) ? endMs + random.int(-50, 400) : random.int(0, 30_000),
      () => void scenario.follow(run),
    )
  })
}

/** An admin follows a run that the service started, as if it had been started elsewhere, before its start is answered. */
export function contestRun(system: SimulatedSystem, run: SimRun): void {
  const { plan, prng, identity, faultsActive, contested } = system
  const random = prng.split(`contest ${run.runId}`)
  if (!faultsActive || run.isLate || !isOwn(run) || !random.chance(plan.contested)) return
  system.trace.fault('run_contested', run.runId)
  contested.add(run.threadId)
  void scenarioOf(system, identity.admin, random, `contest-${run.runId}`).follow(run)
}

function scenarioOf(
  system: SimulatedSystem,
  user: { sub: string; token: string },
  prng: Prng,
  marker: string,
): JobScenario {
  const { time, observed, plan, runtime, violate } = system
  const client = system.client(user.sub, user.token)
  return new JobScenario(
    {
      client,
      admin: system.client('admin', system.identity.admin.token),
      time,
      prng,
      observed,
      theme: plan.theme,
      wasChangedElsewhere: (threadId) => runtime.wasChangedElsewhere(threadId),
      continued: plan.continued,
      hurried: plan.hurried,
      onViolation: violate,
      isActive: () => system.faultsActive,
      watch: (jobId) => system.follow({ client, path: `/jobs/${jobId}/events`, subject: null, jobId }),
    },
    marker,
  )
}

const FIRST_HEARTBEATS_MS = 10_000

/** An expired token is refused, also when it is in the cache. */
function probeShortToken(system: SimulatedSystem): void {
  const client = system.client('short', system.identity.short.token)
  const probe = async (expected: number) => {
    const answer = await client.request({ method: 'GET', path: '/jobs' })
    if (answer === null || answer.status === 503 || answer.status === expected || system.suspensions > 0) return
    // Before its first heartbeats, a node's time may be late by the time that the database needed to answer.
    if (expected === 401 && system.time.now - system.lastBootMs < FIRST_HEARTBEATS_MS) return
    system.violate('tokens', `a token was answered ${answer.status} instead of ${expected}`)
  }
  for (const atMs of [5_000, 15_000]) system.time.after(atMs, () => void probe(200))
  system.time.after(SHORT_TOKEN_MS + 1_500, () => void probe(401))
}
