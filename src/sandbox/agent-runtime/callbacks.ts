import { backoffMs } from '../../core/async/backoff.ts'
import { type Clock, toRfc3339 } from '../../core/clock.ts'
import { exchange } from '../../core/exchange.ts'
import type { JsonObject } from '../../core/json.ts'
import type { Random } from '../../core/random.ts'
import { postAndAbort } from '../aborted-post.ts'
import type { RuntimeFaults } from './faults.ts'
import type { Run } from './records.ts'
import { renderCallback } from './wire.ts'

export const CALLBACK_TIMEOUT_MS = 30_000
const HOSTED_ATTEMPTS = 3
const HOSTED_BACKOFF = { baseMs: 1_000, maxMs: 10_000 }
const REORDER_HOLD_MS = 5_000
const MAX_ANSWER_BYTES = 1024 * 1024
const MAX_UNDER_WAY = 1_000
const MAX_RECENT = 50

type CallbackState = 'waiting' | 'dropped' | 'delivered' | 'refused' | 'failed'

export interface CallbackRecord {
  at: string
  run_id: string
  thread_id: string
  /** How the run ended. */
  status: string
  state: CallbackState
  attempts: number
  /** The receiver's last status. */
  answered: number | null
}

export interface CallbackStats {
  /** Runs that ended and had a callback URL. */
  due: number
  dropped: number
  /** Requests made, including the aborted ones. */
  attempted: number
  /** Requests answered with a 2xx. */
  delivered: number
}

interface CallbackSenderOptions {
  clock: Clock
  random: Random
  fetch: typeof fetch
  faults: () => RuntimeFaults
}

/** Posts the end of each run to its callback URL, with the faults that are set. Every attempt has a timeout. */
export class CallbackSender {
  readonly #options: CallbackSenderOptions
  readonly #underWay = new Set<Promise<void>>()
  #stopping = new AbortController()
  #held: AbortController | null = null
  #recent: CallbackRecord[] = []
  #stats: CallbackStats = { due: 0, dropped: 0, attempted: 0, delivered: 0 }

  constructor(options: CallbackSenderOptions) {
    this.#options = options
  }

  get stats(): CallbackStats {
    return { ...this.#stats }
  }

  /** Newest first. */
  get recent(): readonly CallbackRecord[] {
    return this.#recent
  }

  send(run: Run): void {
    const { webhook } = run
    if (webhook === null) return
    const { clock, faults } = this.#options
    this.#stats.due += 1
    const record: CallbackRecord = {
      at: toRfc3339(clock.now()),
      run_id: run.runId,
      thread_id: run.threadId,
      status: run.status,
      state: 'waiting',
      attempts: 0,
      answered: null,
    }
    this.#recent = [record, ...this.#recent].slice(0, MAX_RECENT)
    if (this.#underWay.size >= MAX_UNDER_WAY || this.#happens(faults().drop_callbacks)) {
      this.#stats.dropped += 1
      record.state = 'dropped'
      return
    }
    const payload = renderCallback(run, { hosted: faults().delivery === 'hosted', sentAtMs: clock.now() })
    const sending = this.#deliver(webhook, payload, record).finally(() => this.#underWay.delete(sending))
    this.#underWay.add(sending)
  }

  /** Resolves once no callback is being sent. */
  async drain(): Promise<void> {
    while (this.#underWay.size > 0) await Promise.all(this.#underWay)
  }

  /** Aborts the callbacks in flight, and deletes records and counters. */
  async clear(): Promise<void> {
    this.#stopping.abort()
    await this.drain()
    this.#stopping = new AbortController()
    this.#recent = []
    this.#stats = { due: 0, dropped: 0, attempted: 0, delivered: 0 }
  }

  async #deliver(url: string, payload: JsonObject, record: CallbackRecord): Promise<void> {
    const { clock, faults } = this.#options
    const { signal } = this.#stopping
    const { late_callbacks_ms: lateMs } = faults()
    if (lateMs > 0) await clock.sleep(lateMs, signal)
    const overtaken = this.#held
    this.#held = null
    if (overtaken === null && faults().reorder_callbacks) await this.#hold(signal)
    const whole = JSON.stringify(payload)
    const body = this.#happens(faults().corrupt_callbacks) ? whole.slice(0, whole.length / 2) : whole
    const copies = this.#happens(faults().duplicate_callbacks) ? 2 : 1
    for (let copy = 0; copy < copies; copy++) await this.#post(url, body, record)
    overtaken?.abort()
  }

  /** Waits until the next callback has been sent. The wait has a limit, because there may be no further callback. */
  async #hold(signal: AbortSignal): Promise<void> {
    const release = new AbortController()
    this.#held = release
    await this.#options.clock.sleep(REORDER_HOLD_MS, AbortSignal.any([release.signal, signal]))
    if (this.#held === release) this.#held = null
  }

  async #post(url: string, body: string, record: CallbackRecord): Promise<void> {
    const { clock, random, faults } = this.#options
    const { signal } = this.#stopping
    for (let attempt = 1; !signal.aborted; attempt++) {
      record.attempts += 1
      this.#stats.attempted += 1
      const status = this.#happens(faults().failing_callbacks)
        ? await this.#fail(url, body)
        : await this.#ask(url, body)
      record.answered = status ?? record.answered
      if (status !== null && status < 300) {
        this.#stats.delivered += 1
        record.state = 'delivered'
        return
      }
      record.state = isRefused(status) ? 'refused' : 'failed'
      if (!isRetried(status, { hosted: faults().delivery === 'hosted', attempt })) return
      await clock.sleep(backoffMs(HOSTED_BACKOFF, attempt, random), signal)
    }
  }

  async #ask(url: string, body: string): Promise<number | null> {
    const { clock, fetch, faults } = this.#options
    try {
      const { status } = await exchange({
        fetch,
        clock,
        url,
        method: 'POST',
        headers: { 'content-type': faults().content_type },
        body,
        timeoutMs: CALLBACK_TIMEOUT_MS,
        maxBytes: MAX_ANSWER_BYTES,
        signal: this.#stopping.signal,
      })
      return status
    } catch {
      return null
    }
  }

  async #fail(url: string, body: string): Promise<null> {
    const over = new AbortController()
    const signal = AbortSignal.any([this.#stopping.signal, over.signal])
    void this.#options.clock.sleep(CALLBACK_TIMEOUT_MS, signal).then(() => over.abort())
    await postAndAbort(url, { body, contentType: this.#options.faults().content_type, signal })
    over.abort()
    return null
  }

  #happens(ratio: number): boolean {
    return ratio > 0 && this.#options.random.fraction() < ratio
  }
}

/** The hosted runtime makes three attempts, after a network error (null), 5xx and 429. The JS server makes one. */
export function isRetried(status: number | null, { hosted, attempt }: { hosted: boolean; attempt: number }): boolean {
  return hosted && attempt < HOSTED_ATTEMPTS && !isRefused(status)
}

function isRefused(status: number | null): boolean {
  return status !== null && status < 500 && status !== 429
}
