/** The scopes. One of a route's scopes is enough, and `admin:*` is enough for every route. */
export const ADMIN_SCOPE = 'admin:*'

export type Scope = 'read:projects' | 'write:projects' | 'read:users' | 'write:users' | typeof ADMIN_SCOPE

export const SCOPES: Record<Scope, string> = {
  'read:projects': 'List and view projects',
  'write:projects': 'Create and update projects',
  'read:users': 'View user profiles',
  'write:users': 'Update user profiles',
  'admin:*': 'Full admin access. It bypasses every scope check.',
}

export function hasAnyScope(granted: readonly string[], required: readonly Scope[]): boolean {
  return granted.includes(ADMIN_SCOPE) || required.some((scope) => granted.includes(scope))
}
