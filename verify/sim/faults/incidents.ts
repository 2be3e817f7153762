import type { SimNode } from '../system/node.ts'
import type { World } from '../system/simulated-system.ts'
import { Forger } from './forged-callback.ts'
import type { Incident } from './plan.ts'

/** An orderly stop takes no longer than what is under way. */
const STOP_WITHIN_MS = 60_000

/** Lets one of the planned misfortunes happen, unless they are over. */
export function happen(world: World, incident: Incident): void {
  if (!world.chaos) return
  const { nodes, network, provider, trace } = world
  switch (incident.kind) {
    case 'arm':
      return nodes[incident.node].faults.arm(incident.point, incident.effect)
    case 'kill':
      return nodes[incident.node].kill()
    case 'suspend':
      trace.fault('suspend', `${incident.node} for ${incident.ms} ms`)
      return nodes[incident.node].life?.suspend(incident.ms)
    case 'restart':
      return void restart(world, nodes[incident.node])
    case 'database_down':
      return during(world, incident, (on) => {
        nodes[incident.node].databaseDown = on
      })
    case 'runtime_down':
      return during(world, incident, (on) => {
        network.runtimeDown = on ? (incident.hangs ? 'hangs' : 'refuses') : 'no'
      })
    case 'runtime_restart':
      trace.fault('runtime_restart')
      world.callbacks.forget()
      return world.runtime.restart()
    case 'identity_down':
      return during(world, incident, (on) => {
        network.identityDown = on
      })
    case 'push_refused':
      return during(world, incident, (on) => {
        provider.refuses = on
      })
    case 'forgery':
      return void forge(world)
    case 'replay':
      return void replayCallback(world)
    case 'bad_token':
      return void tryForgedToken(world)
  }
}

function during(world: World, { kind, ms }: { kind: string; ms: number }, turn: (on: boolean) => void): void {
  world.trace.fault(kind, `for ${ms} ms`)
  turn(true)
  world.time.after(ms, () => turn(false))
}

async function restart(world: World, node: SimNode): Promise<void> {
  if (!node.up) return
  world.trace.fault('restart', node.name)
  const late = world.time.after(STOP_WITHIN_MS, () => {
    if (world.suspensions + world.databaseFaults === 0) world.violate('stop', `node ${node.name} does not stop`)
  })
  node.life?.onEnd(() => late.cancel())
  await node.stop()
  world.bootLater(node)
}

async function forge(world: World): Promise<void> {
  const { time, trace, luck, runtime, violate } = world
  const runs = () => runtime.runs.values()
  await new Forger({ time, trace, prng: luck, runs, pickNode: () => world.pickNode(), onViolation: violate }).forge()
}

/** An admin has a stored callback looked at again. */
async function replayCallback(world: World): Promise<void> {
  const client = world.client('admin', world.identity.admin.token)
  const listed = await client.ask({ method: 'GET', path: '/v1/callbacks' })
  if (listed?.status !== 200) return
  const { data } = JSON.parse(listed.body) as { data: { id: string }[] }
  if (data.length === 0) return
  world.trace.fault('callback_replayed')
  await client.ask({ method: 'POST', path: `/v1/callbacks/${world.luck.pick(data).id}/replay` })
}

async function tryForgedToken(world: World): Promise<void> {
  world.trace.fault('token_forged')
  const client = world.client('forger', world.identity.forged)
  const answer = await client.ask({ method: 'GET', path: '/jobs' })
  if (answer === null || answer.status === 503 || answer.status === 401) return
  world.violate('tokens', `a forged token was answered ${answer.status}`)
}
