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

/** For a service that does not answer. */
export const DEAD_SERVICE_RUNBOOK = 'rollback'
