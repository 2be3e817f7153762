import { hash } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { principalId } from '../auth/principal.ts'
import type { Clock } from '../core/clock.ts'
import { ApiError } from '../core/errors.ts'
import { canonicalJson, writeJson } from '../core/json/json-text.ts'
import type { Database, Transaction } from '../db/database.ts'
import { callerOf } from './gate/access.ts'
import { findAnswer, storeAnswer } from './idempotency-store.ts'

const KEPT_MS = 24 * 60 * 60 * 1000
const KEY_SHAPE = /^[\x21-\x7e]{1,255}$/

interface Created<Body> {
  status: 201 | 202
  location: string
  body: Body
  /** The body that is stored for a repeat, if it must not hold all that the first answer shows. */
  replayBody?: Body
  /** Called once the change is durable, but not for a repeat. */
  afterCommit?: () => void
}

interface CreationOptions {
  /** Checks before the transaction. A repeat skips these checks: it gets the stored answer. */
  prepare?: () => Promise<unknown>
  /** Adds to the stored body what only the record holds. Throws `TransactionConflict` if the record is deleted meanwhile. */
  restore?: (tx: Transaction, stored: { location: string; body: string }) => Promise<string>
}

/**
 * Creates a record at most once per `Idempotency-Key` and caller. The record and its answer commit in one transaction, so a
 * crash leaves both or neither. A repeat within 24 h gets the first answer again.
 */
export class IdempotentCreation {
  readonly #db: Database
  readonly #clock: Clock
  readonly #inFlight = new Set<string>()

  constructor(options: { db: Database; clock: Clock }) {
    this.#db = options.db
    this.#clock = options.clock
  }

  async create<Body>(
    request: FastifyRequest,
    reply: FastifyReply,
    work: (tx: Transaction) => Promise<Created<Body>>,
    { prepare, restore }: CreationOptions = {},
  ): Promise<Body> {
    const key = readKey(request)
    if (key === undefined) await prepare?.()
    if (key === undefined) return answer(reply, await this.#db.transaction(work))

    const owner = { principal: principalId(callerOf(request)), key }
    const lock = JSON.stringify(['idempotency', owner.principal, key])
    if (this.#inFlight.has(lock)) throw inFlight()
    this.#inFlight.add(lock)
    try {
      const earlier = await findAnswer(this.#db, owner)
      if (!earlier || earlier.expires_at <= this.#clock.now()) await prepare?.()
      return await this.#createOnce(request, reply, { owner, lock, work, restore })
    } finally {
      this.#inFlight.delete(lock)
    }
  }

  async #createOnce<Body>(
    request: FastifyRequest,
    reply: FastifyReply,
    once: {
      owner: { principal: string; key: string }
      lock: string
      work: (tx: Transaction) => Promise<Created<Body>>
      restore: CreationOptions['restore']
    },
  ): Promise<Body> {
    const fingerprint = fingerprintOf(request)
    const now = this.#clock.now()
    const outcome = await this.#db.transaction(async (tx) => {
      if (!(await tx.tryLock(once.lock))) throw inFlight()
      const earlier = await findAnswer(tx, once.owner)
      if (earlier && earlier.expires_at > now) {
        if (earlier.fingerprint !== fingerprint) {
          throw new ApiError('idempotency_key_reused', 'This Idempotency-Key was used with a different request')
        }
        return { earlier: { ...earlier, body: (await once.restore?.(tx, earlier)) ?? earlier.body } }
      }
      const created = await once.work(tx)
      await storeAnswer(tx, once.owner, {
        fingerprint,
        status: created.status,
        location: created.location,
        body: writeJson(created.replayBody ?? created.body),
        expires_at: now + KEPT_MS,
      })
      return { created }
    })
    if (outcome.created) return answer(reply, outcome.created)
    reply.header('idempotency-replayed', 'true')
    const { status, location, body } = outcome.earlier
    // The stored answer is JSON text. With this type, the framework sends a string unchanged.
    reply.type('application/json; charset=utf-8')
    return answer(reply, { status: status as Created<Body>['status'], location, body: body as Body })
  }
}

function readKey(request: FastifyRequest): string | undefined {
  const header = request.headers['idempotency-key']
  if (header === undefined) return undefined
  if (typeof header === 'string' && KEY_SHAPE.test(header)) return header
  throw new ApiError('invalid_request', 'headers/idempotency-key must be 1 to 255 visible ASCII characters')
}

function fingerprintOf(request: FastifyRequest): string {
  return hash('sha256', canonicalJson([request.method, request.url, request.body ?? null]))
}

function answer<Body>(reply: FastifyReply, created: Created<Body>): Body {
  reply.code(created.status).header('location', created.location)
  created.afterCommit?.()
  return created.body
}

function inFlight(): ApiError {
  return new ApiError('conflict', 'A request with this Idempotency-Key is still in flight', {
    headers: { 'retry-after': '1' },
  })
}
