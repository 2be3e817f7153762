import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { Algorithm } from './algorithms.ts'
import { isCognitoIssuer } from './cognito.ts'
import { type Discovery, discover } from './discovery.ts'
import { KeySet, keySetUrl } from './key-set.ts'

interface IssuerOptions {
  issuerUrl: string
  algorithms: readonly Algorithm[]
  fetch: typeof fetch
  clock: Clock
  log: Log
}

/** The documents of the issuer. The keys of a Cognito pool are at a fixed address; another provider names its own. */
export function connectIssuer({ issuerUrl, algorithms, ...outside }: IssuerOptions): {
  discovery: Discovery
  keySet: KeySet
} {
  const discovery = discover({ issuerUrl, ...outside })
  const source = isCognitoIssuer(issuerUrl) ? undefined : discovery
  return { discovery, keySet: new KeySet({ url: keySetUrl(issuerUrl), discovery: source, algorithms, ...outside }) }
}
