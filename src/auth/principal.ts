/** Who a request speaks for, once the gate has let it in. */
export interface UserPrincipal {
  kind: 'user'
  sub: string
  email: string | null
  scopes: readonly string[]
  /** Epoch milliseconds after which the credential no longer holds; streams end then. */
  expiresAtMs: number
}

export interface ServicePrincipal {
  kind: 'service'
  /** The service account's id, `svc_…`. */
  id: string
  scopes: readonly string[]
  expiresAtMs: number | null
}

export type Principal = UserPrincipal | ServicePrincipal

/** The name under which a principal's deeds are recorded (`created_by`) and its idempotency keys are kept. */
export function principalId(principal: Principal): string {
  return principal.kind === 'user' ? principal.sub : principal.id
}
