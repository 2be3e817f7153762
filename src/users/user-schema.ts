import { type Static, Type } from 'typebox'
import { pageOf, pageQuery } from '../http/paging.ts'
import { ifMatchHeader, nullableString, nullableText, pathParams, timestamp } from '../http/schemas.ts'

export const User = Type.Object(
  {
    sub: Type.String({ description: 'The identity provider’s id of the user.' }),
    email: nullableString,
    display_name: nullableString,
    avatar_url: nullableString,
    locale: nullableString,
    time_zone: nullableString,
    push_enabled: Type.Boolean({ description: 'Whether the end of a job is pushed to the user’s devices.' }),
    created_at: timestamp,
    updated_at: timestamp,
    last_seen_at: timestamp,
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
      },
    ],
  },
)
export type User = Static<typeof User>

export const UserChange = Type.Object(
  {
    display_name: Type.Optional(nullableText({ maxLength: 200 })),
    avatar_url: Type.Optional(nullableText({ maxLength: 2000, format: 'https-url' })),
    locale: Type.Optional(nullableText({ maxLength: 100, format: 'locale', description: 'BCP 47, such as en-GB' })),
    time_zone: Type.Optional(
      nullableText({ maxLength: 100, format: 'time-zone', description: 'IANA, such as Europe/London' }),
    ),
    push_enabled: Type.Optional(Type.Boolean()),
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
const params = pathParams('sub')

export const listUsers = {
  operationId: 'listUsers',
  tags,
  summary: 'List user profiles, newest first',
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
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
