import { type Static, Type } from 'typebox'
import { pageOf, pageQuery } from '../http/paging.ts'
import {
  boundedText,
  idempotencyHeader,
  nullableString,
  nullableTimestamp,
  pathParams,
  timestamp,
} from '../http/schemas.ts'
import { DEFAULT_PROVIDER } from './provider-registry.ts'
import { PLATFORMS, type Platform } from './push-provider.ts'

export const MAX_TOKEN_BYTES = DEFAULT_PROVIDER.limits.tokenBytes

const platform = Type.Unsafe<Platform>({ type: 'string', enum: [...PLATFORMS] })

export const Device = Type.Object(
  {
    id: Type.String(),
    token: Type.String({ description: 'Its last characters; the whole is never shown.' }),
    platform,
    created_at: timestamp,
    last_seen_at: timestamp,
    disabled_at: nullableTimestamp,
    disabled_reason: nullableString,
  },
  {
    title: 'Device',
    examples: [
      {
        id: 'dev_01kq3v7m2x8n4r6t0w9y5z1abc',
        token: '…x9Qa7c',
        platform: 'android',
        created_at: '2026-01-31T12:00:00.000Z',
        last_seen_at: '2026-01-31T12:00:00.000Z',
        disabled_at: null,
        disabled_reason: null,
      },
    ],
  },
)

export type Device = Static<typeof Device>

const tags = ['Push']

export const registerDevice = {
  operationId: 'registerDevice',
  tags,
  summary: 'Register a device for push',
  description:
    'Repeat it on every start of the app: it refreshes the device, and moves a token to its newest owner. ' +
    'Of more than 50 devices the one not seen for longest is removed.',
  headers: idempotencyHeader,
  body: Type.Object(
    { token: boundedText({ minLength: 1, maxLength: MAX_TOKEN_BYTES }), platform },
    { title: 'DeviceInput', additionalProperties: false, examples: [{ token: 'cX3…:APA91b…', platform: 'web' }] },
  ),
  response: { 201: Device },
}

export const listOwnDevices = {
  operationId: 'listDevices',
  tags,
  summary: 'List your devices, newest first',
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
  response: { 200: pageOf(Device) },
}

export const getDevice = {
  operationId: 'getDevice',
  tags,
  summary: 'Get one of your devices',
  params: pathParams('id'),
  response: { 200: Device },
}

export const removeDevice = {
  operationId: 'removeDevice',
  tags,
  summary: 'Remove a device',
  params: pathParams('id'),
  response: { 204: Type.Null({ description: 'It gets nothing any more.' }) },
}
