import type { Config } from '../../config.ts'
import { connectProviders } from '../../push/provider-registry.ts'
import type { Services } from '../../services.ts'

interface ReloadedSecrets {
  /** The settings whose new value is used from now on. */
  changed: string[]
  /** The settings whose new value needs a restart: open connections or started conversations use the old one. */
  needRestart: string[]
}

/** Uses new values of the secrets that may change while the service runs. Requests under way finish with the old ones. */
export async function reloadSecrets(services: Services, next: Config): Promise<ReloadedSecrets> {
  const { config, callbackAuthenticity, jobContext, outbox, clock, log, pushCa } = services
  const changed: string[] = []
  if (next.webhookSecrets.join() !== config.webhookSecrets.join()) {
    callbackAuthenticity.useSecrets(next.webhookSecrets)
    changed.push('WEBHOOK_SECRET')
  }
  if (next.runtime?.apiKey !== config.runtime?.apiKey) {
    jobContext.runtime?.useApiKey(next.runtime?.apiKey ?? null)
    changed.push('RUNTIME_API_KEY')
  }
  if (JSON.stringify(next.push) !== JSON.stringify(config.push)) {
    outbox.useSenders(await connectProviders(next, { clock, log, ...(pushCa && { ca: pushCa }) }))
    changed.push('PUSH_PROJECT_ID, PUSH_CLIENT_EMAIL, PUSH_PRIVATE_KEY')
  }
  const needRestart: string[] = []
  if (next.redisUrl !== config.redisUrl) needRestart.push('REDIS_URL')
  if (JSON.stringify(next.database) !== JSON.stringify(config.database)) needRestart.push('DATABASE_URL')
  if (next.runtimeIdentity.secret !== config.runtimeIdentity.secret) needRestart.push('RUNTIME_IDENTITY_SECRET')
  // Reports such as /readyz read the settings from here.
  Object.assign(config, { webhookSecrets: next.webhookSecrets, runtime: next.runtime, push: next.push })
  return { changed, needRestart }
}
