import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import type { FcmCredentials } from './fcm/fcm-assertion.ts'
import { fcm } from './fcm/fcm-provider.ts'
import type { ContentFault, PushContent, PushProvider, PushSender } from './push-provider.ts'

/** Every push provider. No other file outside a provider's folder imports from it. */
export const PUSH_PROVIDERS: readonly PushProvider[] = [fcm]

/** The provider of newly registered devices: the API has no field to choose one. */
export const DEFAULT_PROVIDER: PushProvider = fcm

/** A notification may go to devices of any provider, so all of them must accept it. */
export function faultOfContent(content: PushContent): ContentFault | null {
  for (const provider of PUSH_PROVIDERS) {
    const fault = provider.validate(content)
    if (fault !== null) return fault
  }
  return null
}

interface PushSettings {
  push: FcmCredentials | null
  pushApiUrl: string | null
  pushTokenUrl: string | null
}

/** One sender for each provider that has credentials. A sender is loaded only then: HTTP/2 and TLS slow down a start. */
export async function connectProviders(
  { push: credentials, pushApiUrl: apiUrl, pushTokenUrl: tokenUrl }: PushSettings,
  context: { clock: Clock; log: Log; ca?: string },
): Promise<PushSender[]> {
  if (credentials === null) return []
  const { createFcmSender } = await import('./fcm/fcm-sender.ts')
  return [createFcmSender({ credentials, apiUrl, tokenUrl, ...context })]
}
