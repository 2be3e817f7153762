import { type Static, Type } from 'typebox'
import { pageOf, pageQuery } from '../../http/paging.ts'
import { boundedText, nullableTextField, pathParams, timeField } from '../../http/schemas.ts'
import { PUSH_STATES, type PushState } from '../outbox/outbox.ts'
import type { Platform } from '../push-provider.ts'
import { deliveryState } from './notification-schema.ts'

const tags = ['Push']

export const DeliveryItem = Type.Object(
  {
    id: Type.String({ description: 'Begins with `dlv_`.' }),
    state: deliveryState,
    notification_id: Type.String({ description: 'The notification that is delivered.' }),
    device_id: Type.String({ description: 'The device it is for.' }),
    user: nullableTextField('The user of the device; null when the device was deleted.'),
    job_id: nullableTextField('The job whose end it reports.'),
    platform: Type.Unsafe<Platform | null>({
      type: ['string', 'null'],
      description: 'The platform of the device; null when the device was deleted.',
    }),
    attempts: Type.Integer({ description: 'How often it was sent to the provider since it was queued.' }),
    last_error: nullableTextField('Why the last attempt failed.'),
    created_at: timeField('When it was queued.'),
    updated_at: timeField('When its state was last written.'),
  },
  {
    title: 'DeliveryItem',
    examples: [
      {
        id: 'dlv_01kq3v7m2x8n4r6t0w9y5z1abc01kq3v7m2x8n4r6t0w9y5z1abd',
        state: 'failed',
        notification_id: 'ntf_01kq3v7m2x8n4r6t0w9y5z1abc',
        device_id: 'dev_01kq3v7m2x8n4r6t0w9y5z1abd',
        user: '8f14e45f-ceea-467f-a0e6-000000000001',
        job_id: null,
        platform: 'ios',
        attempts: 1,
        last_error: 'the provider refused the message',
        created_at: '2026-01-31T12:00:00.000Z',
        updated_at: '2026-01-31T12:00:01.000Z',
      },
    ],
  },
)
export type DeliveryItem = Static<typeof DeliveryItem>

const text = (description: string) => Type.Optional(boundedText({ minLength: 1, maxLength: 255, description }))

export const listDeliveryItems = {
  operationId: 'listDeliveries',
  tags,
  summary: 'List deliveries to devices, newest first',
  description:
    'Filters can be combined. With `user`, deliveries to devices that were deleted are not found. A page by `state` ' +
    'ends early when 5,000 deliveries were read; `has_more` says whether there are more.',
  querystring: Type.Object(
    {
      ...pageQuery,
      state: Type.Optional(deliveryState),
      user: text('A user’s `sub`.'),
      job: text('A job’s id.'),
      notification: text('A notification’s id.'),
      device: text('A device’s id, also of a device that was deleted.'),
    },
    { additionalProperties: false },
  ),
  response: { 200: pageOf(DeliveryItem) },
}

const PushDeliveryState = Type.Object(
  {
    state: Type.Unsafe<PushState>({
      title: 'PushState',
      type: 'string',
      enum: [...PUSH_STATES],
      description:
        'halted: no message can be delivered until an operator fixes the cause. dropping: messages to one platform are lost. ' +
        'holding: reports of dead devices are not trusted. no_credentials: deliveries wait for credentials.',
    }),
    reason: nullableTextField('What is wrong, in the words of the provider where it gave some; null if nothing is.'),
  },
  {
    title: 'PushDelivery',
    examples: [
      {
        state: 'halted',
        reason: 'the push credentials are refused: 400 invalid_grant: Invalid JWT Signature.',
      },
    ],
  },
)

export const getPushDelivery = {
  operationId: 'getPushDelivery',
  tags,
  summary: 'Get whether messages are delivered to devices',
  description: 'As the node that answers sees it.',
  response: { 200: PushDeliveryState },
}

export const resendDelivery = {
  operationId: 'resendDelivery',
  tags,
  summary: 'Send a failed delivery again',
  description:
    'For a delivery that failed or expired. Its time to live begins again. It is refused when the device was deleted or is ' +
    'disabled, and when its user has turned push off.',
  params: pathParams('id', 'The delivery’s id.'),
  response: { 200: DeliveryItem },
}
