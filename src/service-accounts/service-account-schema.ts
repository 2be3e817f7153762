import { type Static, Type } from 'typebox'
import { SCOPES, type Scope } from '../auth/scopes.ts'
import { pageOf, pageQuery } from '../http/paging.ts'
import { boundedText, idempotencyHeader, nullableTimestamp, pathParams, timestamp } from '../http/schemas.ts'

const scopeNames = Type.Array(Type.Unsafe<Scope>({ type: 'string', enum: Object.keys(SCOPES) }), {
  maxItems: 20,
  uniqueItems: true,
})

const fields = {
  id: Type.String(),
  name: Type.String(),
  scopes: Type.Array(Type.String()),
  key_hint: Type.Unsafe<string | null>({
    type: ['string', 'null'],
    description: 'The last characters of its newest key.',
  }),
  created_by: Type.String(),
  created_at: timestamp,
  expires_at: nullableTimestamp,
  revoked_at: nullableTimestamp,
  last_used_at: nullableTimestamp,
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
const params = pathParams('id')

export const listServiceAccounts = {
  operationId: 'listServiceAccounts',
  tags,
  summary: 'List service accounts, newest first',
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
  response: { 200: pageOf(ServiceAccount) },
}

export const createServiceAccount = {
  operationId: 'createServiceAccount',
  tags,
  summary: 'Create a service account and its key',
  headers: idempotencyHeader,
  body: Type.Object(
    {
      name: boundedText({ minLength: 1, maxLength: 200 }),
      scopes: scopeNames,
      expires_at: Type.Optional(Type.Unsafe<string | null>({ type: ['string', 'null'], format: 'date-time' })),
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
      properties: { grace_seconds: { type: 'integer', minimum: 0, maximum: 30 * 86_400, default: 86_400 } },
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
  response: { 204: Type.Null({ description: 'It can no longer be used; it stays in the list as revoked.' }) },
}
