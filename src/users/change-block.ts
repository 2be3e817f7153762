import { type AuditOrigin, recordAudit } from '../audit/record-audit.ts'
import type { Clock } from '../core/clock.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Database } from '../db/database.ts'
import { setBlocked } from './user-state-store.ts'

/** Blocks or unblocks a user, with its audit entry. Repeating it changes nothing and is not recorded again. */
export function changeBlock(
  db: Database,
  context: { ids: IdGenerator; clock: Clock },
  wanted: { sub: string; blockedAtMs: number | null; by: AuditOrigin },
): Promise<{ blockedAtMs: number | null; changed: boolean }> {
  const { sub, blockedAtMs, by } = wanted
  return db.transaction(async (tx) => {
    const outcome = await setBlocked(tx, { sub, blockedAtMs })
    const action = blockedAtMs === null ? 'user.unblocked' : 'user.blocked'
    if (outcome.changed) await recordAudit(tx, context, { by, action, object: { kind: 'user', id: sub } })
    return outcome
  })
}
