import type { Clock } from '../../core/clock.ts'
import { reasonOf } from '../../core/errors.ts'
import type { HttpAnswer } from '../../core/exchange.ts'
import { isJsonObject } from '../../core/json.ts'
import type { Log } from '../../core/log.ts'
import { isLoopbackHost } from '../../core/loopback.ts'
import { checkStatus, ProviderDocument } from './provider-document.ts'

const ADDRESSES = ['jwks_uri', 'authorization_endpoint', 'token_endpoint', 'end_session_endpoint'] as const

/** What the service uses of a provider's discovery document. Empty: the provider has no such document. */
export interface ProviderMetadata extends Partial<Record<(typeof ADDRESSES)[number], string>> {
  id_token_signing_alg_values_supported?: readonly string[]
  authorization_response_iss_parameter_supported?: boolean
}

export type Discovery = ProviderDocument<ProviderMetadata>

/** The provider answered with a document that must not be used. */
export class RefusedDocument extends Error {
  constructor(reason: string, options?: ErrorOptions) {
    super(`the discovery document cannot be used: ${reason}`, options)
    this.name = 'RefusedDocument'
  }
}

interface DiscoveryOptions {
  issuerUrl: string
  fetch: typeof fetch
  clock: Clock
  log: Log
}

/** The discovery document of an issuer, under the rules of the key set. A document that names another issuer is refused. */
export function discover({ issuerUrl, fetch, clock, log }: DiscoveryOptions): Discovery {
  return new ProviderDocument({
    url: () => discoveryUrl(issuerUrl),
    read: (answer, before) => {
      // Only this status says that there is no document.
      if (answer.status === 404 && before?.jwks_uri === undefined) return {}
      return readMetadata(answer, issuerUrl)
    },
    isComplete: ({ jwks_uri }) => jwks_uri !== undefined,
    onFailure: (error) => log.warn({ error }, 'discovery.fetch_failed'),
    fetch,
    clock,
  })
}

export function discoveryUrl(issuerUrl: string): string {
  return `${issuerUrl.replace(/\/$/, '')}/.well-known/openid-configuration`
}

function readMetadata(answer: HttpAnswer, issuerUrl: string): ProviderMetadata {
  checkStatus(answer)
  try {
    const document: unknown = JSON.parse(answer.text)
    if (!isJsonObject(document)) throw new Error('it is not a JSON object')
    if (document.issuer !== issuerUrl) throw new Error(`it names the issuer ${JSON.stringify(document.issuer)}`)
    const addresses = ADDRESSES.flatMap((name) => {
      const value = document[name]
      if (value === undefined) return []
      if (typeof value === 'string' && isSafeAddress(value, issuerUrl)) return [[name, value]]
      if (name === 'jwks_uri') throw new Error('its jwks_uri is not an https address')
      // Only the console needs the other addresses.
      return []
    })
    const { id_token_signing_alg_values_supported: algorithms, authorization_response_iss_parameter_supported: iss } =
      document
    return {
      ...Object.fromEntries(addresses),
      ...(isTextList(algorithms) && { id_token_signing_alg_values_supported: algorithms }),
      ...(iss === true && { authorization_response_iss_parameter_supported: true }),
    }
  } catch (cause) {
    throw new RefusedDocument(reasonOf(cause), { cause })
  }
}

/**
 * Keys and codes must not be readable or replaceable on their way. An issuer over http exists in development only; its
 * other addresses may be http on loopback, too.
 */
function isSafeAddress(text: string, issuerUrl: string): boolean {
  const { protocol, hostname = '' } = URL.parse(text) ?? {}
  if (protocol === 'https:') return true
  return protocol === 'http:' && isLoopbackHost(hostname) && issuerUrl.startsWith('http:')
}

function isTextList(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((one) => typeof one === 'string')
}
