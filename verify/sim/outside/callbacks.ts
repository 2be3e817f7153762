import { CALLBACK_TIMEOUT_MS, isRetried } from '../../../src/sandbox/agent-runtime/callbacks.ts'
import type { Run } from '../../../src/sandbox/agent-runtime/records.ts'
import { renderCallback } from '../../../src/sandbox/agent-runtime/wire.ts'
import type { FaultRates } from '../faults/plan.ts'
import type { NodeResponse, SimNode } from '../system/node.ts'
import { PUBLIC_URL } from '../system/sim-config.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import type { SimRun } from './runtime.ts'

const DAY_MS = 86_400_000

export interface CallbackDeliveryOptions {
  time: VirtualTime
  prng: Prng
  trace: Trace
  rates: () => FaultRates
  hosted: boolean
  pickNode: () => SimNode
  /** The headers that authenticate a callback without a token in its URL. */
  proofOf: (body: string) => Record<string, string>
  onViolation: (invariant: string, what: string) => void
}

/** Delivers the callback of each run to the service with the planned faults, and keeps the service's responses. */
export class CallbackDelivery {
  /** Callbacks that were answered with a 2xx, by nonce. `numbersRun`: the body names the job and numbers its run. */
  readonly accepted = new Map<string, { runId: string; answer: string; numbersRun: boolean }>()
  /** Ends of runs that the service accepted for a job. */
  readonly reportedEnds: { runId: string; jobId: string; atMs: number }[] = []
  /** How many callbacks reached the service, by thread. */
  readonly arrived = new Map<string, number>()
  readonly #options: CallbackDeliveryOptions
  #sent = 0
  #generation = 0

  constructor(options: CallbackDeliveryOptions) {
    this.#options = options
  }

  send(run: SimRun): void {
    if (run.webhook === null) return
    const { time, prng, trace, hosted } = this.#options
    const rates = this.#options.rates().callbacks
    const lacksJob = rates.withoutJob > 0 && prng.chance(rates.withoutJob)
    if (lacksJob) trace.fault('callback_without_job', run.runId)
    const webhook = lacksJob ? urlWithoutToken(run.webhook, prng.chance(0.3)) : run.webhook
    const shown = lacksJob ? { ...run, metadata: {} } : run
    const nonce = `cb-${++this.#sent}`
    const body = callbackBody(shown, { hosted, sentAtMs: time.now, nonce })
    if (prng.chance(rates.early)) {
      trace.fault('callback_early')
      const running: Run = { ...shown, status: 'running', values: undefined, error: null }
      this.#post(webhook, callbackBody(running, { hosted, sentAtMs: time.now, nonce: `${nonce}-early` }), 0)
    }
    if (prng.chance(rates.drop)) return trace.fault('callback_dropped', run.runId)
    const copies = prng.chance(rates.double) ? 2 : 1
    if (copies === 2) trace.fault('callback_doubled', run.runId)
    for (let copy = 0; copy < copies; copy++)
      this.#post(webhook, this.#corrupted(body, rates.corrupt), this.#delay(rates))
  }

  /** A crash of the runtime loses the callbacks that are due within a second. */
  loseDue(): void {
    this.#generation += 1
  }

  #delay(rates: FaultRates['callbacks']): number {
    const { prng, trace } = this.#options
    const how = prng.fraction()
    if (how < rates.veryLate) {
      trace.fault('callback_very_late')
      return prng.int(60_000, DAY_MS)
    }
    if (how < rates.veryLate + rates.late) {
      trace.fault('callback_late')
      return prng.int(500, 60_000)
    }
    return prng.int(0, 100)
  }

  /** A body as from a broken proxy: truncated, empty, or with an unknown status; never a body that could be genuine. */
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
      if (delayMs < 1_000 && generation !== this.#generation) return
      void this.#attempt(webhook, body, 1)
    })
  }

  async #attempt(webhook: string, body: string, attempt: number): Promise<void> {
    const { time, prng, hosted, trace } = this.#options
    const answer = await this.#request(webhook, body)
    trace.note('callback', `${nonceIn(body)} attempt ${attempt}: ${answer?.status ?? 'no answer'} ${outcomeIn(answer)}`)
    if (answer !== null && answer.status < 300) {
      const numbersRun = body.includes('"run_seq"')
      this.accepted.set(nonceIn(body), { runId: runIn(body), answer: answer.body, numbersRun })
      return this.#noteEnd(body, answer)
    }
    if (answer !== null && answer.status >= 500 && answer.status !== 503) {
      this.#options.onViolation('answers', `a callback was answered ${answer.status}: ${answer.body}`)
    }
    if (!isRetried(answer?.status ?? null, { hosted, attempt })) return
    time.after(prng.int(500, 5_000) * attempt, () => void this.#attempt(webhook, body, attempt + 1))
  }

  #noteEnd(body: string, answer: NodeResponse): void {
    const { outcome, job_id: jobId } = JSON.parse(answer.body) as { outcome: string; job_id: string }
    const isEnd = /"status":"(?:success|error|timeout|interrupted)"/.test(body)
    if (!isEnd || outcome === 'stale' || outcome === 'duplicate') return
    this.reportedEnds.push({ runId: runIn(body), jobId, atMs: this.#options.time.now })
  }

  #request(webhook: string, body: string): Promise<NodeResponse | null> {
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

/** The URL without its token, and mostly without its job. Headers authenticate such a callback. */
function urlWithoutToken(webhook: string, namesJob: boolean): string {
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

function outcomeIn(answer: NodeResponse | null): string {
  return /"outcome":"(\w+)"/.exec(answer?.body ?? '')?.[1] ?? ''
}
