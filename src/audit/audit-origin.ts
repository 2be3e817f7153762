import type { FastifyRequest } from 'fastify'
import { COMMAND_LINE, type Principal, principalId } from '../auth/principal.ts'
import { callerOf } from '../http/gate/access.ts'
import type { AuditOrigin } from './record-audit.ts'

/** The caller of a request as the audit trail names it. */
export function auditOriginOf(request: FastifyRequest): AuditOrigin {
  return { actor: actorOf(callerOf(request)), address: request.ip, requestId: request.id }
}

function actorOf(caller: Principal): AuditOrigin['actor'] {
  if (caller.kind === COMMAND_LINE) return { kind: COMMAND_LINE, id: caller.user }
  return { kind: caller.kind === 'user' ? 'user' : 'service_account', id: principalId(caller) }
}
