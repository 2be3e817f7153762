import { type Static, Type } from 'typebox'
import { pageOf, pageQuery } from '../http/paging.ts'
import { boundedText, nullableTextField, timeField } from '../http/schemas.ts'
import {
  AUDIT_ACTIONS,
  AUDIT_ACTOR_KINDS,
  AUDIT_OBJECT_KINDS,
  type AuditAction,
  type AuditActorKind,
  type AuditObjectKind,
} from './audit-actions.ts'
import type { AuditFields } from './record-audit.ts'

const oneOf = <Value extends string>(values: readonly string[], description: string) =>
  Type.Unsafe<Value>({ type: 'string', enum: [...values], description })
const fields = (description: string) =>
  Type.Unsafe<AuditFields | null>({ type: ['object', 'null'], additionalProperties: true, description })
const time = (description: string) => Type.Optional(Type.String({ format: 'date-time', description }))
const text = (description: string) => Type.Optional(boundedText({ maxLength: 255, description }))

const actions = Object.keys(AUDIT_ACTIONS)
const meanings = Object.entries(AUDIT_ACTIONS).map(([action, meaning]) => `\`${action}\`: ${meaning}`)

export const AuditEntry = Type.Object(
  {
    id: Type.String({ description: 'Begins with `aud_`.' }),
    at: timeField('When the change was made.'),
    actor: Type.Object(
      {
        kind: oneOf<AuditActorKind>(
          AUDIT_ACTOR_KINDS,
          'The kind of actor: a user, a service account or the command line.',
        ),
        id: Type.String({ description: 'The `sub`, the service account’s id, or the user name on the machine.' }),
      },
      { title: 'AuditActor', description: 'Who made the change.' },
    ),
    action: oneOf<AuditAction>(actions, `${meanings.join('; ')}.`),
    object: Type.Object(
      {
        kind: oneOf<AuditObjectKind>(AUDIT_OBJECT_KINDS, 'What was changed.'),
        id: Type.String({ description: 'The id of the changed object.' }),
      },
      { title: 'AuditObject', description: 'What was changed.' },
    ),
    before: fields('Fields before the change. Never a key, a token or a document.'),
    after: fields('The same fields after the change, or details of the action.'),
    address: Type.Unsafe<string | null>({
      type: ['string', 'null'],
      description: 'The client’s IP address, or the machine’s name for a command that worked on the database.',
    }),
    request_id: nullableTextField(
      'The id of the request that made the change; null for a command that worked on the database.',
    ),
    operation_id: nullableTextField('The bulk operation that made the change, as one of its items.'),
  },
  {
    title: 'AuditEntry',
    examples: [
      {
        id: 'aud_01kq3v7m2x8n4r6t0w9y5z1abc',
        at: '2026-01-31T12:00:00.000Z',
        actor: { kind: 'user', id: '8f14e45f-ceea-467f-a0e6-000000000001' },
        action: 'service_account.revoked',
        object: { kind: 'service_account', id: 'svc_01kq3v7m2x8n4r6t0w9y5z1abc' },
        before: null,
        after: { name: 'Prometheus' },
        address: '192.0.2.1',
        request_id: 'req_01kq3v7m2x8n4r6t0w9y5z1abc',
        operation_id: null,
      },
    ],
  },
)
export type AuditEntry = Static<typeof AuditEntry>

export const listAudit = {
  operationId: 'listAudit',
  tags: ['Operations'],
  summary: 'List the changes by admins and the command line, newest first',
  description:
    'Filters can be combined. A page ends early when 5,000 entries were read for a rare combination of filters, and may ' +
    'even be empty then; `has_more` says whether there are more.',
  querystring: Type.Object(
    {
      ...pageQuery,
      id: text('The id of an entry.'),
      actor: text('A `sub`, a service account’s id, or a user name on the machine.'),
      action: Type.Optional(oneOf<AuditAction>(actions, 'The action.')),
      object: text('The id of the changed object.'),
      operation_id: text('The changes that a bulk operation made.'),
      request_id: text('The changes that a request made, also by the bulk operation that it started.'),
      items: Type.Optional(
        oneOf<'none'>(['none'], '`none` leaves out what bulk operations changed: each is one entry.'),
      ),
      created_after: time('Entries later than this time.'),
      created_before: time('Entries earlier than this time.'),
    },
    { additionalProperties: false },
  ),
  response: { 200: pageOf(AuditEntry) },
}
