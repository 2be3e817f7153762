import { principalId } from '../auth/principal.ts'
import { type Clock, toRfc3339 } from '../core/clock.ts'
import { ApiError } from '../core/errors.ts'
import type { IdGenerator } from '../core/ids.ts'
import { type Static, Type } from '../core/schema.ts'
import type { Database, Queryable } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { callerOf, scopes } from '../http/gate/access.ts'
import type { IdempotentCreation } from '../http/idempotency.ts'
import { idempotencyHeader, pathParams, text, timestamp } from '../http/schemas.ts'
import { checkPushData, MAX_PAYLOAD_BYTES, payloadSizeOf } from './fcm/fcm-message.ts'
import { findNotification, insertNotification, type NotificationRow } from './notification-store.ts'
import { countDeliveries, DELIVERY_STATES, type DeliveryState, listDeliveries } from './outbox/delivery-store.ts'
import type { PushOptOut } from './push-opt-out.ts'

const MAX_TARGETS = 500
const MAX_SHOWN_DELIVERIES = 1_000
const DEFAULT_TTL_SECONDS = 86_400

const nullableString = Type.Unsafe<string | null>({ type: ['string', 'null'] })

const deliveryExample = {
  device_id: 'dev_01kq3v7m2x8n4r6t0w9y5z1abc',
  state: 'sent',
  attempts: 1,
  provider_message_id: 'projects/example/messages/1',
  last_error: null,
  updated_at: '2026-01-31T12:00:01.000Z',
}

const Notification = Type.Object(
  {
    id: Type.String(),
    title: Type.String(),
    body: Type.String(),
    data: Type.Record(Type.String(), Type.String()),
    link: nullableString,
    priority: Type.String(),
    ttl_seconds: Type.Integer(),
    dry_run: Type.Boolean(),
    job_id: nullableString,
    created_by: nullableString,
    created_at: timestamp,
    counts: Type.Unsafe<Record<DeliveryState, number>>({
      type: 'object',
      properties: Object.fromEntries(DELIVERY_STATES.map((state) => [state, { type: 'integer' }])),
      description: 'How many deliveries are in which state.',
    }),
    deliveries: Type.Array(
      Type.Object(
        {
          device_id: Type.String(),
          state: Type.String(),
          attempts: Type.Integer(),
          provider_message_id: nullableString,
          last_error: nullableString,
          updated_at: timestamp,
        },
        { title: 'Delivery', examples: [deliveryExample] },
      ),
      { description: `The first ${MAX_SHOWN_DELIVERIES}.` },
    ),
  },
  {
    title: 'Notification',
    examples: [
      {
        id: 'ntf_01kq3v7m2x8n4r6t0w9y5z1abc',
        title: 'Maintenance',
        body: 'Tonight at ten.',
        data: {},
        link: null,
        priority: 'normal',
        ttl_seconds: DEFAULT_TTL_SECONDS,
        dry_run: false,
        job_id: null,
        created_by: '8f14e45f-ceea-467f-a0e6-000000000001',
        created_at: '2026-01-31T12:00:00.000Z',
        counts: { sent: 1 },
        deliveries: [deliveryExample],
      },
    ],
  },
)

const tags = ['Push']
const targets = (description: string) =>
  Type.Optional(
    Type.Array(text({ minLength: 1, maxLength: 255 }), { maxItems: MAX_TARGETS, uniqueItems: true, description }),
  )

const createNotification = {
  operationId: 'sendNotification',
  tags,
  summary: 'Send a notification',
  headers: idempotencyHeader,
  body: Type.Object(
    {
      users: targets('To all live devices of these users, unless they want no push.'),
      devices: targets('To these devices, unless their users want no push.'),
      title: text({ minLength: 1, maxLength: 200 }),
      body: text({ maxLength: 1000 }),
      data: Type.Optional(Type.Record(Type.String(), text({ maxLength: 2000 }))),
      link: Type.Optional(
        Type.Unsafe<string | null>({ type: ['string', 'null'], format: 'https-url', maxLength: 1000 }),
      ),
      priority: Type.Optional(Type.Unsafe<'high' | 'normal'>({ type: 'string', enum: ['high', 'normal'] })),
      ttl_seconds: Type.Optional(Type.Integer({ minimum: 0, maximum: 28 * 86_400 })),
      dry_run: Type.Optional(Type.Boolean({ description: 'Have the provider check it without delivering it.' })),
    },
    {
      title: 'NotificationInput',
      additionalProperties: false,
      examples: [{ users: ['8f14e45f-ceea-467f-a0e6-000000000001'], title: 'Maintenance', body: 'Tonight at ten.' }],
    },
  ),
  response: { 201: Notification },
}

const getNotification = {
  operationId: 'getNotification',
  tags,
  summary: 'See what became of a notification',
  params: pathParams('id'),
  response: { 200: Notification },
}

export interface NotificationServices {
  db: Database
  clock: Clock
  ids: IdGenerator
  creation: IdempotentCreation
  pushOptOut: PushOptOut
}

export function notificationRoutes(app: App, { db, clock, ids, creation, pushOptOut }: NotificationServices): void {
  const config = { access: scopes('admin:*') }

  app.post('/v1/notifications', { config, schema: createNotification }, (request, reply) => {
    const { users = [], devices = [], ...content } = request.body
    if (users.length + devices.length === 0) {
      throw new ApiError('invalid_request', 'body must have at least one of "users" and "devices"')
    }
    const notification: NotificationRow = {
      id: ids.next('ntf'),
      job_id: null,
      title: content.title,
      body: content.body,
      data: JSON.stringify(content.data ?? {}),
      link: content.link ?? null,
      priority: content.priority ?? 'normal',
      ttl_seconds: content.ttl_seconds ?? DEFAULT_TTL_SECONDS,
      dry_run: content.dry_run ? 1 : 0,
      created_by: principalId(callerOf(request)),
      created_at: clock.now(),
    }
    checkContent(notification, content.data ?? {})
    return creation.create(request, reply, async (tx) => {
      await insertNotification(tx, notification, { subjects: users, deviceIds: devices, pushOptOut })
      return { status: 201, location: `/v1/notifications/${notification.id}`, body: await show(tx, notification) }
    })
  })

  const showing = { ...config, refusals: { not_found: 'No such notification' } }
  app.get('/v1/notifications/:id', { config: showing, schema: getNotification }, async (request) => {
    const row = await findNotification(db, request.params.id)
    if (!row) throw new ApiError('not_found', 'No such notification')
    return show(db, row)
  })
}

/** Refused before anything is queued: the provider would refuse it for every device. */
function checkContent(row: NotificationRow, data: Record<string, string>): void {
  const fault = checkPushData(data)
  if (fault !== null) throw new ApiError('invalid_request', `body/${fault}`)
  const { id: tag, title, body, link } = row
  if (payloadSizeOf({ title, body, data, link, tag }) > MAX_PAYLOAD_BYTES) {
    throw new ApiError('invalid_request', `body makes a message larger than ${MAX_PAYLOAD_BYTES} bytes`)
  }
}

async function show(db: Queryable, row: NotificationRow): Promise<Static<typeof Notification>> {
  const [counted, deliveries] = [
    await countDeliveries(db, row.id),
    await listDeliveries(db, row.id, MAX_SHOWN_DELIVERIES),
  ]
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
    deliveries: deliveries.map((delivery) => ({ ...delivery, updated_at: toRfc3339(delivery.updated_at) })),
  }
}
