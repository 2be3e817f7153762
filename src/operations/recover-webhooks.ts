import { Type } from 'typebox'
import { auditOriginOf } from '../audit/audit-origin.ts'
import { recordAudit } from '../audit/record-audit.ts'
import type { Clock } from '../core/clock.ts'
import { ApiError } from '../core/errors.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Database, Transaction } from '../db/database.ts'
import { findHead, findPositionAt, readEvents } from '../events/event-store.ts'
import type { App } from '../http/app-instance.ts'
import { scopes } from '../http/gate/access.ts'
import type { IdempotentCreation } from '../http/idempotency.ts'
import { idempotencyHeader, pathParams, timeField } from '../http/schemas.ts'
import { insertDeliveries } from '../webhooks/delivery-store.ts'
import { findReceivers, lockEndpoint } from '../webhooks/endpoint-store.ts'
import { deliveriesOf } from '../webhooks/event-fanout.ts'
import type { StepOutcome, SteppedAction } from './bulk-actions.ts'
import { toOperation } from './operation-routes.ts'
import type { OperationRunner } from './operation-runner.ts'
import { BulkOperation } from './operation-schema.ts'
import { findOperation, insertOperation } from './operation-store.ts'

const PAGE = 200
/** A transaction that waits for a lock writes its event some seconds later than its time says, so the log is not in strict order. */
const MARGIN_MS = 60_000

const recoverEndpoint = {
  operationId: 'recoverWebhookEndpoint',
  tags: ['Webhooks'],
  summary: 'Send the events since a time again',
  description:
    'A background operation. Of the events that fit the endpoint, it queues those whose delivery failed, and those that ' +
    'have none, because the endpoint was disabled or did not exist yet. Events that were delivered, or that wait, are left ' +
    'alone. Events that were deleted from the log cannot be recovered.',
  headers: idempotencyHeader,
  params: pathParams('id', 'The endpoint’s id.'),
  body: Type.Object(
    { since: timeField('The time of the first event. Those of the minute before it are included.') },
    { title: 'WebhookRecovery', additionalProperties: false, examples: [{ since: '2026-01-31T12:00:00.000Z' }] },
  ),
  response: { 202: BulkOperation },
}

interface RecoverServices {
  clock: Clock
  ids: IdGenerator
  creation: IdempotentCreation
  operationRunner: OperationRunner
}

/** Admins recover an endpoint after an outage of its receiver. */
export function recoverRoute(app: App, services: RecoverServices): void {
  const { clock, ids, creation, operationRunner } = services
  const config = {
    access: scopes('admin:*'),
    refusals: { not_found: 'No such webhook endpoint', conflict: 'The endpoint is disabled: enable it first' },
  }
  app.post('/v1/webhook-endpoints/:id/recover', { config, schema: recoverEndpoint }, (request, reply) =>
    creation.create(request, reply, async (tx) => {
      const { id: endpointId } = request.params
      const { since } = request.body
      const endpoint = await lockEndpoint(tx, endpointId)
      if (!endpoint) throw new ApiError('not_found', 'No such webhook endpoint')
      if (endpoint.disabled_at !== null) throw new ApiError('conflict', 'The endpoint is disabled: enable it first')
      const id = ids.next('opr')
      const by = auditOriginOf(request)
      const object = { kind: 'webhook_endpoint', id: endpointId } as const
      const after = { since, operation_id: id }
      await recordAudit(tx, services, { by, action: 'webhook_endpoint.recovered', object, after })
      const from = await findPositionAt(tx, Date.parse(since) - MARGIN_MS)
      const { seq: to } = await findHead(tx)
      const total = Math.max(0, to - from)
      const objectIds = total === 0 ? [] : [writeRange({ endpointId, from, to })]
      const row = await insertOperation(tx, { id, action: 'recover', by, objectIds, total, atMs: clock.now() })
      const location = `/v1/operations/${id}`
      return { status: 202, location, body: toOperation(row), afterCommit: () => operationRunner.wake() }
    }),
  )
}

interface Range {
  endpointId: string
  /** The positions of the log after this one, up to `to`. */
  from: number
  to: number
}

/** The item of the operation. Its progress is the number of positions that are done. */
function writeRange({ endpointId, from, to }: Range): string {
  return `${endpointId} ${from} ${to}`
}

function readRange(text: string): Range {
  const [endpointId = '', from, to] = text.split(' ')
  return { endpointId, from: Number(from), to: Number(to) }
}

/** Queues one page of events in each step. A step that is repeated after a crash does no harm. */
export function recoverAction({ db, clock }: { db: Database; clock: Clock }): SteppedAction {
  return {
    transact: ({ objectId, operationId }, work) =>
      db.transaction((tx) =>
        work(tx, () => recoverPage(tx, { ...readRange(objectId), operationId, atMs: clock.now() })),
      ),
  }
}

async function recoverPage(
  tx: Transaction,
  { endpointId, from, to, operationId, atMs }: Range & { operationId: string; atMs: number },
): Promise<StepOutcome> {
  const after = from + ((await findOperation(tx, operationId))?.position ?? 0)
  const receiver = (await findReceivers(tx)).find(({ id }) => id === endpointId)
  // It was disabled or deleted meanwhile.
  if (!receiver)
    return { done: 0, next: 'stop', failures: [{ object_id: endpointId, error: 'The endpoint is disabled' }] }
  const events = await readEvents(tx, { after, upTo: to, filter: {}, limit: PAGE })
  const deliveries = events.flatMap((event) => deliveriesOf(event, [{ ...receiver, after_seq: from }]))
  await insertDeliveries(tx, { deliveries, atMs, again: true })
  const last = events.length < PAGE ? to : (events.at(-1)?.seq ?? to)
  return { done: last - after, next: last < to ? 'more' : 'end' }
}
