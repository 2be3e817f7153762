import type { Clock } from '../core/clock.ts'
import type { IdGenerator } from '../core/ids.ts'
import { JsonText } from '../core/json/json-text.ts'
import type { Transaction } from '../db/database.ts'
import type { AuditAction, AuditActorKind, AuditObjectKind } from './audit-actions.ts'
import { insertAudit } from './audit-store.ts'

/** Who makes a change, and from where. */
export interface AuditOrigin {
  actor: { kind: AuditActorKind; id: string }
  /** The client's IP address; the name of the machine for a command that works on the database. */
  address: string | null
  requestId: string | null
  /** The bulk operation that makes the change. */
  operationId?: string
}

/** A few small fields of a record. Documents, keys and tokens do not belong here. */
export type AuditFields = Readonly<Record<string, AuditValue>>
type AuditValue = string | number | boolean | null | readonly string[]

export interface AuditedChange {
  by: AuditOrigin
  action: AuditAction
  object: { kind: AuditObjectKind; id: string }
  before?: AuditFields
  after?: AuditFields
}

const MAX_TEXT_CHARS = 200
const MAX_FIELDS_CHARS = 2_000
/** A service key, the secret of a webhook, or a token in its compact form. */
const SECRET = /pak_[0-9A-Za-z]{20,}|whsec_[\w+/=]{20,}|eyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?/g

/** Records a change in its own transaction: the change and its audit entry commit together, or neither does. */
export async function recordAudit(
  tx: Transaction,
  { ids, clock }: { ids: IdGenerator; clock: Clock },
  { by, action, object, before, after }: AuditedChange,
): Promise<void> {
  await insertAudit(tx, {
    id: ids.next('aud'),
    at: clock.now(),
    actor_kind: by.actor.kind,
    actor_id: by.actor.id,
    action,
    object_kind: object.kind,
    object_id: object.id,
    before: toText(before),
    after: toText(after),
    address: by.address,
    request_id: by.requestId,
    operation_id: by.operationId ?? null,
  })
}

/**
 * The fields of a record that a change names, before or after it. The record must have every field that a change may
 * name. Of a document, the audit trail gets only the size.
 */
export function auditedFields<Change extends object>(
  record: Readonly<Record<keyof Change, AuditValue | JsonText>>,
  change: Change,
): AuditFields {
  const named = Object.entries<AuditValue | JsonText>(record).filter(([name]) => Object.hasOwn(change, name))
  return Object.fromEntries(
    named.map(([name, value]) => [name, value instanceof JsonText ? `${Buffer.byteLength(value.text)} bytes` : value]),
  )
}

/** Cuts long texts, and replaces text that looks like a credential, in case a user put one into a name. */
function toText(fields: AuditFields | undefined): string | null {
  if (fields === undefined) return null
  const text = JSON.stringify(fields, (_name, value: unknown) => (typeof value === 'string' ? shorten(value) : value))
  return text.length > MAX_FIELDS_CHARS ? JSON.stringify({ truncated: true }) : text
}

function shorten(text: string): string {
  const safe = text.replaceAll(SECRET, '[redacted]')
  return safe.length > MAX_TEXT_CHARS ? `${safe.slice(0, MAX_TEXT_CHARS).toWellFormed()}…` : safe
}
