import { type Static, Type } from 'typebox'
import { type ListKind, pageOf, pageQuery } from '../../http/paging.ts'
import { nullableTextField, nullableTimeField, pathParams, timeField } from '../../http/schemas.ts'
import { WEBHOOK_STATES, type WebhookState } from '../delivery-store.ts'

const tags = ['Webhooks']

const Attempt = Type.Object(
  {
    at: timeField('When it began.'),
    status: Type.Unsafe<number | null>({
      type: ['integer', 'null'],
      description: 'The status of the answer; null without one.',
    }),
    duration_ms: Type.Integer({ description: 'How long it took.' }),
    error: nullableTextField('Why it failed; null if it succeeded.'),
    answer: Type.String({ description: 'The first 1 KB of the answer’s body.' }),
  },
  { title: 'WebhookAttempt' },
)

export const WebhookDelivery = Type.Object(
  {
    id: Type.String({ description: 'Begins with `whd_`.' }),
    endpoint_id: Type.String({ description: 'The endpoint it is for.' }),
    event_id: Type.String({ description: 'The id of the event: the `webhook-id` of every attempt.' }),
    event_type: Type.String({ description: 'The type of the event.' }),
    state: Type.Unsafe<WebhookState>({
      title: 'WebhookDeliveryState',
      type: 'string',
      enum: [...WEBHOOK_STATES],
      description:
        '`pending`: an attempt follows. `sent`: the receiver accepted it. `failed`: no attempt is left. `expired`: the event ' +
        'was deleted before the delivery succeeded.',
    }),
    attempts: Type.Integer({ description: 'How often it was sent since it was queued.' }),
    next_attempt_at: nullableTimeField('When the next attempt is due; null if none follows.'),
    last_error: nullableTextField('Why the last attempt failed.'),
    log: Type.Array(Attempt, { description: 'The last eight attempts, the oldest first.' }),
    created_at: timeField('When it was first queued.'),
    updated_at: timeField('When its state was last written.'),
  },
  {
    title: 'WebhookDelivery',
    examples: [
      {
        id: 'whd_01kq3v7m2x8n4r6t0w9y5z1abc4711',
        endpoint_id: 'whe_01kq3v7m2x8n4r6t0w9y5z1abc',
        event_id: '4711',
        event_type: 'job.completed',
        state: 'pending',
        attempts: 1,
        next_attempt_at: '2026-01-31T12:00:05.000Z',
        last_error: 'the receiver answered 500',
        log: [
          {
            at: '2026-01-31T12:00:00.000Z',
            status: 500,
            duration_ms: 120,
            error: 'the receiver answered 500',
            answer: 'Internal Server Error',
          },
        ],
        created_at: '2026-01-31T12:00:00.000Z',
        updated_at: '2026-01-31T12:00:00.120Z',
      },
    ],
  },
)
export type WebhookDelivery = Static<typeof WebhookDelivery>

/** Ordered by the position of the event. */
export const WEBHOOK_DELIVERY_LIST: ListKind<readonly [number]> = {
  name: 'webhook-deliveries',
  isPosition: (value): value is [number] => value.length === 1 && Number.isSafeInteger(value[0]),
}

export const listWebhookDeliveries = {
  operationId: 'listWebhookDeliveries',
  tags,
  summary: 'List the deliveries to a webhook endpoint, newest event first',
  params: pathParams('id', 'The endpoint’s id.'),
  querystring: Type.Object(
    {
      ...pageQuery,
      state: Type.Optional(
        Type.Unsafe<'failed' | 'expired'>({
          type: 'string',
          enum: ['failed', 'expired'],
          description: 'Only those that did not succeed.',
        }),
      ),
      event_id: Type.Optional(
        Type.String({ pattern: '^[0-9]{1,15}$', description: 'Only the delivery of this event.' }),
      ),
    },
    { additionalProperties: false },
  ),
  response: { 200: pageOf(WebhookDelivery) },
}

export const resendWebhookDelivery = {
  operationId: 'resendWebhookDelivery',
  tags,
  summary: 'Send a webhook delivery again',
  description:
    'Also for a delivery that waits: it is sent now. Its attempts begin again, with the same `webhook-id`. A delivery that ' +
    'is being sent at this moment is refused with 409.',
  params: pathParams('id', 'The delivery’s id.'),
  response: { 200: WebhookDelivery },
}
