import { type Static, Type } from 'typebox'
import { SCOPES, type Scope } from '../auth/scopes.ts'
import { pageOf, pageQuery } from '../http/paging.ts'
import { boundedText, idempotencyHeader, nullableTimeField, pathParams, timeField } from '../http/schemas.ts'

const scope = Type.Unsafe<Scope>({
  title: 'Scope',
  type: 'string',
  enum: Object.keys(SCOPES),
  description: 'One permission. `admin:*` includes all others.',
})

const fields = {
  id: Type.String({ description: 'Begins with `svc_`.' }),
  name: Type.String({ description: 'The name shown to admins.' }),
  scopes: Type.Array(Type.String(), { description: 'What its keys may do.' }),
  key_hint: Type.Unsafe<string | null>({
    type: ['string', 'null'],
    description: 'The last characters of its newest key.',
  }),
  created_by: Type.Unsafe<string | null>({
    type: ['string', 'null'],
    description: 'The admin who created it; null once the admin was erased.',
  }),
  created_at: timeField('When it was created.'),
  expires_at: nullableTimeField('When its keys stop working; null: never.'),
  revoked_at: nullableTimeField('When it was revoked; null while it can be used.'),
  last_used_at: nullableTimeField('When a key of it was last used, within a minute.'),
}

const example = {
  id: 'svc_01kq3v7m2x8n4r6t0w9y5z1abc',
  name: 'Billing worker',
  scopes: ['read:projects'],
  key_hint: 'x9Qa',
  created_by: '8f14e45f-ceea-467f-a0e6-000000000001',
  created_at: '2026-01-31T12:00:00.000Z',
  expires_at: null,
  revoked_at: null,
  last_used_at: null,
}

export const ServiceAccount = Type.Object(fields, { title: 'ServiceAccount', examples: [example] })
export type ServiceAccount = Static<typeof ServiceAccount>

export const ServiceAccountWithKey = Type.Object(
  {
    ...fields,
    key: Type.Unsafe<string | null>({
      type: ['string', 'null'],
      description:
        'Returned only once: send it in the `X-API-Key` header. Null when an Idempotency-Key repeats the answer.',
    }),
  },
  { title: 'ServiceAccountWithKey', examples: [{ ...example, key: 'pak_…' }] },
)
export type ServiceAccountWithKey = Static<typeof ServiceAccountWithKey>

const tags = ['Service accounts']
const params = pathParams('id', 'The service account’s id.')

export const listServiceAccounts = {
  operationId: 'listServiceAccounts',
  tags,
  summary: 'List service accounts, newest first',
  querystring: Type.Object(
    {
      ...pageQuery,
      id: Type.Optional(boundedText({ maxLength: 255, description: 'The id of an account, or of one of its keys.' })),
    },
    { additionalProperties: false },
  ),
  response: { 200: pageOf(ServiceAccount) },
}

export const createServiceAccount = {
  operationId: 'createServiceAccount',
  tags,
  summary: 'Create a service account and its key',
  headers: idempotencyHeader,
  body: Type.Object(
    {
      name: boundedText({ minLength: 1, maxLength: 200, description: 'The name shown to admins.' }),
      scopes: Type.Array(scope, { maxItems: 20, uniqueItems: true, description: 'What its keys may do.' }),
      expires_at: Type.Optional(nullableTimeField('When its keys stop working; null or absent: never.')),
    },
    {
      title: 'ServiceAccountInput',
      additionalProperties: false,
      examples: [{ name: 'Billing worker', scopes: ['read:projects'] }],
    },
  ),
  response: { 201: ServiceAccountWithKey },
}

export const getServiceAccount = {
  operationId: 'getServiceAccount',
  tags,
  summary: 'Get a service account',
  params,
  response: { 200: ServiceAccount },
}

export const rotateServiceAccount = {
  operationId: 'rotateServiceAccount',
  tags,
  summary: 'Give a service account a new key',
  description: 'The old keys work for another `grace_seconds`, so that clients can switch without a gap.',
  headers: idempotencyHeader,
  params,
  body: Type.Optional(
    Type.Unsafe<{ grace_seconds?: number } | null>({
      title: 'ServiceAccountRotation',
      type: ['object', 'null'],
      properties: {
        grace_seconds: {
          type: 'integer',
          minimum: 0,
          maximum: 30 * 86_400,
          default: 86_400,
          description: 'How long the old keys still work.',
        },
      },
      additionalProperties: false,
      examples: [{ grace_seconds: 3600 }],
    }),
  ),
  response: { 201: ServiceAccountWithKey },
}

export const deleteServiceAccount = {
  operationId: 'revokeServiceAccount',
  tags,
  summary: 'Revoke a service account and all its keys',
  params,
  response: { 204: Type.Null({ description: 'The account can no longer be used. It stays in the list as revoked.' }) },
}
