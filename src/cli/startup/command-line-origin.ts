import { hostname, userInfo } from 'node:os'
import type { AuditOrigin } from '../../audit/record-audit.ts'

/** The operator of a command as the audit trail names it: the user and the machine. */
export function commandLineOrigin(): AuditOrigin {
  return { actor: { kind: 'command_line', id: userName() }, address: hostname(), requestId: null }
}

/** In a container the user may have no name. */
export function userName(): string {
  try {
    return userInfo().username
  } catch {
    return 'unknown'
  }
}
