import type { Json } from '../../../src/core/json.ts'
import { isFinal } from '../expected-statuses.ts'
import { NODE_NAMES } from '../faults/plan.ts'
import type { SimulatedSystem } from '../system/simulated-system.ts'
import type { Prng } from '../time/prng.ts'
import type { Client, ClientRequest } from './client.ts'
import type { JobView } from './job-scenario.ts'
import { inputOf, nameRequest } from './sent-documents.ts'

/** The users whose jobs operators change, whom they block, and whom they erase. No other client uses them. */
export const OPERATED_USER = 2
const BLOCKED_USER = 3
export const ERASED_USER = 4
/** The users of delayed jobs and of questions that expire, and the one who is blocked before the jobs start. */
export const TIMED_USER = 6
export const BARRED_USER = 7
const SHARE_OF_SEEDS = 0.3
/** A block holds on every node within this time. */
const BLOCKED_WITHIN_MS = 5_000

/** What operators did, for the checks at the end. */
export class OperatorObservations {
  /** Jobs that an operator tried to delete. */
  readonly deletions = new Set<string>()
  /** Operations that were accepted. */
  readonly operations = new Set<string>()
  /** Whether the erasure of a user was accepted, or had ended when its answer was lost. */
  hasErased = false
  /** When the block of a user with delayed jobs was confirmed; null: it was not. */
  barredAtMs: number | null = null
}

/**
 * In some seeds an admin cancels, repeats, checks, replays and deletes the jobs of one user, and blocks another one, while
 * nodes crash.
 */
export function startOperators(system: SimulatedSystem): void {
  const random = system.prng.split('operators')
  if (!random.chance(SHARE_OF_SEEDS)) return
  const { plan, time } = system
  const admin = system.client('operator', system.identity.admin.token)
  const jobs: JobView[] = []
  const at = (from: number, to: number, run: () => Promise<void>) =>
    time.after(random.int(plan.faultsMs * from, plan.faultsMs * to), () => {
      if (system.faultsActive) void run()
    })
  for (let index = random.int(2, 4); index > 0; index--) {
    const part = random.split(`job ${index}`)
    at(0, 0.3, () => startJob(system, { part, jobs, user: OPERATED_USER, marker: `operated-${index}` }))
  }
  for (let index = random.int(2, 4); index > 0; index--) {
    const part = random.split(`operation ${index}`)
    at(0.2, 0.9, () => operate(system, { admin, part, jobs, index }))
  }
  for (let index = random.int(1, 3); index > 0; index--) {
    const part = random.split(`deletion ${index}`)
    at(0.4, 1, () => deleteJob(system, { admin, part, jobs }))
  }
  at(0, 0.5, () => block(system, { admin, part: random.split('block') }))
}

/** In some seeds an admin cancels many jobs at once while their callbacks arrive. */
export function startBulkCancel(system: SimulatedSystem): void {
  const random = system.prng.split('bulk cancel')
  if (!random.chance(SHARE_OF_SEEDS)) return
  const { plan, time } = system
  const admin = system.client('bulk operator', system.identity.admin.token)
  const jobs: JobView[] = []
  const startMs = random.int(0, plan.faultsMs * 0.6)
  for (let index = random.int(4, 8); index > 0; index--) {
    const part = random.split(`job ${index}`)
    const atMs = startMs + random.int(0, 1_000)
    time.after(atMs, () => void startJob(system, { part, jobs, user: OPERATED_USER, marker: `bulk-${index}` }))
  }
  time.after(startMs + random.int(1_000, 6_000), () => {
    if (!system.faultsActive || jobs.length === 0) return
    const ids = random.chance(0.5) ? jobs.map(({ id }) => id).reverse() : jobs.map(({ id }) => id)
    void sendOperation(system, { admin, part: random }, { key: 'bulk-cancel', body: { action: 'cancel', ids } })
  })
}

export async function startJob(
  system: SimulatedSystem,
  { part, jobs, user, marker, inMs }: { part: Prng; jobs: JobView[]; user: number; marker: string; inMs?: number },
): Promise<void> {
  const { sub, token } = system.identity.user(user)
  const created = new Set<string>()
  system.observed.created.set(marker, created)
  const type = part.weighted({ report: 4, agent: 2, review: 2 })
  const named = nameRequest(system.observed, { by: sub, marker })
  const delay = inMs === undefined ? '' : `,"run_at":"${new Date(system.time.now + inMs).toISOString()}"`
  const text = `{"type":"${type}","input":${inputOf(marker, { prng: part, observed: system.observed })},${named}${delay}}`
  const headers = { 'idempotency-key': `key-${marker}` }
  const client = system.client(sub, token)
  const answer = await client.requestUntilAnswered({ method: 'POST', path: '/jobs', body: { text }, headers })
  if (answer?.status !== 202) return
  const job = JSON.parse(answer.body) as JobView
  created.add(job.id)
  jobs.push(job)
}

export interface Operator {
  admin: Client
  part: Prng
}

async function operate(
  system: SimulatedSystem,
  { admin, part, jobs, index }: Operator & { jobs: readonly JobView[]; index: number },
): Promise<void> {
  const { sub } = system.identity.user(OPERATED_USER)
  const action = part.weighted({ cancel: 2, retry: 4, check: 3, replay: 2 })
  const byFilter = action === 'replay' || part.chance(0.5)
  const filter = action === 'replay' ? { type: 'report' } : { created_by: sub }
  const target = byFilter ? { filter } : { ids: jobs.map(({ id }) => id) }
  if (!byFilter && jobs.length === 0) return
  const id = await sendOperation(system, { admin, part }, { key: `operation-${index}`, body: { action, ...target } })
  if (id === null) return
  await system.time.sleep(part.int(0, 3_000))
  if (system.faultsActive && part.chance(0.4)) {
    const name = part.pick(NODE_NAMES)
    if (name !== system.plan.steadyNode) system.nodes[name].kill()
  }
  if (!part.chance(0.15)) return
  const stopped = await admin.requestUntilAnswered({ method: 'POST', path: `/v1/operations/${id}/cancel` })
  if (stopped?.status !== 200 && stopped?.status !== 409) unexpected(system, 'the end of an operation', stopped)
}

/** Returns the id of the accepted operation. */
async function sendOperation(
  system: SimulatedSystem,
  operator: Operator,
  { key, body }: { key: string; body: Json },
): Promise<string | null> {
  const { observed, identity } = system
  const { sub } = identity.user(OPERATED_USER)
  // Each job may be checked once for each operation, and once more after a crash.
  observed.lists.set(sub, (observed.lists.get(sub) ?? 0) + 3)
  const headers = { 'idempotency-key': key }
  const answer = await send(system, operator, { method: 'POST', path: '/v1/operations', body, headers })
  if (answer?.status !== 202) {
    unexpected(system, 'POST /v1/operations', answer)
    return null
  }
  const { id } = JSON.parse(answer.body) as { id: string }
  observed.operators.operations.add(id)
  return id
}

async function deleteJob(
  system: SimulatedSystem,
  { admin, part, jobs }: Operator & { jobs: readonly JobView[] },
): Promise<void> {
  const { observed } = system
  if (jobs.length === 0) return
  const { id, thread_id } = part.pick(jobs)
  observed.requests.set(thread_id, (observed.requests.get(thread_id) ?? 0) + 1)
  const shown = await admin.request({ method: 'GET', path: `/jobs/${id}` })
  if (shown?.status !== 200 || !isFinal((JSON.parse(shown.body) as JobView).status)) return
  observed.operators.deletions.add(id)
  const answer = await send(system, { admin, part }, { method: 'DELETE', path: `/jobs/${id}` })
  // It was deleted, and the answer was lost.
  if (answer?.status !== 204 && answer?.status !== 404) unexpected(system, 'DELETE /jobs/{id}', answer)
}

async function block(system: SimulatedSystem, { admin, part }: Operator): Promise<void> {
  const { sub, token } = system.identity.user(BLOCKED_USER)
  const client = system.client(sub, token)
  for (const [change, expected] of [
    ['block', 403],
    ['unblock', 200],
  ] as const) {
    const request = { method: 'POST', path: `/v1/users/${sub}/${change}` } as const
    const answer = await send(system, { admin, part }, request)
    if (answer?.status !== 200) return unexpected(system, change, answer)
    if (part.chance(0.5)) await admin.requestUntilAnswered(request)
    await system.time.sleep(BLOCKED_WITHIN_MS + part.int(0, 3_000))
    for (let probes = 0; probes < 4; probes++) await probe(system, { client, expected })
  }
}

/** With a node that cannot read the database in time, the last state that it knows stays. */
async function probe(system: SimulatedSystem, { client, expected }: { client: Client; expected: number }) {
  const answer = await client.request({ method: 'GET', path: '/v1/usage' })
  if (answer === null || answer.status === 503 || answer.status === expected) return
  if (system.suspensions + system.databaseFaults > 0 || system.isSlowed) return
  system.violate('blocking', `a user was answered ${answer.status} instead of ${expected}`)
}

/** Some nodes crash just after they commit what the operator asks for. */
export function send(system: SimulatedSystem, { admin, part }: Operator, request: ClientRequest) {
  if (system.faultsActive && part.chance(0.3)) {
    for (const name of NODE_NAMES) {
      if (name !== system.plan.steadyNode) system.nodes[name].faults.arm('tx.committed', { kind: 'crash' })
    }
  }
  return admin.requestUntilAnswered(request)
}

export function unexpected(
  system: SimulatedSystem,
  what: string,
  answer: { status: number; body: string } | null,
): void {
  if (answer !== null) system.violate('answers', `${what} answered ${answer.status}: ${answer.body}`)
}
