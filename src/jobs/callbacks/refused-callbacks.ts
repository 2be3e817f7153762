import { hash } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import { type Loop, startLoop } from '../../core/async/loop.ts'
import type { Clock } from '../../core/clock.ts'
import type { ErrorCode } from '../../core/errors.ts'
import { firstIdAt } from '../../core/ids.ts'
import type { Log } from '../../core/log.ts'
import type { Database } from '../../db/database.ts'
import { addressKey } from '../../limits/client-address.ts'
import { addRefused, type RefusalReason, type RefusedCallbackRow } from './refused-callback-store.ts'

const WRITE_EVERY_MS = 5_000
const LOG_EVERY_MS = 60_000
const MINUTE_MS = 60_000
/** Refusals that would need more rows than this between two writes are counted without their address. */
const MAX_KINDS = 100
const OTHER_ADDRESSES = 'others'

const JOB_ID = /^job_[0-9a-z]{26}$/

const REASON_OF: Partial<Record<ErrorCode, RefusalReason>> = {
  not_found: 'unknown_type',
  invalid_request: 'unreadable',
  conflict: 'wrong_type',
  payload_too_large: 'too_large',
  request_timeout: 'too_slow',
  rate_limit_exceeded: 'rate_limited',
}

/**
 * Counts the callbacks that were refused, by minute, reason, path and address. No request waits for it, and senders without
 * a credential cannot fill the memory or the database with it. Nothing of a body or a credential is kept.
 */
export class RefusedCallbacks {
  readonly #db: Database
  readonly #clock: Clock
  readonly #log: Log
  readonly #loop: Loop
  #counted = new Map<string, RefusedCallbackRow>()
  #unlogged = new Map<RefusalReason, number>()
  #loggedAtMs = Number.NEGATIVE_INFINITY

  constructor({ db, clock, log }: { db: Database; clock: Clock; log: Log }) {
    this.#db = db
    this.#clock = clock
    this.#log = log
    this.#loop = startLoop({
      clock,
      everyMs: WRITE_EVERY_MS,
      run: () => this.#write(),
      onError: (error) => log.warn({ err: error }, 'callbacks.refusals_not_written'),
    })
  }

  /** `path`: without the part that a sender can choose. */
  note(request: FastifyRequest, path: string): void {
    const reason = reasonOf(request)
    if (reason === null) return
    this.#unlogged.set(reason, (this.#unlogged.get(reason) ?? 0) + 1)
    const atMs = this.#clock.now()
    const from = addressKey(request.ip)
    const id = idOf(atMs, reason, path, from)
    const isKnown = this.#counted.has(id) || this.#counted.size < MAX_KINDS
    const address = isKnown ? from : OTHER_ADDRESSES
    this.#add({
      id: isKnown ? id : idOf(atMs, reason, path, address),
      reason,
      path,
      address,
      job_id: namedJob(request),
      count: 1,
      first_at: atMs,
      last_at: atMs,
    })
  }

  async close(): Promise<void> {
    await this.#loop.stop()
    await this.#write().catch(() => {})
  }

  #add(row: RefusedCallbackRow): void {
    const before = this.#counted.get(row.id)
    if (before === undefined) this.#counted.set(row.id, row)
    else {
      before.count += row.count
      before.last_at = row.last_at
      before.job_id = row.job_id ?? before.job_id
    }
  }

  /** If the database refuses the rows, they are lost: the log has their number. */
  async #write(): Promise<void> {
    this.#logCounts()
    if (this.#counted.size === 0) return
    const rows = [...this.#counted.values()]
    this.#counted = new Map()
    await addRefused(this.#db, rows)
  }

  #logCounts(): void {
    const nowMs = this.#clock.now()
    if (this.#unlogged.size === 0 || nowMs - this.#loggedAtMs < LOG_EVERY_MS) return
    this.#log.warn({ reasons: Object.fromEntries(this.#unlogged) }, 'callbacks.refused')
    this.#loggedAtMs = nowMs
    this.#unlogged = new Map()
  }
}

/** Refusals of the same kind in the same minute have the same id. Ids sort by time. */
function idOf(atMs: number, ...kind: readonly string[]): string {
  const minuteMs = Math.floor(atMs / MINUTE_MS) * MINUTE_MS
  return `${firstIdAt('rcb', minuteMs)}${hash('sha256', JSON.stringify(kind)).slice(0, 16)}`
}

/** Null: the callback was not refused, or by a fault of this service. */
function reasonOf({ errorCode, callbackProof, query, headers }: FastifyRequest): RefusalReason | null {
  if (errorCode === undefined) return null
  if (errorCode !== 'unauthorized') return REASON_OF[errorCode] ?? null
  if (callbackProof?.authentic === false && callbackProof.signed) return 'wrong_signature'
  if ((query as { token?: unknown }).token !== undefined) return 'wrong_token'
  const hasSecret = headers['x-webhook-secret'] !== undefined || headers.authorization !== undefined
  return hasSecret ? 'wrong_secret' : 'no_credential'
}

/** The job that its URL names. It may be none of ours. */
function namedJob({ query }: FastifyRequest): string | null {
  const { job_id: id } = query as { job_id?: unknown }
  return typeof id === 'string' && JOB_ID.test(id) ? id : null
}
