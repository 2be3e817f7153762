/** The caller of a request, once the gate has admitted it. */
export interface UserPrincipal {
  kind: 'user'
  sub: string
  email: string | null
  scopes: readonly string[]
  /** The credential is valid until this time, in epoch milliseconds; streams end then. */
  expiresAtMs: number
}

export interface ServicePrincipal {
  kind: 'service'
  /** The service account's id, `svc_…`. */
  id: string
  /** The id of the key that was used, `key_…`. */
  keyId: string
  scopes: readonly string[]
  expiresAtMs: number | null
}

/** The id of the command line, where other principals have a `sub` or the id of their account. */
export const COMMAND_LINE = 'command_line'

/** A command on the machine of the service, with the key of the service's start. */
export interface CommandLinePrincipal {
  kind: typeof COMMAND_LINE
  id: typeof COMMAND_LINE
  /** The user of the machine that runs the service: other users cannot read the key. */
  user: string
  scopes: readonly string[]
  expiresAtMs: null
}

export type Principal = UserPrincipal | ServicePrincipal | CommandLinePrincipal

/** The id under which a principal's records (`created_by`) and idempotency keys are stored. */
export function principalId(principal: Principal): string {
  return principal.kind === 'user' ? principal.sub : principal.id
}
