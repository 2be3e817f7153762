import { type Static, Type } from 'typebox'
import { boundedText, idempotencyHeader, nullableString, nullableText, pathParams, timestamp } from '../http/schemas.ts'
import { DELIVERY_STATES, type DeliveryState } from './outbox/delivery-store.ts'
import { PUSH_PROVIDERS } from './provider-registry.ts'

const MAX_TARGETS = 500
export const MAX_SHOWN_DELIVERIES = 1_000
export const DEFAULT_TTL_SECONDS = 86_400
const MAX_TTL_SECONDS = Math.min(...PUSH_PROVIDERS.map(({ limits }) => limits.ttlSeconds))

const deliveryExample = {
  device_id: 'dev_01kq3v7m2x8n4r6t0w9y5z1abc',
  state: 'sent',
  attempts: 1,
  provider_message_id: 'projects/example/messages/1',
  last_error: null,
  updated_at: '2026-01-31T12:00:01.000Z',
}

export const Notification = Type.Object(
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

export type Notification = Static<typeof Notification>

const tags = ['Push']
const targets = (description: string) =>
  Type.Optional(
    Type.Array(boundedText({ minLength: 1, maxLength: 255 }), {
      maxItems: MAX_TARGETS,
      uniqueItems: true,
      description,
    }),
  )

export const createNotification = {
  operationId: 'sendNotification',
  tags,
  summary: 'Send a notification',
  headers: idempotencyHeader,
  body: Type.Object(
    {
      users: targets('To all live devices of these users, unless they want no push.'),
      devices: targets('To these devices, unless their users want no push.'),
      title: boundedText({ minLength: 1, maxLength: 200 }),
      body: boundedText({ maxLength: 1000 }),
      data: Type.Optional(Type.Record(Type.String(), boundedText({ maxLength: 2000 }))),
      link: Type.Optional(nullableText({ maxLength: 1000, format: 'https-url' })),
      priority: Type.Optional(Type.Unsafe<'high' | 'normal'>({ type: 'string', enum: ['high', 'normal'] })),
      ttl_seconds: Type.Optional(Type.Integer({ minimum: 0, maximum: MAX_TTL_SECONDS })),
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

export const getNotification = {
  operationId: 'getNotification',
  tags,
  summary: 'See what became of a notification',
  params: pathParams('id'),
  response: { 200: Notification },
}
