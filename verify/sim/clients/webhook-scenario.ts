import { NODE_NAMES } from '../faults/plan.ts'
import type { Receiver } from '../outside/webhook-receivers.ts'
import type { SimulatedSystem } from '../system/simulated-system.ts'
import { type Operator, send, unexpected } from './operator-scenario.ts'

type Endpoint = { id: string; secret: string | null }

/** A crash between the cursor and what follows must lose no event. */
const MAX_CURSOR_CRASHES = 2

/** An admin creates the endpoints of this seed's receivers, and disables, enables, recovers and rotates some of them. */
export function startWebhooks(system: SimulatedSystem): void {
  const { prng, receivers } = system
  const random = prng.split('webhook operator')
  const admin = system.client('webhook operator', system.identity.admin.token)
  for (const receiver of receivers.all) {
    void operate(system, { admin, part: random.split(receiver.name), receiver })
  }
  if (receivers.all.length === 0) return
  for (let crashes = random.int(0, MAX_CURSOR_CRASHES); crashes > 0; crashes--) {
    const name = random.pick(NODE_NAMES)
    system.time.after(random.int(0, system.plan.faultsMs), () => {
      const isSpared = name === system.plan.steadyNode || !system.faultsActive
      if (!isSpared) system.nodes[name].faults.arm('cursor.moved', { kind: 'crash' })
    })
  }
}

async function operate(
  system: SimulatedSystem,
  { receiver, ...operator }: Operator & { receiver: Receiver },
): Promise<void> {
  const { part } = operator
  const { time, plan } = system
  const startMs = time.now
  const waits = async () => {
    await time.sleep(part.int(0, plan.faultsMs * 0.3))
    return system.faultsActive
  }
  if (!(await waits())) return
  const endpoint = await create(system, { ...operator, receiver })
  if (endpoint === null) return
  // The answer with the secret was lost: only a new secret can be read.
  const mustRotate = endpoint.secret === null || part.chance(0.2)
  if (mustRotate && (await waits())) await rotate(system, { ...operator, endpoint })
  const isSwitched = part.chance(0.35)
  if (isSwitched && (await waits())) await change(system, { ...operator, endpoint, enabled: false })
  const isGone = receiver.modes.some(({ mode }) => mode === 'gone')
  if ((!isSwitched && !isGone) || !part.chance(0.8) || !(await waits())) return
  await change(system, { ...operator, endpoint, enabled: true })
  if (part.chance(0.7)) await recover(system, { ...operator, endpoint, sinceMs: startMs })
}

async function create(
  system: SimulatedSystem,
  { receiver, ...operator }: Operator & { receiver: Receiver },
): Promise<Endpoint | null> {
  const { name, url, events, types } = receiver
  const headers = { 'idempotency-key': `create-${name}` }
  const body = { url, events: [...events], types: types && [...types], description: name }
  const answer = await send(system, operator, { method: 'POST', path: '/v1/webhook-endpoints', headers, body })
  if (answer?.status === 201) return JSON.parse(answer.body) as Endpoint
  unexpected(system, 'POST /v1/webhook-endpoints', answer)
  return null
}

async function rotate(system: SimulatedSystem, { endpoint, ...operator }: Operator & { endpoint: Endpoint }) {
  const headers = { 'idempotency-key': `rotate-${endpoint.id}` }
  const path = `/v1/webhook-endpoints/${endpoint.id}/rotate`
  const answer = await send(system, operator, { method: 'POST', path, headers })
  if (answer?.status !== 201) unexpected(system, path, answer)
}

async function change(
  system: SimulatedSystem,
  { endpoint, enabled, ...operator }: Operator & { endpoint: Endpoint; enabled: boolean },
): Promise<void> {
  const path = `/v1/webhook-endpoints/${endpoint.id}`
  const answer = await send(system, operator, { method: 'PATCH', path, body: { enabled } })
  if (answer?.status !== 200) unexpected(system, `PATCH ${path}`, answer)
}

async function recover(
  system: SimulatedSystem,
  { endpoint, sinceMs, ...operator }: Operator & { endpoint: Endpoint; sinceMs: number },
): Promise<void> {
  const headers = { 'idempotency-key': `recover-${endpoint.id}` }
  const path = `/v1/webhook-endpoints/${endpoint.id}/recover`
  const body = { since: new Date(sinceMs).toISOString() }
  const answer = await send(system, operator, { method: 'POST', path, headers, body })
  // The receiver has answered 410 again.
  if (answer?.status === 409) return
  if (answer?.status !== 202) return unexpected(system, path, answer)
  system.observed.operators.operations.add((JSON.parse(answer.body) as { id: string }).id)
}
