import { type Static, Type } from 'typebox'
import { eventSchema } from '../../events/event-schema.ts'
import { EVENT_TYPES, type EventType } from '../../events/event-store.ts'
import { pageOf } from '../../http/paging.ts'
import {
  boundedText,
  idempotencyHeader,
  ifMatchHeader,
  nullableText,
  nullableTextField,
  nullableTimeField,
  pathParams,
  timeField,
} from '../../http/schemas.ts'
import { DISABLED_REASONS, type DisabledReason } from '../endpoint-store.ts'
import { MAX_ENDPOINTS } from '../webhook-channel.ts'
import { WebhookDelivery } from './delivery-schema.ts'

/** A test is sent to its own endpoint, whatever that asks for. */
type WebhookEventType = Exclude<EventType, 'webhook.test'>
const WEBHOOK_EVENTS = EVENT_TYPES.filter((type) => type !== 'webhook.test')

const tags = ['Webhooks']

const disabledReason = Type.Unsafe<DisabledReason>({
  title: 'WebhookDisabledReason',
  type: 'string',
  enum: [...DISABLED_REASONS],
  description:
    '`admin`: by an admin. `gone`: the receiver answered 410. `failing`: every attempt failed for five days.',
})

export const WebhookEvent = eventSchema({
  title: 'WebhookEvent',
  types: ['webhook.disabled', 'webhook.test'],
  description: 'An endpoint was disabled, or an admin asked for a test. Only admins and endpoints get it.',
  data: Type.Object(
    {
      endpoint_id: Type.String({ description: 'The endpoint.' }),
      reason: Type.Optional(disabledReason),
    },
    { title: 'WebhookEventData', description: 'The endpoint, and why it was disabled.' },
  ),
})

const url = boundedText({
  minLength: 1,
  maxLength: 2000,
  description: 'Where events are posted: https, a public address, no user name and no password.',
})
const events = Type.Array(
  Type.Unsafe<WebhookEventType>({
    title: 'WebhookEventType',
    type: 'string',
    enum: WEBHOOK_EVENTS,
    description: 'A type of event.',
  }),
  { minItems: 1, uniqueItems: true, description: 'The types of events that it gets.' },
)
const types = Type.Unsafe<string[] | null>({
  type: ['array', 'null'],
  items: { type: 'string', minLength: 1, maxLength: 64, format: 'text' },
  minItems: 1,
  maxItems: 100,
  uniqueItems: true,
  description:
    'Only events of jobs of these types; null: of all. Events that are not about a job are sent in any case.',
})
const projectId = nullableText({
  minLength: 1,
  maxLength: 64,
  description: 'Only events of this project; null: of all. Events that name no project are sent in any case.',
})
const description = nullableText({ maxLength: 500, description: 'A note for admins.' })

const fields = {
  id: Type.String({ description: 'Begins with `whe_`.' }),
  url: Type.String({ description: 'Where events are posted.' }),
  events: Type.Array(Type.String(), { description: 'The types of events that it gets.' }),
  types: Type.Unsafe<string[] | null>({
    type: ['array', 'null'],
    items: { type: 'string' },
    description: 'Only events of jobs of these types; null: of all.',
  }),
  project_id: nullableTextField('Only events of this project; null: of all.'),
  description: nullableTextField('A note for admins.'),
  enabled: Type.Boolean({ description: 'Whether it gets events.' }),
  disabled_at: nullableTimeField('Since when it is disabled.'),
  disabled_reason: Type.Unsafe<DisabledReason | null>({
    anyOf: [disabledReason, { type: 'null' }],
    description: 'Why it is disabled.',
  }),
  failing_since: nullableTimeField('Since when every attempt has failed; null if the last one succeeded.'),
  waiting: Type.Integer({ description: 'Deliveries that wait for an attempt; 1001 means more than 1000.' }),
  missed_events: Type.Integer({
    description: 'At most so many events were deleted before they were delivered to this endpoint.',
  }),
  previous_secret_until: nullableTimeField('Until when the secret before the last rotation signs too.'),
  created_by: nullableTextField('The admin who created it; null once the admin was erased.'),
  created_at: timeField('When it was created.'),
  updated_at: timeField('When it was last changed.'),
}

const example = {
  id: 'whe_01kq3v7m2x8n4r6t0w9y5z1abc',
  url: 'https://backend.example.com/hooks',
  events: ['job.completed', 'job.failed'],
  types: null,
  project_id: null,
  description: 'Billing',
  enabled: true,
  disabled_at: null,
  disabled_reason: null,
  failing_since: null,
  waiting: 0,
  missed_events: 0,
  previous_secret_until: null,
  created_by: '8f14e45f-ceea-467f-a0e6-000000000001',
  created_at: '2026-01-31T12:00:00.000Z',
  updated_at: '2026-01-31T12:00:00.000Z',
}

const WebhookEndpoint = Type.Object(fields, { title: 'WebhookEndpoint', examples: [example] })
export type WebhookEndpoint = Static<typeof WebhookEndpoint>

const WithSecret = Type.Object(
  {
    ...fields,
    secret: nullableTextField(
      'Signs the messages. Returned only once; null when an Idempotency-Key repeats the answer.',
    ),
  },
  { title: 'WebhookEndpointWithSecret', examples: [{ ...example, secret: 'whsec_…' }] },
)
export type WebhookEndpointWithSecret = Static<typeof WithSecret>

const params = pathParams('id', 'The endpoint’s id.')

export const createWebhookEndpoint = {
  operationId: 'createWebhookEndpoint',
  tags,
  summary: 'Create a webhook endpoint and its secret',
  description:
    `It gets the events from now on, as signed messages of Standard Webhooks. There are at most ${MAX_ENDPOINTS}. ` +
    'The secret is stored readable, because signatures are made with it.',
  headers: idempotencyHeader,
  body: Type.Object(
    {
      url,
      events,
      types: Type.Optional(types),
      project_id: Type.Optional(projectId),
      description: Type.Optional(description),
    },
    {
      title: 'WebhookEndpointInput',
      additionalProperties: false,
      examples: [{ url: 'https://backend.example.com/hooks', events: ['job.completed', 'job.failed'] }],
    },
  ),
  response: { 201: WithSecret },
}

export const listWebhookEndpoints = {
  operationId: 'listWebhookEndpoints',
  tags,
  summary: 'List webhook endpoints, newest first',
  response: { 200: pageOf(WebhookEndpoint) },
}

export const getWebhookEndpoint = {
  operationId: 'getWebhookEndpoint',
  tags,
  summary: 'Get a webhook endpoint',
  params,
  response: { 200: WebhookEndpoint },
}

export const changeWebhookEndpoint = {
  operationId: 'changeWebhookEndpoint',
  tags,
  summary: 'Change, disable or enable a webhook endpoint',
  description:
    'Absent fields stay as they are. While an endpoint is disabled, its deliveries wait and it gets no new events. After it ' +
    'was enabled, `recover` sends the events of that time.',
  headers: ifMatchHeader,
  params,
  body: Type.Object(
    {
      url: Type.Optional(url),
      events: Type.Optional(events),
      types: Type.Optional(types),
      project_id: Type.Optional(projectId),
      description: Type.Optional(description),
      enabled: Type.Optional(Type.Boolean({ description: 'False disables it, true enables it again.' })),
    },
    {
      title: 'WebhookEndpointChange',
      additionalProperties: false,
      minProperties: 1,
      examples: [{ enabled: false }],
    },
  ),
  response: { 200: WebhookEndpoint },
}

export const deleteWebhookEndpoint = {
  operationId: 'deleteWebhookEndpoint',
  tags,
  summary: 'Delete a webhook endpoint',
  params,
  response: { 204: Type.Null({ description: 'It gets no more events. Deliveries that waited are not sent.' }) },
}

export const rotateWebhookSecret = {
  operationId: 'rotateWebhookSecret',
  tags,
  summary: 'Give a webhook endpoint a new secret',
  description: 'For 24 hours messages are signed with both secrets, so that the receiver can switch without a gap.',
  headers: idempotencyHeader,
  params,
  response: { 201: WithSecret },
}

export const testWebhookEndpoint = {
  operationId: 'testWebhookEndpoint',
  tags,
  summary: 'Send a test to a webhook endpoint',
  description: 'An event `webhook.test`, sent once. Its delivery shows the answer.',
  params,
  response: { 202: WebhookDelivery },
}
