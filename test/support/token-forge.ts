import { createPublicKey, type KeyObject, sign } from 'node:crypto'
import type { IdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import type { MintRequest } from '../../src/sandbox/identity-provider/token-mint.ts'
import { rsaPair } from './rsa-keys.ts'

type Signer = (input: Buffer) => Buffer
type Segments = [header: string, payload: string, signature: string]

const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'

/** Builds tokens with any content and signs them with a key that the provider publishes. */
export class TokenForge {
  readonly ownKid = `forge-${crypto.randomUUID()}`
  readonly ownKey: KeyObject
  readonly publicKey: KeyObject
  readonly header: string
  readonly payload: string
  readonly claims: Record<string, unknown>
  readonly #idp: IdentityProvider

  constructor(idp: IdentityProvider) {
    this.#idp = idp
    const own = rsaPair('forge')
    this.ownKey = own.privateKey
    idp.addJwk({ ...own.publicKey.export({ format: 'jwk' }), kid: this.ownKid })
    const jwk = idp.jwks.keys.find(({ kid }) => kid === idp.kid)
    if (!jwk) throw new Error('the provider does not publish its own key')
    this.publicKey = createPublicKey({ key: jwk, format: 'jwk' })
    this.header = TokenForge.encode({ kid: this.ownKid, alg: 'RS256' })
    this.payload = TokenForge.split(idp.mint())[1]
    this.claims = TokenForge.decode(this.payload)
  }

  get kid(): string {
    return this.#idp.kid
  }

  get issuer(): string {
    return this.#idp.issuer
  }

  get jwksUrl(): string {
    return this.#idp.jwksUrl
  }

  get nowSeconds(): number {
    return Number(this.claims.iat)
  }

  mint(request: MintRequest = {}): string {
    return this.#idp.mint(request)
  }

  publish(jwk: Record<string, unknown>): void {
    this.#idp.addJwk(jwk)
  }

  /** Joins two parts as they are and signs them, by default as RS256 with the forge's own published key. */
  seal(header: string, payload: string, signer: Signer = (input) => sign('sha256', input, this.ownKey)): string {
    return `${header}.${payload}.${signer(Buffer.from(`${header}.${payload}`)).toString('base64url')}`
  }

  /** A good part whose length leaves room for padding, with that padding. */
  unpadded(part: 'header' | 'payload', padding: string): string {
    const segment = this.#withSpareBits(part)
    return segment + padding.repeat(4 - (segment.length % 4))
  }

  /** A good part whose unused last bits are set: it decodes to the same bytes. */
  spareBits(part: 'header' | 'payload'): string {
    return respellSegment(this.#withSpareBits(part))
  }

  /** The same token in the alphabet of plain base64. */
  withOtherAlphabet(): string {
    for (;;) {
      const token = this.mint()
      const [header, payload, signature] = TokenForge.split(token)
      if (!/[-_]/.test(signature)) continue
      return `${header}.${payload}.${signature.replaceAll('-', '+').replaceAll('_', '/')}`
    }
  }

  /** The longest well-signed token within a length, or the shortest over it. */
  ofLength(side: 'within' | 'over', length: number): string {
    const of = (filler: number) => this.mint({ claims: { filler: 'x'.repeat(filler) } })
    let filler = Math.floor((length * 3) / 4 - of(0).length)
    while (of(filler + 1).length <= length) filler += 1
    return of(side === 'within' ? filler : filler + 1)
  }

  /** One bit of the signature changed, spelt canonically. */
  altered(token: string): string {
    const [header, payload, signature] = TokenForge.split(token)
    const bytes = Buffer.from(signature, 'base64url')
    bytes.writeUInt8((bytes.at(-1) ?? 0) ^ 1, bytes.length - 1)
    return `${header}.${payload}.${bytes.toString('base64url')}`
  }

  #withSpareBits(part: 'header' | 'payload'): string {
    for (let filler = ''; ; filler += 'x') {
      const plain = part === 'header' ? { kid: this.ownKid, alg: 'RS256', filler } : { ...this.claims, filler }
      const segment = TokenForge.encode(plain)
      if (segment.length % 4 !== 0) return segment
    }
  }

  static encode(value: unknown): string {
    return TokenForge.encodeText(JSON.stringify(value))
  }

  static encodeText(text: string | Buffer): string {
    return Buffer.from(text).toString('base64url')
  }

  static decode(segment: string): Record<string, unknown> {
    return JSON.parse(Buffer.from(segment, 'base64url').toString('utf8'))
  }

  static split(token: string): Segments {
    const [header = '', payload = '', signature = ''] = token.split('.')
    return [header, payload, signature]
  }

  /** Another spelling of the same signature bytes: 256 bytes leave four bits of the last character unused. */
  static respell(token: string): string {
    const [header, payload, signature] = TokenForge.split(token)
    return `${header}.${payload}.${respellSegment(signature)}`
  }
}

function respellSegment(segment: string): string {
  const last = ALPHABET.indexOf(segment.at(-1) ?? '')
  return segment.slice(0, -1) + ALPHABET.charAt(last | 1)
}
