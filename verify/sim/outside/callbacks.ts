import { CALLBACK_TIMEOUT_MS, isRetried } from '../../../src/sandbox/agent-runtime/callbacks.ts'
import type { Run } from '../../../src/sandbox/agent-runtime/records.ts'
import { renderCallback } from '../../../src/sandbox/agent-runtime/wire.ts'
import type { Dials } from '../faults/plan.ts'
import type { Answer, SimNode } from '../system/node.ts'
import { PUBLIC_URL } from '../system/sim-config.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import type { SimRun } from './runtime.ts'

const DAY_MS = 86_400_000

export interface CallbackSenderOptions {
  time: VirtualTime
  prng: Prng
  trace: Trace
  dials: () => Dials
  hosted: boolean
  pickNode: () => SimNode
  /** How a run that was started elsewhere proves its callback. */
  proofOf: (body: string) => Record<string, string>
  onViolation: (invariant: string, what: string) => void
}

/** Carries the end of each run to the service as badly as the dials say, and remembers what the service said to it. */
export class CallbackSender {
  /** Each body that was answered with a 2xx, by its nonce. */
  readonly accepted = new Map<string, { runId: string; answer: string }>()
  /** Ends the service heard, as they were, of the run that it holds to be the job's. */
  readonly told: { runId: string; jobId: string; atMs: number }[] = []
  /** How many reached the service, by thread. */
  readonly arrived = new Map<string, number>()
  readonly #options: CallbackSenderOptions
  #sent = 0
  #generation = 0

  constructor(options: CallbackSenderOptions) {
    this.#options = options
  }

  send(run: SimRun): void {
    if (run.webhook === null) return
    const { time, prng, trace, hosted } = this.#options
    const dials = this.#options.dials().callbacks
    const isNameless = dials.nameless > 0 && prng.chance(dials.nameless)
    if (isNameless) trace.fault('callback_nameless', run.runId)
    const webhook = isNameless ? namelessUrl(run.webhook, prng.chance(0.3)) : run.webhook
    const shown = isNameless ? { ...run, metadata: {} } : run
    const nonce = `cb-${++this.#sent}`
    const body = callbackBody(shown, { hosted, sentAtMs: time.now, nonce })
    if (prng.chance(dials.early)) {
      trace.fault('callback_early')
      const running: Run = { ...shown, status: 'running', values: undefined, error: null }
      this.#post(webhook, callbackBody(running, { hosted, sentAtMs: time.now, nonce: `${nonce}-early` }), 0)
    }
    if (prng.chance(dials.drop)) return trace.fault('callback_dropped', run.runId)
    const copies = prng.chance(dials.double) ? 2 : 1
    if (copies === 2) trace.fault('callback_doubled', run.runId)
    for (let copy = 0; copy < copies; copy++)
      this.#post(webhook, this.#corrupted(body, dials.corrupt), this.#delay(dials))
  }

  /** A crash of the runtime takes with it what it has not delivered yet. */
  forget(): void {
    this.#generation += 1
  }

  #delay(dials: Dials['callbacks']): number {
    const { prng, trace } = this.#options
    const how = prng.fraction()
    if (how < dials.veryLate) {
      trace.fault('callback_very_late')
      return prng.int(60_000, DAY_MS)
    }
    if (how < dials.veryLate + dials.late) {
      trace.fault('callback_late')
      return prng.int(500, 60_000)
    }
    return prng.int(0, 100)
  }

  /** As a broken proxy would: cut short, emptied, or with a word nobody knows; never a plausible lie. */
  #corrupted(body: string, share: number): string {
    const { prng, trace } = this.#options
    if (!prng.chance(share)) return body
    trace.fault('callback_corrupted')
    const how = prng.int(0, 3)
    if (how === 0) return body.slice(0, prng.int(1, body.length - 1))
    if (how === 1) return ''
    if (how === 2) return body.replace(/"status":"\w+"/, '"status":"quantum"')
    return body.replace('"run_id"', '"ran_id"')
  }

  #post(webhook: string, body: string, delayMs: number): void {
    const { time } = this.#options
    const generation = this.#generation
    time.after(delayMs, () => {
      // What was on its way already arrives.
      if (delayMs < 1_000 && generation !== this.#generation) return
      void this.#attempt(webhook, body, 1)
    })
  }

  async #attempt(webhook: string, body: string, attempt: number): Promise<void> {
    const { time, prng, hosted, trace } = this.#options
    const answer = await this.#ask(webhook, body)
    trace.note('callback', `${nonceIn(body)} attempt ${attempt}: ${answer?.status ?? 'no answer'} ${outcomeIn(answer)}`)
    if (answer !== null && answer.status < 300) {
      this.accepted.set(nonceIn(body), { runId: runIn(body), answer: answer.body })
      return this.#noteTold(body, answer)
    }
    if (answer !== null && answer.status >= 500 && answer.status !== 503) {
      this.#options.onViolation('answers', `a callback was answered ${answer.status}: ${answer.body}`)
    }
    if (!isRetried(answer?.status ?? null, { hosted, attempt })) return
    time.after(prng.int(500, 5_000) * attempt, () => void this.#attempt(webhook, body, attempt + 1))
  }

  #noteTold(body: string, answer: Answer): void {
    const { outcome, job_id: jobId } = JSON.parse(answer.body) as { outcome: string; job_id: string }
    const isEnd = /"status":"(?:success|error|timeout|interrupted)"/.test(body)
    if (!isEnd || outcome === 'stale' || outcome === 'duplicate') return
    this.told.push({ runId: runIn(body), jobId, atMs: this.#options.time.now })
  }

  #ask(webhook: string, body: string): Promise<Answer | null> {
    const { time, hosted, pickNode, proofOf } = this.#options
    const path = webhook.slice(PUBLIC_URL.length)
    const headers = {
      'content-type': hosted ? 'application/json' : 'text/plain;charset=UTF-8',
      ...(path.includes('token=') ? {} : proofOf(body)),
    }
    const thread = /"thread_id":"([^"]*)"/.exec(body)?.[1] ?? ''
    this.arrived.set(thread, (this.arrived.get(thread) ?? 0) + 1)
    return new Promise((resolve) => {
      const timeout = time.after(CALLBACK_TIMEOUT_MS, () => resolve(null))
      void pickNode()
        .request({ method: 'POST', path, headers, body })
        .then((answer) => {
          timeout.cancel()
          resolve(answer)
        })
    })
  }
}

/** Proven by its headers instead, and so bound to no job; the URL may still name one. */
function namelessUrl(webhook: string, namesJob: boolean): string {
  const url = new URL(webhook)
  url.searchParams.delete('token')
  if (!namesJob) url.searchParams.delete('job_id')
  return url.href
}

/** The callback of the sandbox with a nonce, by which the checks find it in the store. */
export function callbackBody(
  run: Run,
  { nonce, ...options }: { hosted: boolean; sentAtMs: number; nonce: string },
): string {
  return JSON.stringify({ ...renderCallback(run, options), nonce })
}

function nonceIn(body: string): string {
  return /"nonce":"([^"]*)"/.exec(body)?.[1] ?? 'unreadable'
}

function runIn(body: string): string {
  return /"run_id":"([^"]*)"/.exec(body)?.[1] ?? ''
}

function outcomeIn(answer: Answer | null): string {
  return /"outcome":"(\w+)"/.exec(answer?.body ?? '')?.[1] ?? ''
}
