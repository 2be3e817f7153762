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

export type Principal = UserPrincipal | ServicePrincipal

/** The id under which a principal's records (`created_by`) and idempotency keys are stored. */
export function principalId(principal: Principal): string {
  return principal.kind === 'user' ? principal.sub : principal.id
}
