import { type Static, Type } from 'typebox'
import { pageOf, pageQuery } from '../http/paging.ts'
import {
  boundedText,
  ifMatchHeader,
  nullableText,
  nullableTextField,
  nullableTimeField,
  pathParams,
  timeField,
} from '../http/schemas.ts'

export const User = Type.Object(
  {
    sub: Type.String({ description: 'The identity provider’s id of the user.' }),
    email: nullableTextField('The claim `email` of the newest token; null without one.'),
    display_name: nullableTextField('The name shown to people.'),
    avatar_url: nullableTextField('An https URL of a picture.'),
    locale: nullableTextField('BCP 47, such as en-GB.'),
    time_zone: nullableTextField('IANA, such as Europe/London.'),
    push_enabled: Type.Boolean({ description: 'Whether the end of a job is pushed to the user’s devices.' }),
    created_at: timeField('When the user’s first request arrived.'),
    updated_at: timeField('When the profile was last changed.'),
    last_seen_at: timeField('When the user was last seen, within a minute or so.'),
    blocked_at: nullableTimeField('When an admin blocked the user; null while the user is not blocked.'),
  },
  {
    title: 'User',
    examples: [
      {
        sub: '8f14e45f-ceea-467f-a0e6-000000000001',
        email: 'ada@example.com',
        display_name: 'Ada',
        avatar_url: 'https://example.com/ada.png',
        locale: 'en-GB',
        time_zone: 'Europe/London',
        push_enabled: true,
        created_at: '2026-01-31T12:00:00.000Z',
        updated_at: '2026-01-31T12:00:00.000Z',
        last_seen_at: '2026-01-31T12:00:00.000Z',
        blocked_at: null,
      },
    ],
  },
)
export type User = Static<typeof User>

export const UserChange = Type.Object(
  {
    display_name: Type.Optional(nullableText({ maxLength: 200, description: 'The name shown to people.' })),
    avatar_url: Type.Optional(
      nullableText({ maxLength: 2000, format: 'https-url', description: 'An https URL of a picture.' }),
    ),
    locale: Type.Optional(nullableText({ maxLength: 100, format: 'locale', description: 'BCP 47, such as en-GB.' })),
    time_zone: Type.Optional(
      nullableText({ maxLength: 100, format: 'time-zone', description: 'IANA, such as Europe/London.' }),
    ),
    push_enabled: Type.Optional(Type.Boolean({ description: 'False: the user’s devices get no push messages.' })),
  },
  {
    title: 'UserChange',
    additionalProperties: false,
    minProperties: 1,
    examples: [{ display_name: 'Ada', locale: 'en-GB' }],
  },
)
export type UserChange = Static<typeof UserChange>

const tags = ['Users']
const params = pathParams('sub', 'The identity provider’s id of the user.')

export const listUsers = {
  operationId: 'listUsers',
  tags,
  summary: 'List user profiles, newest first',
  description: 'With `search`: in the order of the matching `sub`, then of the matching e-mail address.',
  querystring: Type.Object(
    {
      ...pageQuery,
      search: Type.Optional(
        boundedText({
          minLength: 1,
          maxLength: 255,
          description: 'The beginning of a `sub` or of an e-mail address. Case does not matter in an address.',
        }),
      ),
    },
    { additionalProperties: false },
  ),
  response: { 200: pageOf(User) },
}
export const getUser = {
  operationId: 'getUser',
  tags,
  summary: 'Get a user profile',
  params,
  response: { 200: User },
}
export const getMe = {
  operationId: 'getMe',
  tags,
  summary: 'Get your own profile',
  description: 'Created on your first request; needs no scope.',
  response: { 200: User },
}
export const changeUser = {
  operationId: 'changeUser',
  tags,
  summary: 'Change a user profile',
  headers: ifMatchHeader,
  params,
  body: UserChange,
  response: { 200: User },
}
export const changeMe = {
  operationId: 'changeMe',
  tags,
  summary: 'Change your own profile',
  headers: ifMatchHeader,
  body: UserChange,
  response: { 200: User },
}

export const UserBlock = Type.Object(
  {
    sub: Type.String({ description: 'The user.' }),
    blocked_at: nullableTimeField('When the user was blocked; null if not.'),
  },
  {
    title: 'UserBlock',
    examples: [{ sub: '8f14e45f-ceea-467f-a0e6-000000000001', blocked_at: '2026-01-31T12:00:00.000Z' }],
  },
)
export type UserBlock = Static<typeof UserBlock>

export const blockUser = {
  operationId: 'blockUser',
  tags,
  summary: 'Block a user',
  description:
    'Within five seconds every request of the user is 403 and the user’s streams end, on every node, even if the ' +
    'token is still valid. It works for a `sub` that never signed in. Running jobs of the user continue and end as usual.',
  params,
  response: { 200: UserBlock },
}
export const unblockUser = {
  operationId: 'unblockUser',
  tags,
  summary: 'Unblock a user',
  params,
  response: { 200: UserBlock },
}
