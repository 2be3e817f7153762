import { type Static, Type } from 'typebox'
import { pageOf, pageQuery } from '../../http/paging.ts'
import {
  boundedText,
  idempotencyHeader,
  nullableText,
  nullableTextField,
  pathParams,
  timeField,
} from '../../http/schemas.ts'
import { DELIVERY_STATES, type DeliveryState } from '../outbox/delivery-store.ts'
import { PUSH_PROVIDERS } from '../provider-registry.ts'

const MAX_TARGETS = 500
const PRIORITIES = ['high', 'normal'] as const
type Priority = (typeof PRIORITIES)[number]
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

const priority = Type.Unsafe<Priority>({
  title: 'NotificationPriority',
  type: 'string',
  enum: [...PRIORITIES],
  description: '`high` wakes a sleeping device.',
})

export const deliveryState = Type.Unsafe<DeliveryState>({
  title: 'DeliveryState',
  type: 'string',
  enum: [...DELIVERY_STATES],
  description: '`pending`: another attempt follows. `no_credentials`: it waits for push credentials.',
})

const notificationExample = {
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
}

export const Notification = Type.Object(
  {
    id: Type.String({ description: 'Begins with `ntf_`.' }),
    title: Type.String({ description: 'The first line.' }),
    body: Type.String({ description: 'The text below the title.' }),
    data: Type.Record(Type.String(), Type.String(), { description: 'Values for the app, not shown to the user.' }),
    link: nullableTextField('The URL that a browser opens when the user taps the notification.'),
    priority,
    ttl_seconds: Type.Integer({ description: 'How long the push provider keeps it for a device that is offline.' }),
    dry_run: Type.Boolean({ description: 'Whether the provider only checks the message, without delivering it.' }),
    job_id: nullableTextField('The job whose end it reports.'),
    created_by: nullableTextField('The admin who sent it; null for one that the service sent.'),
    created_at: timeField('When it was created.'),
    counts: Type.Unsafe<Record<DeliveryState, number>>({
      type: 'object',
      properties: Object.fromEntries(
        DELIVERY_STATES.map((state) => [state, { type: 'integer', description: `Deliveries in state \`${state}\`.` }]),
      ),
      description: 'How many deliveries are in which state.',
    }),
    deliveries: Type.Array(
      Type.Object(
        {
          device_id: Type.String({ description: 'The device it is for.' }),
          state: deliveryState,
          attempts: Type.Integer({ description: 'How often it was sent to the provider.' }),
          provider_message_id: nullableTextField(
            'The provider’s id of the message, once the provider has accepted it.',
          ),
          last_error: nullableTextField('Why the last attempt failed.'),
          updated_at: timeField('When its state was last written.'),
        },
        { title: 'Delivery', examples: [deliveryExample] },
      ),
      { description: `The first ${MAX_SHOWN_DELIVERIES}.` },
    ),
  },
  {
    title: 'Notification',
    examples: [{ ...notificationExample, deliveries: [deliveryExample] }],
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
      users: targets('To all active devices of these users, except users who turned push off.'),
      devices: targets('To these devices, except those of users who turned push off.'),
      title: boundedText({ minLength: 1, maxLength: 200, description: 'The first line.' }),
      body: boundedText({ maxLength: 1000, description: 'The text below the title.' }),
      data: Type.Optional(
        Type.Record(Type.String(), boundedText({ maxLength: 2000 }), {
          description: 'Values for the app, not shown to the user.',
        }),
      ),
      link: Type.Optional(
        nullableText({
          maxLength: 1000,
          format: 'https-url',
          description: 'The URL that a browser opens when the user taps the notification.',
        }),
      ),
      priority: Type.Optional(priority),
      ttl_seconds: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_TTL_SECONDS,
          description: `How long the push provider keeps it for a device that is offline. Default: ${DEFAULT_TTL_SECONDS}.`,
        }),
      ),
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

const { deliveries: _deliveries, ...listed } = Notification.properties
/** A notification in a list. */
const NotificationItem = Type.Object(listed, {
  title: 'NotificationItem',
  description: 'A notification without its deliveries.',
  examples: [notificationExample],
})
export type NotificationItem = Static<typeof NotificationItem>

export const listNotifications = {
  operationId: 'listNotifications',
  tags,
  summary: 'List notifications, newest first',
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
  response: { 200: Type.Object(pageOf(NotificationItem).properties, { title: 'NotificationPage' }) },
}

export const getNotification = {
  operationId: 'getNotification',
  tags,
  summary: 'Get a notification and the state of its deliveries',
  params: pathParams('id', 'The notification’s id.'),
  response: { 200: Notification },
}
