import { auditOriginOf } from '../../audit/audit-origin.ts'
import { recordAudit } from '../../audit/record-audit.ts'
import { type Clock, toRfc3339 } from '../../core/clock.ts'
import { ApiError } from '../../core/errors.ts'
import type { IdGenerator } from '../../core/ids.ts'
import type { Database } from '../../db/database.ts'
import { findEvents } from '../../events/event-store.ts'
import type { App } from '../../http/app-instance.ts'
import { scopes } from '../../http/gate/access.ts'
import { readPageRequest, toPage } from '../../http/paging.ts'
import {
  findWebhookPage,
  type ListedWebhook,
  lockWebhook,
  readWebhookDeliveryId,
  requeueWebhook,
  webhookDeliveryId,
} from '../delivery-store.ts'
import { findEndpoint } from '../endpoint-store.ts'
import type { LoggedAttempt } from '../webhook-verdict.ts'
import * as schema from './delivery-schema.ts'

/** Lists the deliveries of an endpoint, and sends one again. */
export function webhookDeliveryRoutes(app: App, services: { db: Database; clock: Clock; ids: IdGenerator }): void {
  const { db, clock } = services
  const reading = { access: scopes('read:operations'), refusals: { not_found: 'No such webhook endpoint' } }
  app.get(
    '/v1/webhook-endpoints/:id/deliveries',
    { config: reading, schema: schema.listWebhookDeliveries },
    async (request) => {
      const { id: endpointId } = request.params
      const { state, event_id, ...query } = request.query
      const page = readPageRequest(schema.WEBHOOK_DELIVERY_LIST, query)
      if (!(await findEndpoint(db, endpointId))) throw new ApiError('not_found', 'No such webhook endpoint')
      const rows = await findWebhookPage(
        db,
        { endpointId, state, eventSeq: event_id === undefined ? undefined : Number(event_id) },
        page,
      )
      const positionOf = (row: ListedWebhook) => [row.event_seq] as const
      return toPage(schema.WEBHOOK_DELIVERY_LIST, { rows, limit: page.limit, toItem: toDelivery, positionOf })
    },
  )

  const resending = {
    access: scopes('admin:*'),
    refusals: { not_found: 'No such delivery', conflict: 'The delivery is being sent' },
  }
  app.post(
    '/v1/webhook-deliveries/:id/resend',
    { config: resending, schema: schema.resendWebhookDelivery },
    (request) => {
      const key = readWebhookDeliveryId(request.params.id)
      const atMs = clock.now()
      return db.transaction(async (tx) => {
        const delivery = key && (await lockWebhook(tx, key, atMs))
        const endpoint = key && (await findEndpoint(tx, key.endpoint_id))
        if (!delivery || !endpoint) throw new ApiError('not_found', 'No such delivery')
        const { state } = delivery
        if (delivery.leased) throw new ApiError('conflict', 'The delivery is being sent')
        if (endpoint.disabled_at !== null) throw new ApiError('conflict', 'The endpoint is disabled')
        const [event] = await findEvents(tx, [delivery.event_seq])
        if (!event) throw new ApiError('conflict', 'The event was deleted')
        const requeued = await requeueWebhook(tx, delivery, atMs)
        const resent = { by: auditOriginOf(request), action: 'webhook_delivery.resent', before: { state } } as const
        await recordAudit(tx, services, { ...resent, object: { kind: 'webhook_delivery', id: request.params.id } })
        return toDelivery(requeued)
      })
    },
  )
}

export function toDelivery(row: ListedWebhook): schema.WebhookDelivery {
  const log = JSON.parse(row.attempt_log) as LoggedAttempt[]
  return {
    id: webhookDeliveryId(row),
    endpoint_id: row.endpoint_id,
    event_id: String(row.event_seq),
    event_type: row.event_type,
    state: row.state,
    attempts: row.attempts,
    next_attempt_at: row.next_attempt_at === null ? null : toRfc3339(row.next_attempt_at),
    last_error: row.last_error,
    log: log.map(({ at, ...attempt }) => ({ at: toRfc3339(at), ...attempt })),
    created_at: toRfc3339(row.created_at),
    updated_at: toRfc3339(row.updated_at),
  }
}
