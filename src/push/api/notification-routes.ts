import { auditOriginOf } from '../../audit/audit-origin.ts'
import { recordAudit } from '../../audit/record-audit.ts'
import { principalId } from '../../auth/principal.ts'
import { type Clock, toRfc3339 } from '../../core/clock.ts'
import { ApiError } from '../../core/errors.ts'
import type { IdGenerator } from '../../core/ids.ts'
import { isStorableText } from '../../core/text.ts'
import type { Database, Queryable } from '../../db/database.ts'
import type { App } from '../../http/app-instance.ts'
import { callerOf, scopes } from '../../http/gate/access.ts'
import type { IdempotentCreation } from '../../http/idempotency.ts'
import { listById, readPageRequest, toPage } from '../../http/paging.ts'
import {
  findNotification,
  findNotificationPage,
  insertNotification,
  type NotificationRow,
} from '../notification-store.ts'
import { countDeliveriesOf, listDeliveries } from '../outbox/delivery-list-store.ts'
import { DELIVERY_STATES, type DeliveryState } from '../outbox/delivery-store.ts'
import { faultOfContent } from '../provider-registry.ts'
import type { PushOptOut } from '../push-opt-out.ts'
import type { ContentFault, PushContent } from '../push-provider.ts'
import * as schema from './notification-schema.ts'

const LIST = listById('notifications')

interface NotificationServices {
  db: Database
  clock: Clock
  ids: IdGenerator
  creation: IdempotentCreation
  pushOptOut: PushOptOut
}

/** Admins send notifications. A notification that a provider would refuse is refused before it is queued. */
export function notificationRoutes(app: App, { db, clock, ids, creation, pushOptOut }: NotificationServices): void {
  const config = { access: scopes('admin:*') }

  app.post('/v1/notifications', { config, schema: schema.createNotification }, (request, reply) => {
    const { users = [], devices = [], ...content } = request.body
    if (users.length + devices.length === 0) {
      throw new ApiError('invalid_request', 'body must have at least one of "users" and "devices"')
    }
    const { title, body, data = {}, link = null } = content
    const id = ids.next('ntf')
    checkContent({ title, body, data, link, tag: id })
    const notification: NotificationRow = {
      id,
      job_id: null,
      title,
      body,
      data: JSON.stringify(data),
      link,
      priority: content.priority ?? 'normal',
      ttl_seconds: content.ttl_seconds ?? schema.DEFAULT_TTL_SECONDS,
      dry_run: content.dry_run ? 1 : 0,
      created_by: principalId(callerOf(request)),
      created_at: clock.now(),
    }
    return creation.create(request, reply, async (tx) => {
      await insertNotification(tx, notification, { subjects: users, deviceIds: devices, pushOptOut })
      const after = { users: users.length, devices: devices.length, dry_run: notification.dry_run === 1 }
      const sent = { by: auditOriginOf(request), action: 'notification.sent', after } as const
      await recordAudit(tx, { ids, clock }, { ...sent, object: { kind: 'notification', id } })
      return { status: 201, location: `/v1/notifications/${notification.id}`, body: await show(tx, notification) }
    })
  })

  const reading = { access: scopes('read:operations') }
  app.get('/v1/notifications', { config: reading, schema: schema.listNotifications }, async (request) => {
    const page = readPageRequest(LIST, request.query)
    const rows = await findNotificationPage(db, page)
    const ids = rows.slice(0, page.limit).map(({ id }) => id)
    const counts = Map.groupBy(await countDeliveriesOf(db, ids), ({ notification_id }) => notification_id)
    const toItem = (row: NotificationRow) => toListed(row, counts.get(row.id) ?? [])
    return toPage(LIST, { rows, limit: page.limit, toItem, positionOf: (row) => [row.id] as const })
  })

  const showing = { access: scopes('read:operations'), refusals: { not_found: 'No such notification' } }
  app.get('/v1/notifications/:id', { config: showing, schema: schema.getNotification }, async (request) => {
    const row = await findNotification(db, request.params.id)
    if (!row) throw new ApiError('not_found', 'No such notification')
    return show(db, row)
  })
}

function checkContent(content: PushContent): void {
  const fault = faultOfData(content.data) ?? faultOfContent(content)
  if (fault !== null) throw new ApiError('invalid_request', `body${fault.path} ${fault.problem}`)
}

function faultOfData(data: Readonly<Record<string, unknown>>): ContentFault | null {
  for (const [key, value] of Object.entries(data)) {
    if (key === '') return { path: '/data', problem: 'must not have an empty key' }
    if (!isStorableText(key)) return { path: '/data', problem: 'has a key with NUL or unpaired surrogates' }
    // The schema does not check the value of a key with a line break.
    if (typeof value !== 'string') return { path: `/data/${key}`, problem: 'must be a string' }
  }
  return null
}

async function show(db: Queryable, row: NotificationRow): Promise<schema.Notification> {
  const counted = await countDeliveriesOf(db, [row.id])
  const deliveries = await listDeliveries(db, row.id, schema.MAX_SHOWN_DELIVERIES)
  return {
    ...toListed(row, counted),
    deliveries: deliveries.map((delivery) => ({ ...delivery, updated_at: toRfc3339(delivery.updated_at) })),
  }
}

function toListed(
  row: NotificationRow,
  counted: readonly { state: DeliveryState; deliveries: number }[],
): schema.NotificationItem {
  const none = Object.fromEntries(DELIVERY_STATES.map((state) => [state, 0])) as Record<DeliveryState, number>
  return {
    id: row.id,
    title: row.title,
    body: row.body,
    data: JSON.parse(row.data) as Record<string, string>,
    link: row.link,
    priority: row.priority,
    ttl_seconds: row.ttl_seconds,
    dry_run: row.dry_run === 1,
    job_id: row.job_id,
    created_by: row.created_by,
    created_at: toRfc3339(row.created_at),
    counts: { ...none, ...Object.fromEntries(counted.map(({ state, deliveries: count }) => [state, count])) },
  }
}
