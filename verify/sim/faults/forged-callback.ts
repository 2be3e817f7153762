import { createHmac } from 'node:crypto'
import { callbackBody } from '../outside/callbacks.ts'
import { valuesOf } from '../outside/run-plans.ts'
import type { SimRun } from '../outside/runtime.ts'
import { PUBLIC_URL, WEBHOOK_SECRET } from '../system/sim-config.ts'
import type { SimulatedSystem } from '../system/simulated-system.ts'
import type { Prng } from '../time/prng.ts'

const INVALID = ['nothing', 'wrong_token', 'wrong_secret', 'bad_signature', 'old_signature'] as const
/**
 * A valid credential of another job. It is the hardest forgery to detect, so it is used three times as often as the others.
 */
const OF_ANOTHER_JOB = ['other_token', 'other_token', 'other_token'] as const

/** Old also by a clock of the database that is wrong by hours. */
const OLD_MS = 4 * 3_600_000

/** Posts a false end of a run with a credential that is not the run's. The service must refuse it or ignore its content. */
export async function postForgedCallback(system: SimulatedSystem): Promise<void> {
  const { time, trace, sharedPrng: prng, runtime, violate } = system
  const runs = [...runtime.runs.values()].filter((run) => run.webhook?.includes('token='))
  const target = prng.pick(runs)
  if (!target) return
  // A credential of the same job would be no forgery. A job may have had another thread before.
  const isOther = ({ threadId, metadata }: SimRun) =>
    threadId !== target.threadId && metadata.job_id !== target.metadata.job_id
  const other = prng.pick(runs.filter(isOther))
  const how = prng.pick([...(other ? OF_ANOTHER_JOB : []), ...INVALID])
  const body = forgedBody(target, { nonce: how === 'other_token' ? 'borrowed-1' : 'forged-1', atMs: time.now, prng })
  const bare = pathOf(target).replace(/token=[^&]*/, 'token=')
  const { path, headers } = {
    nothing: { path: bare.split('?')[0] ?? '', headers: {} },
    wrong_token: { path: `${bare}${'A'.repeat(43)}`, headers: {} },
    other_token: { path: pathOf(other ?? target), headers: {} },
    wrong_secret: { path: bare, headers: { 'x-webhook-secret': 'guess', authorization: 'Bearer guess' } },
    bad_signature: { path: bare, headers: signatureHeaders({ secret: 'guess', body, atMs: time.now }) },
    old_signature: {
      path: bare,
      headers: signatureHeaders({ secret: WEBHOOK_SECRET, body, atMs: time.now - OLD_MS }),
    },
  }[how] as { path: string; headers: Record<string, string> }
  trace.fault('callback_forged', `${how} for ${target.runId}`)
  const response = await system.pickNode().request({ method: 'POST', path, headers, body })
  const refused = response === null || response.status === 401 || response.status === 503
  if (!refused && how !== 'other_token') violate('I6', `a callback with ${how} was answered ${response.status}`)
}

function forgedBody(run: SimRun, { nonce, atMs, prng }: { nonce: string; atMs: number; prng: Prng }): string {
  const status = prng.pick(['success', 'error', 'interrupted', 'rollback'] as const)
  const values = status === 'success' ? valuesOf(run.graphId, '"forged"') : undefined
  const error = status === 'error' ? 'forged' : null
  return callbackBody({ ...run, status, values, error }, { hosted: true, sentAtMs: atMs, nonce })
}

export interface SignedBody {
  secret: string
  body: string
  atMs: number
}

/** Headers according to the Standard Webhooks specification. */
export function signatureHeaders({ secret, body, atMs }: SignedBody): Record<string, string> {
  const timestamp = String(Math.floor(atMs / 1000))
  const digest = createHmac('sha256', secret).update(`msg.${timestamp}.${body}`).digest('base64')
  return { 'webhook-id': 'msg', 'webhook-timestamp': timestamp, 'webhook-signature': `v1,${digest}` }
}

function pathOf(run: SimRun): string {
  return (run.webhook ?? '').slice(PUBLIC_URL.length)
}
