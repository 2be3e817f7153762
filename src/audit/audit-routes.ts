import { toRfc3339 } from '../core/clock.ts'
import type { Database } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { scopes } from '../http/gate/access.ts'
import { listById, readPageRequest, toPage } from '../http/paging.ts'
import { type AuditEntry, listAudit } from './audit-schema.ts'
import { type AuditRow, findAuditPage } from './audit-store.ts'
import type { AuditFields } from './record-audit.ts'

const LIST = listById('audit')

/** The audit trail, for operators. These routes only read it: each change writes its own entry. */
export function auditRoutes(app: App, { db }: { db: Database }): void {
  const config = { access: scopes('read:operations'), largeAnswer: 'page' as const }
  app.get('/v1/audit', { config, schema: listAudit }, async (request) => {
    const { id, actor, action, object, operation_id, request_id, items, created_after, created_before, ...query } =
      request.query
    const page = readPageRequest(LIST, query)
    const filter = {
      ...(id !== undefined && { id }),
      ...(actor !== undefined && { actor }),
      ...(action !== undefined && { action }),
      ...(object !== undefined && { object }),
      ...(operation_id !== undefined && { operationId: operation_id }),
      ...(request_id !== undefined && { requestId: request_id }),
      ...(items === 'none' && { withoutItems: true }),
      ...(created_after !== undefined && { afterMs: Date.parse(created_after) }),
      ...(created_before !== undefined && { beforeMs: Date.parse(created_before) }),
    }
    const found = await findAuditPage(db, filter, page)
    return toPage(LIST, { ...found, limit: page.limit, toItem: toAuditEntry, positionOf: (row) => [row.id] as const })
  })
}

/** An entry as operators see it. */
function toAuditEntry(row: AuditRow): AuditEntry {
  return {
    id: row.id,
    at: toRfc3339(row.at),
    actor: { kind: row.actor_kind, id: row.actor_id },
    action: row.action,
    object: { kind: row.object_kind, id: row.object_id },
    before: toFields(row.before),
    after: toFields(row.after),
    address: row.address,
    request_id: row.request_id,
    operation_id: row.operation_id,
  }
}

function toFields(text: string | null): AuditFields | null {
  return text === null ? null : (JSON.parse(text) as AuditFields)
}
