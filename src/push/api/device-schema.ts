import { type Static, Type } from 'typebox'
import { pageOf, pageQuery } from '../../http/paging.ts'
import {
  boundedText,
  idempotencyHeader,
  nullableTextField,
  nullableTimeField,
  pathParams,
  timeField,
} from '../../http/schemas.ts'
import { DEFAULT_PROVIDER } from '../provider-registry.ts'
import { PLATFORMS, type Platform } from '../push-provider.ts'

export const MAX_TOKEN_BYTES = DEFAULT_PROVIDER.limits.tokenBytes

const platform = Type.Unsafe<Platform>({
  title: 'DevicePlatform',
  type: 'string',
  enum: [...PLATFORMS],
  description: 'Where the app runs.',
})

export const Device = Type.Object(
  {
    id: Type.String({ description: 'Begins with `dev_`.' }),
    token: Type.String({ description: 'Its last characters; the whole token is never shown.' }),
    platform,
    created_at: timeField('When the token was first registered.'),
    last_seen_at: timeField('When the app registered it last.'),
    disabled_at: nullableTimeField('When it was disabled: nothing is sent to it since then. Null while it is in use.'),
    disabled_reason: nullableTextField('Why it was disabled, as a word of the push provider.'),
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
    'Call this on every start of the app: it refreshes the device, and moves the token to its newest owner. ' +
    'A user has at most 100 devices: beyond that, a new one replaces a disabled one, or is 429 `usage_limit_exceeded`.',
  headers: idempotencyHeader,
  body: Type.Object(
    {
      token: boundedText({
        minLength: 1,
        maxLength: MAX_TOKEN_BYTES,
        description: 'The registration token that the push provider gave to the app.',
      }),
      platform,
    },
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

export const listUserDevices = {
  operationId: 'listUserDevices',
  tags,
  summary: 'List the devices of a user, newest first',
  params: pathParams('sub', 'The identity provider’s id of the user.'),
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
  response: { 200: pageOf(Device) },
}

export const getDevice = {
  operationId: 'getDevice',
  tags,
  summary: 'Get one of your devices',
  params: pathParams('id', 'The device’s id.'),
  response: { 200: Device },
}

export const removeDevice = {
  operationId: 'removeDevice',
  tags,
  summary: 'Remove a device',
  params: pathParams('id', 'The device’s id.'),
  response: { 204: Type.Null({ description: 'The device gets no more messages.' }) },
}
