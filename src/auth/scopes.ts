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

/** A provider's names of scopes, with our scopes that each one stands for. */
export type ScopesMap = ReadonlyMap<string, readonly Scope[]>

/**
 * Reads entries such as `editor=read:projects write:projects`. Throws with the reason if an entry is wrong. The last equals
 * sign separates, because ours have none.
 */
export function parseScopesMap(entries: readonly string[]): ScopesMap {
  const map = new Map<string, readonly Scope[]>()
  for (const entry of entries) {
    const end = Math.max(0, entry.lastIndexOf('='))
    const theirs = entry.slice(0, end).trim()
    if (theirs === '') throw new Error(`holds "${entry}", which does not have the form theirs=ours`)
    if (map.has(theirs)) throw new Error(`names "${theirs}" twice`)
    const scopes = entry
      .slice(end + 1)
      .trim()
      .split(/ +/)
    const unknown = scopes.find((scope) => !Object.hasOwn(SCOPES, scope))
    if (unknown !== undefined) throw new Error(`maps "${theirs}" to "${unknown}", which is not a scope of this service`)
    map.set(theirs, scopes as Scope[])
  }
  return map
}

export function hasAnyScope(granted: readonly string[], required: readonly Scope[]): boolean {
  return granted.includes(ADMIN_SCOPE) || required.some((scope) => granted.includes(scope))
}
