/** A caller needs one of a route's scopes. `admin:*` is enough for every route. */
export const ADMIN_SCOPE = 'admin:*'
/** Read-only access to everything that operators see. */
export const OPERATIONS_SCOPE = 'read:operations'

export type Scope =
  | 'read:projects'
  | 'write:projects'
  | 'read:users'
  | 'write:users'
  | typeof OPERATIONS_SCOPE
  | typeof ADMIN_SCOPE

export const SCOPES: Record<Scope, string> = {
  'read:projects': 'List and view projects',
  'write:projects': 'Create and update projects',
  'read:users': 'View user profiles',
  'write:users': 'Update user profiles',
  'read:operations': 'View all jobs, callbacks, deliveries, metrics, settings and the audit trail',
  'admin:*': 'Full admin access. It bypasses every scope check.',
}

export function hasAnyScope(granted: readonly string[], required: readonly Scope[]): boolean {
  return granted.includes(ADMIN_SCOPE) || required.some((scope) => granted.includes(scope))
}
