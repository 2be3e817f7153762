/** The signature algorithms that a token may name, with the type of key that each one needs. */
export const ALGORITHMS = {
  RS256: { kty: 'RSA' },
  PS256: { kty: 'RSA' },
  ES256: { kty: 'EC', crv: 'P-256' },
  EdDSA: { kty: 'OKP', crv: 'Ed25519' },
} as const satisfies Record<string, { kty: string; crv?: string }>

export type Algorithm = keyof typeof ALGORITHMS

/** What Cognito signs with. */
export const DEFAULT_ALGORITHMS: readonly Algorithm[] = ['RS256']

export function isAlgorithm(name: unknown): name is Algorithm {
  return typeof name === 'string' && Object.hasOwn(ALGORITHMS, name)
}
