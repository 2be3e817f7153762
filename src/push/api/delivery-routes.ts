import { auditOriginOf } from '../../audit/audit-origin.ts'
import { recordAudit } from '../../audit/record-audit.ts'
import { type Clock, toRfc3339 } from '../../core/clock.ts'
import { ApiError } from '../../core/errors.ts'
import type { IdGenerator } from '../../core/ids.ts'
import type { Database } from '../../db/database.ts'
import type { App } from '../../http/app-instance.ts'
import { scopes } from '../../http/gate/access.ts'
import { readPageRequest, toPage } from '../../http/paging.ts'
import {
  DELIVERY_LIST,
  deliveryIdOf,
  findDeliveryPage,
  type ListedDelivery,
  lockDelivery,
  readDeliveryId,
  requeueDelivery,
} from '../outbox/delivery-page.ts'
import type { DeliveryState } from '../outbox/delivery-store.ts'
import type { Outbox } from '../outbox/outbox.ts'
import type { PushOptOut } from '../push-opt-out.ts'
import * as schema from './delivery-schema.ts'

const CAN_RESEND: readonly DeliveryState[] = ['failed', 'expired']

interface DeliveryServices {
  db: Database
  clock: Clock
  ids: IdGenerator
  pushOptOut: PushOptOut
  outbox: Pick<Outbox, 'state' | 'fault'>
}

/** Shows operators the state of delivery and lists deliveries, and sends a failed delivery again. */
export function deliveryRoutes(app: App, services: DeliveryServices): void {
  const { db, clock, pushOptOut, outbox } = services
  const reading = { access: scopes('read:operations') }
  app.get('/v1/push', { config: reading, schema: schema.getPushDelivery }, () => ({
    state: outbox.state,
    reason: outbox.fault,
  }))

  app.get('/v1/deliveries', { config: reading, schema: schema.listDeliveryItems }, async (request) => {
    const { state, user, job, notification, device, ...query } = request.query
    const page = readPageRequest(DELIVERY_LIST, query)
    const filter = {
      ...(state !== undefined && { state }),
      ...(user !== undefined && { user }),
      ...(job !== undefined && { job }),
      ...(notification !== undefined && { notification }),
      ...(device !== undefined && { device }),
    }
    const found = await findDeliveryPage(db, filter, page)
    const positionOf = (row: ListedDelivery) => [deliveryIdOf(row)] as const
    return toPage(DELIVERY_LIST, { ...found, limit: page.limit, toItem: toDelivery, positionOf })
  })

  const resending = {
    access: scopes('admin:*'),
    refusals: { not_found: 'No such delivery', conflict: 'The delivery is sent: only a failed one can be sent again' },
  }
  app.post('/v1/deliveries/:id/resend', { config: resending, schema: schema.resendDelivery }, (request) => {
    const key = readDeliveryId(request.params.id)
    return db.transaction(async (tx) => {
      const delivery = key && (await lockDelivery(tx, key, pushOptOut))
      if (!delivery) throw new ApiError('not_found', 'No such delivery')
      const { state, subject, disabled_at, is_opted_out } = delivery
      if (!CAN_RESEND.includes(state)) {
        throw new ApiError('conflict', `The delivery is ${state}: only a failed one can be sent again`)
      }
      if (subject === null) throw new ApiError('conflict', 'The device was deleted')
      if (disabled_at !== null) throw new ApiError('conflict', 'The device is disabled')
      if (is_opted_out === 1) throw new ApiError('conflict', 'The user has turned push off')
      const atMs = clock.now()
      await requeueDelivery(tx, delivery, atMs)
      const resent = { by: auditOriginOf(request), action: 'delivery.resent', before: { state } } as const
      await recordAudit(tx, services, { ...resent, object: { kind: 'delivery', id: deliveryIdOf(delivery) } })
      return toDelivery({
        ...delivery,
        state: 'pending',
        attempts: 0,
        last_error: null,
        created_at: atMs,
        updated_at: atMs,
      })
    })
  })
}

function toDelivery(row: ListedDelivery): schema.DeliveryItem {
  return {
    id: deliveryIdOf(row),
    state: row.state,
    notification_id: row.notification_id,
    device_id: row.device_id,
    user: row.subject,
    job_id: row.job_id,
    platform: row.platform,
    attempts: row.attempts,
    last_error: row.last_error,
    created_at: toRfc3339(row.created_at),
    updated_at: toRfc3339(row.updated_at),
  }
}
