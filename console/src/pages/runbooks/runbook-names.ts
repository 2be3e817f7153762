/** The runbook for each dependency in `/readyz`, by the dependency's name. */
export const RUNBOOK_OF: Readonly<Record<string, string>> = {
  database: 'postgresql-failover',
  disk: 'disk',
  clock: 'postgresql-failover',
  identity_provider: 'identity-provider',
  rate_limits: 'redis-down',
  runtime: 'runtime-down',
  callbacks: 'callbacks-refused',
  push: 'push-credentials',
  process: 'rollback',
}

/**
 * The runbook for a dependency that has a fault. `/readyz` knows the room on the disk only if the database is on it: on
 * SQLite. A fault of that database is one of its disk.
 */
export function runbookFor(
  name: string,
  checks: Readonly<Record<string, { detail: string | null }>>,
): string | undefined {
  const isOnDisk = typeof checks.disk?.detail === 'string'
  return RUNBOOK_OF[name === 'database' && isOnDisk ? 'disk' : name]
}

/** For a service that does not answer. */
export const DEAD_SERVICE_RUNBOOK = 'rollback'
