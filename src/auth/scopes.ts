/** A caller needs one of a route's scopes. `admin:*` is enough for every route. */
export const ADMIN_SCOPE = 'admin:*'
/** Read-only access to everything that operators see. */
export const OPERATIONS_SCOPE = 'read:operations'

/** Every scope, with what it allows. */
export const SCOPES = {
  'read:projects': 'List and view projects',
  'write:projects': 'Create and update projects',
  'read:users': 'View user profiles',
  'write:users': 'Update user profiles',
  [OPERATIONS_SCOPE]: 'View all jobs, callbacks, deliveries, metrics, settings and the audit trail',
  [ADMIN_SCOPE]: 'Full admin access. It bypasses every scope check.',
} as const satisfies Record<string, string>

export type Scope = keyof typeof SCOPES

export function hasAnyScope(granted: readonly string[], required: readonly Scope[]): boolean {
  return granted.includes(ADMIN_SCOPE) || required.some((scope) => granted.includes(scope))
}
