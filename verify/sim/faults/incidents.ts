import { NODE_HEARTBEAT_MS } from '../../../src/db/nodes/node.ts'
import { NODE_LIFE_MS } from '../../../src/db/nodes/node-store.ts'
import type { SimNode } from '../system/node.ts'
import type { SimulatedSystem } from '../system/simulated-system.ts'
import { postForgedCallback } from './forged-callback.ts'
import { type Incident, MAX_SHORT_STALL_MS } from './plan.ts'

/** Without the database, a node is sure to hold its leases for this long: the heartbeat before may have been slow. */
export const LEASE_HELD_MS = NODE_LIFE_MS - NODE_HEARTBEAT_MS - MAX_SHORT_STALL_MS
/** An orderly stop takes no longer than the requests in flight. */
const STOP_WITHIN_MS = 60_000

/** Injects one of the planned faults, unless the time of faults is over. */
export function injectIncident(system: SimulatedSystem, incident: Incident): void {
  if (!system.faultsActive) return
  const { nodes, network, provider, trace } = system
  switch (incident.kind) {
    case 'arm':
      return nodes[incident.node].faults.arm(incident.point, incident.effect)
    case 'kill':
      return nodes[incident.node].kill()
    case 'suspend':
      trace.fault('suspend', `${incident.node} for ${incident.ms} ms`)
      return nodes[incident.node].suspend(incident.ms)
    case 'restart':
      return void restart(system, nodes[incident.node])
    case 'database_down':
      if (incident.ms > LEASE_HELD_MS) nodes[incident.node].instance?.loseLeases(system.time.now + incident.ms)
      return during(system, incident, (on) => {
        nodes[incident.node].databaseDown = on
      })
    case 'runtime_down':
      return during(system, incident, (on) => {
        network.runtimeDown = on ? (incident.hangs ? 'hangs' : 'refuses') : 'no'
      })
    case 'runtime_restart':
      trace.fault('runtime_restart')
      system.callbacks.loseDue()
      return system.runtime.restart()
    case 'identity_down':
      return during(system, incident, (on) => {
        network.identityDown = on
      })
    case 'push_refused':
      return during(system, incident, (on) => {
        provider.refuses = on
      })
    case 'clock_step':
      trace.note('fault', `the database's clock is wrong by ${incident.byMs} ms`)
      return during(system, incident, (on) => {
        system.databaseAheadMs = on ? incident.byMs : 0
      })
    case 'forgery':
      return void postForgedCallback(system)
    case 'replay':
      return void replayCallback(system)
    case 'bad_token':
      return void tryForgedToken(system)
  }
}

function during(system: SimulatedSystem, { kind, ms }: { kind: string; ms: number }, set: (on: boolean) => void): void {
  system.trace.fault(kind, `for ${ms} ms`)
  set(true)
  system.time.after(ms, () => set(false))
}

async function restart(system: SimulatedSystem, node: SimNode): Promise<void> {
  if (!node.up) return
  system.trace.fault('restart', node.name)
  const late = system.time.after(STOP_WITHIN_MS, () => {
    if (system.suspensions + system.databaseFaults === 0) system.violate('stop', `node ${node.name} does not stop`)
  })
  node.instance?.onEnd(() => late.cancel())
  await node.stop()
  system.bootLater(node)
}

/** An admin replays a stored callback. */
async function replayCallback(system: SimulatedSystem): Promise<void> {
  const client = system.client('admin', system.identity.admin.token)
  const listed = await client.request({ method: 'GET', path: '/v1/callbacks' })
  if (listed?.status !== 200) return
  const { data } = JSON.parse(listed.body) as { data: { id: string }[] }
  if (data.length === 0) return
  system.trace.fault('callback_replayed')
  await client.request({ method: 'POST', path: `/v1/callbacks/${system.sharedPrng.pick(data).id}/replay` })
}

async function tryForgedToken(system: SimulatedSystem): Promise<void> {
  system.trace.fault('token_forged')
  const client = system.client('forged-token', system.identity.forged)
  const answer = await client.request({ method: 'GET', path: '/jobs' })
  if (answer === null || answer.status === 503 || answer.status === 401) return
  system.violate('tokens', `a forged token was answered ${answer.status}`)
}
