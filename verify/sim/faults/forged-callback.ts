import { createHmac } from 'node:crypto'
import { callbackBody } from '../outside/callbacks.ts'
import { valuesOf } from '../outside/run-plans.ts'
import type { SimRun } from '../outside/runtime.ts'
import type { SimNode } from '../system/node.ts'
import { PUBLIC_URL, WEBHOOK_SECRET } from '../system/sim-config.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'

export interface ForgerOptions {
  time: VirtualTime
  prng: Prng
  trace: Trace
  runs: () => Iterable<SimRun>
  pickNode: () => SimNode
  onViolation: (invariant: string, what: string) => void
}

const INVENTED = ['nothing', 'wrong_token', 'wrong_secret', 'bad_signature', 'old_signature'] as const
/** Harder to tell from the right one than the others, and so tried as often as three of them. */
const STOLEN = ['other_token', 'other_token', 'other_token'] as const

/** Posts ends of runs that never were, with every credential but the right one. */
export class Forger {
  readonly #options: ForgerOptions
  #forgeries = 0

  constructor(options: ForgerOptions) {
    this.#options = options
  }

  async forge(): Promise<void> {
    const { prng, trace, pickNode, onViolation } = this.#options
    const runs = [...this.#options.runs()].filter((run) => run.webhook?.includes('token='))
    const victim = prng.pick(runs)
    if (!victim) return
    // A credential of its own job is no forgery.
    const other = prng.pick(runs.filter(({ threadId }) => threadId !== victim.threadId))
    const how = prng.pick([...(other ? STOLEN : []), ...INVENTED])
    const nonce = `${how === 'other_token' ? 'borrowed' : 'forged'}-${++this.#forgeries}`
    const body = this.#lie(victim, nonce)
    const bare = pathOf(victim).replace(/token=[^&]*/, 'token=')
    const { path, headers } = {
      nothing: { path: bare.split('?')[0] ?? '', headers: {} },
      wrong_token: { path: `${bare}${'A'.repeat(43)}`, headers: {} },
      other_token: { path: pathOf(other ?? victim), headers: {} },
      wrong_secret: { path: bare, headers: { 'x-webhook-secret': 'guess', authorization: 'Bearer guess' } },
      bad_signature: { path: bare, headers: this.#signed('guess', body, 0) },
      old_signature: { path: bare, headers: this.#signed(WEBHOOK_SECRET, body, 400_000) },
    }[how] as { path: string; headers: Record<string, string> }
    trace.fault('callback_forged', `${how} for ${victim.runId}`)
    const answer = await pickNode().request({ method: 'POST', path, headers, body })
    const refused = answer === null || answer.status === 401 || answer.status === 503
    if (!refused && how !== 'other_token') onViolation('I6', `a callback with ${how} was answered ${answer.status}`)
  }

  #lie(run: SimRun, nonce: string): string {
    const { prng, time } = this.#options
    const status = prng.pick(['success', 'error', 'interrupted', 'rollback'] as const)
    const values = status === 'success' ? valuesOf(run.graphId, '"forged"') : undefined
    const error = status === 'error' ? 'forged' : null
    return callbackBody({ ...run, status, values, error }, { hosted: true, sentAtMs: time.now, nonce })
  }

  #signed(secret: string, body: string, ageMs: number): Record<string, string> {
    return signatureHeaders({ secret, body, atMs: this.#options.time.now - ageMs })
  }
}

/** Standard Webhooks. */
export function signatureHeaders({
  secret,
  body,
  atMs,
}: {
  secret: string
  body: string
  atMs: number
}): Record<string, string> {
  const timestamp = String(Math.floor(atMs / 1000))
  const digest = createHmac('sha256', secret).update(`msg.${timestamp}.${body}`).digest('base64')
  return { 'webhook-id': 'msg', 'webhook-timestamp': timestamp, 'webhook-signature': `v1,${digest}` }
}

function pathOf(run: SimRun): string {
  return (run.webhook ?? '').slice(PUBLIC_URL.length)
}
