import type { FastifyRequest } from 'fastify'
import { auditOriginOf } from '../audit/audit-origin.ts'
import { type AuditOrigin, recordAudit } from '../audit/record-audit.ts'
import { type Clock, toRfc3339 } from '../core/clock.ts'
import { ApiError } from '../core/errors.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Database, Queryable } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { scopes } from '../http/gate/access.ts'
import type { IdempotentCreation } from '../http/idempotency.ts'
import { type ListKind, listById, readPageRequest, toPage } from '../http/paging.ts'
import { readJobFilter } from '../jobs/api/list-routes.ts'
import { readCallbackFilter } from '../jobs/callbacks/callback-routes.ts'
import { callbackFilters } from '../jobs/callbacks/callback-schema.ts'
import { type FrozenItems, fittingItems, type Items, itemsToRetry, namedItems } from './frozen-ids.ts'
import type { OperationRunner } from './operation-runner.ts'
import * as schema from './operation-schema.ts'
import {
  type BulkActionName,
  findFailurePage,
  findItemNotes,
  findOperation,
  findOperationPage,
  finishOperation,
  insertOperation,
  lockOperation,
  type OperationItemNote,
  type OperationRow,
} from './operation-store.ts'

const LIST = listById('operations')

/** The failures of one operation, by their place in it. */
function failuresOf(id: string): ListKind<readonly [number]> {
  return {
    name: `failures of ${id}`,
    isPosition: (value): value is [number] => value.length === 1 && Number.isSafeInteger(value[0]),
  }
}

interface OperationServices {
  db: Database
  clock: Clock
  ids: IdGenerator
  creation: IdempotentCreation
  operationRunner: OperationRunner
}

/** Bulk work of admins: started, followed and stopped here, done by the `OperationRunner` of any node. */
export function operationRoutes(app: App, services: OperationServices): void {
  const { db, clock, ids, creation, operationRunner } = services
  const admin = { access: scopes('admin:*') }
  const reading = { access: scopes('read:operations') }
  const not_found = 'No such operation'

  app.post('/v1/operations', { config: admin, schema: schema.startOperation }, async (request, reply) => {
    const { action, dry_run = false } = request.body
    const items = readItems(request.body)
    if (dry_run) return { action, ...(await items.count(db)), dry_run }
    let frozen: FrozenItems | undefined
    const answer = await creation.create(
      request,
      reply,
      async (tx) => {
        const by = auditOriginOf(request)
        const id = ids.next('opr')
        frozen ??= await items.freeze(tx)
        const { ids: objectIds, knownRetries } = frozen
        const row = await insertOperation(tx, { id, action, by, objectIds, knownRetries, atMs: clock.now() })
        const after = { action, total: row.total }
        await recordAudit(tx, services, { by, action: 'operation.started', object: { kind: 'operation', id }, after })
        const location = `/v1/operations/${id}`
        return { status: 202, location, body: toOperation(row), afterCommit: () => operationRunner.wake() }
      },
      {
        prepare: async () => {
          frozen = await items.freeze(db)
        },
      },
    )
    return answer
  })

  app.get('/v1/operations', { config: reading, schema: schema.listOperations }, async (request) => {
    const page = readPageRequest(LIST, request.query)
    const rows = await findOperationPage(db, page)
    const shown = await notDoneOf(db, rows.slice(0, page.limit))
    const toItem = (row: OperationRow) => toOperation(row, shown)
    return toPage(LIST, { rows, limit: page.limit, toItem, positionOf: (row) => [row.id] as const })
  })

  const one = { ...reading, refusals: { not_found } }
  app.get('/v1/operations/:id', { config: one, schema: schema.getOperation }, (request) => show(request.params.id))

  app.get('/v1/operations/:id/failures', { config: one, schema: schema.listOperationFailures }, async (request) => {
    const { id } = request.params
    const kind = failuresOf(id)
    const page = readPageRequest(kind, request.query)
    if (!(await findOperation(db, id))) throw new ApiError('not_found', not_found)
    const rows = await findFailurePage(db, id, page)
    return toPage(kind, { rows, limit: page.limit, toItem: toFailure, positionOf: ({ place }) => [place] as const })
  })

  const cancelling = { ...admin, refusals: { not_found, conflict: 'The operation is already done' } }
  app.post('/v1/operations/:id/cancel', { config: cancelling, schema: schema.cancelOperation }, async (request) => {
    const { id } = request.params
    await stop(request, id)
    return show(id)
  })

  /** Waits for the batch in progress; after that no further item is processed. */
  function stop(request: FastifyRequest, id: string): Promise<void> {
    return db.transaction(async (tx) => {
      const row = await lockOperation(tx, id)
      if (!row) throw new ApiError('not_found', not_found)
      if (row.state === 'done') throw new ApiError('conflict', 'The operation is already done')
      if (row.state === 'cancelled') return
      if (row.action === 'erase') throw new ApiError('conflict', 'An erasure cannot be stopped')
      await finishOperation(tx, { id, state: 'cancelled', atMs: clock.now() })
      const by = auditOriginOf(request)
      const after = { action: row.action, total: row.total, position: row.position }
      await recordAudit(tx, services, { by, action: 'operation.cancelled', object: { kind: 'operation', id }, after })
    })
  }

  async function show(id: string): Promise<schema.BulkOperation> {
    const row = await findOperation(db, id)
    if (!row) throw new ApiError('not_found', not_found)
    return toOperation(row, await notDoneOf(db, [row]))
  }
}

type Body = { action: BulkActionName; ids?: string[]; filter?: object; again?: boolean }

function readItems({ action, ids, filter, again }: Body): Items {
  if ((ids === undefined) === (filter === undefined)) {
    throw new ApiError('invalid_request', 'body must have either "ids" or "filter"')
  }
  if (again !== undefined && action !== 'retry') {
    throw new ApiError('invalid_request', 'body/again is only for the action retry')
  }
  if (ids !== undefined) return action === 'retry' ? itemsToRetry({ ids }, again ?? false) : namedItems(ids)
  const names = Object.keys(filter ?? {})
  const isOfCallbacks = (name: string) => Object.hasOwn(callbackFilters, name)
  const foreign = names.find((name) => (action === 'replay' ? !isOfCallbacks(name) : ONLY_CALLBACKS.includes(name)))
  if (foreign !== undefined) {
    const list = action === 'replay' ? 'GET /v1/callbacks' : 'GET /jobs'
    throw new ApiError('invalid_request', `body/filter/${foreign} is no filter of ${list}`)
  }
  if (action === 'replay') return fittingItems({ action, filter: readCallbackFilter(filter ?? {}) })
  const wanted = readJobFilter(filter ?? {}, 'body/filter')
  if (action !== 'retry') return fittingItems({ action, filter: wanted })
  if (wanted.retried !== undefined && again === !wanted.retried) {
    throw new ApiError('invalid_request', `body/again must not be ${again} with the filter retried: ${wanted.retried}`)
  }
  return itemsToRetry({ filter: wanted }, again ?? wanted.retried === true)
}

/** `type` is a filter of both lists. */
const ONLY_CALLBACKS = Object.keys(callbackFilters).filter((name) => name !== 'type')

/** By the id of the operation: its items that failed, and those that were skipped. */
interface NotDone {
  failed: ReadonlyMap<string, OperationItemNote[]>
  skipped: ReadonlyMap<string, OperationItemNote[]>
}

export async function notDoneOf(db: Queryable, rows: readonly OperationRow[]): Promise<NotDone> {
  const notesOf = async (kind: 'failed' | 'skipped') => {
    const ids = rows.filter((row) => row[kind] > 0).map(({ id }) => id)
    const notes = await findItemNotes(db, ids, { kind, limit: schema.MAX_SHOWN_FAILURES })
    return Map.groupBy(notes, ({ operation_id }) => operation_id)
  }
  const [failed, skipped] = await Promise.all([notesOf('failed'), notesOf('skipped')])
  return { failed, skipped }
}

export function toFailure({ object_id, error }: { object_id: string; error: string }): schema.OperationFailure {
  return { id: object_id, error }
}

/** An operation as operators see it. */
export function toOperation(row: OperationRow, notDone?: NotDone): schema.BulkOperation {
  return {
    id: row.id,
    action: row.action,
    state: row.state,
    total: row.total,
    done: row.position - row.failed - row.skipped,
    failed: row.failed,
    failures: (notDone?.failed.get(row.id) ?? []).map(({ object_id, note }) => toFailure({ object_id, error: note })),
    skipped: row.skipped,
    skips: (notDone?.skipped.get(row.id) ?? []).map(({ object_id, note }) => ({ id: object_id, reason: note })),
    created_by: row.created_by,
    created_by_kind: (JSON.parse(row.origin) as AuditOrigin).actor.kind,
    created_at: toRfc3339(row.created_at),
    finished_at: row.finished_at === null ? null : toRfc3339(row.finished_at),
  }
}
