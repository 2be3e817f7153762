import { constants, createHmac, generateKeyPairSync, type KeyObject, sign } from 'node:crypto'
import fc from 'fast-check'

export const ISSUER = 'https://cognito-idp.eu-central-1.amazonaws.com/eu-central-1_AbCdEfGhI'
export const AUDIENCE = 'api'
export const NOW_SECONDS = Date.UTC(2026, 0, 1) / 1000

const rsa = (modulusLength: number, publicExponent = 65_537) =>
  generateKeyPairSync('rsa', { modulusLength, publicExponent })
const PAIRS = {
  rsa: rsa(2048),
  ec: generateKeyPairSync('ec', { namedCurve: 'P-256' }),
  ed: generateKeyPairSync('ed25519'),
  weak: rsa(1024),
  low: rsa(2048, 3),
}
/** Keys of the set that one of the verifiers might refuse, each with what is wrong with it. */
const ODD_KEYS = {
  weak: {},
  low: {},
  enc: { use: 'enc' },
  rs512: { alg: 'RS512' },
  ops: { key_ops: ['encrypt'] },
  shown: { d: 'AAAA' },
}
const pairOf = (kid: string): { publicKey: KeyObject; privateKey: KeyObject } =>
  kid in PAIRS ? PAIRS[kid as keyof typeof PAIRS] : PAIRS.rsa
const jwkOf = (kid: string, more: object) => ({ ...pairOf(kid).publicKey.export({ format: 'jwk' }), kid, ...more })

export const JWKS = {
  keys: [
    ...['rsa', 'ec', 'ed'].map((kid) => jwkOf(kid, { use: 'sig' })),
    ...Object.entries(ODD_KEYS).map(([kid, more]) => jwkOf(kid, more)),
  ],
}

const SIGN: Record<string, (input: Buffer, key: KeyObject) => Buffer> = {
  RS256: (input, key) => sign('sha256', input, key),
  RS384: (input, key) => sign('sha384', input, key),
  RS512: (input, key) => sign('sha512', input, key),
  PS256: (input, key) => sign('sha256', input, { key, padding: constants.RSA_PKCS1_PSS_PADDING }),
  ES256: (input, key) => sign('sha256', input, { key, dsaEncoding: 'ieee-p1363' }),
  EdDSA: (input, key) => sign(null, input, key),
  HS256: (input) =>
    createHmac('sha256', PAIRS.rsa.publicKey.export({ type: 'spki', format: 'pem' }))
      .update(input)
      .digest(),
}
const KIDS = { RS256: 'rsa', ES256: 'ec', EdDSA: 'ed' } as const

const CLAIMS = {
  iss: ISSUER,
  sub: '5e1f0c1a-0001-4a7d-9c3e-0ada0ada0ada',
  aud: AUDIENCE,
  exp: NOW_SECONDS + 3600,
  iat: NOW_SECONDS - 1,
  jti: 'c0ffee',
  scope: 'openid',
  client_id: '4k2n',
  email: 'ada@example.com',
  'custom:scopes': 'read:projects',
}

const encode = (text: string | Buffer) => Buffer.from(text).toString('base64url')

interface Draft {
  alg: keyof typeof KIDS
  header: Record<string, unknown>
  claims: Record<string, unknown>
}

/** Signs the two parts as the draft's algorithm demands, whatever its header says. */
function seal(draft: Draft, parts: { header?: string; payload?: string; by?: string; key?: KeyObject } = {}): string {
  const { header = encode(JSON.stringify(draft.header)), payload = encode(JSON.stringify(draft.claims)) } = parts
  const { by = draft.alg, key = pairOf(KIDS[draft.alg]).privateKey } = parts
  const signature = SIGN[by]?.(Buffer.from(`${header}.${payload}`), key) ?? Buffer.alloc(64)
  return `${header}.${payload}.${signature.toString('base64url')}`
}

/** The other spelling of the last character of a part: the same bytes, if the part has unused bits. */
function respell(segment: string): string {
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'
  return segment.slice(0, -1) + alphabet.charAt(alphabet.indexOf(segment.at(-1) ?? 'A') ^ 1)
}

type Mutation = (draft: Draft) => string

const ODD_VALUES = [
  ...[undefined, null, '', 'x', 'JWT', 0, -1, 1e300, true, [], ['x'], [AUDIENCE], [AUDIENCE, 7], {}, AUDIENCE],
  ...['a\u0000b', '\ud800', 's'.repeat(256), 'svc_01arz3ndektsv4rrffq69g5fav', ISSUER, `${ISSUER}/`],
]
const TIMES = [-3600, -1, 0, 1, 3600].flatMap((offset) => [
  NOW_SECONDS + offset,
  String(NOW_SECONDS + offset),
  undefined,
])
const oneOf = fc.constantFrom

const claim = fc.tuple(oneOf(...Object.keys(CLAIMS), 'nbf', 'token_use', 'extra'), oneOf<unknown>(...ODD_VALUES)).map(
  ([name, value]): Mutation =>
    (draft) =>
      seal({ ...draft, claims: { ...draft.claims, [name]: value } }),
)
const time = fc.tuple(oneOf('exp', 'nbf', 'iat'), oneOf<unknown>(...TIMES)).map(
  ([name, value]): Mutation =>
    (draft) =>
      seal({ ...draft, claims: { ...draft.claims, [name]: value } }),
)
const parameter = fc
  .tuple(oneOf('kid', 'typ', 'crit', 'b64', 'jwk', 'jku', 'x5u', 'x5c', 'x5t', 'extra'), oneOf<unknown>(...ODD_VALUES))
  .map(
    ([name, value]): Mutation =>
      (draft) =>
        seal({ ...draft, header: { ...draft.header, [name]: value } }),
  )
const type = oneOf('at+jwt', 'application/at+jwt', 'AT+JWT', 'jwt', 'id+jwt', 'JWS', 'logout+jwt').map(
  (typ): Mutation =>
    (draft) =>
      seal({ ...draft, header: { ...draft.header, typ } }),
)
const algorithm = fc.tuple(oneOf(...Object.keys(SIGN), 'none', 'rs256'), fc.boolean()).map(
  ([alg, honest]): Mutation =>
    (draft) => {
      const fits = honest && alg in SIGN && (alg[0] === 'R' || alg[0] === 'P' || alg[0] === 'H')
      const parts = fits ? { by: alg, key: PAIRS.rsa.privateKey } : {}
      return seal({ ...draft, header: { ...draft.header, alg, ...(fits ? { kid: 'rsa' } : {}) } }, parts)
    },
)
const key = oneOf(...Object.keys(ODD_KEYS)).map(
  (kid): Mutation =>
    (draft) =>
      seal({ ...draft, header: { alg: 'RS256', kid } }, { by: 'RS256', key: pairOf(kid).privateKey }),
)
const json = fc
  .tuple(
    oneOf('header', 'payload'),
    oneOf<(text: string) => string | Buffer>(
      (text) => ` ${text}\n`,
      (text) => `\ufeff${text}`,
      (text) => `${text}{}`,
      (text) => `${text}/* */`,
      (text) => `[${text}]`,
      (text) => text.slice(0, -1),
      (text) => text.replace('{', '{"x":1,"x":2,'),
      (text) => text.replace('{', '{"sub":"grace","kid":"ec",'),
      (text) => text.replace('{', '{"__proto__":{"a":1},'),
      (text) => Buffer.from(text.replace('{', '{"x":"\xff",'), 'latin1'),
      (text) => Buffer.from(text, 'utf16le'),
      (text) => text.replace('{', `{"x":"${'x'.repeat(9000)}",`),
    ),
  )
  .map(
    ([part, change]): Mutation =>
      (draft) => {
        const text = JSON.stringify(part === 'header' ? draft.header : draft.claims)
        return seal(draft, { [part]: encode(change(text)) })
      },
  )
const spelling = fc
  .tuple(
    fc.nat(2),
    oneOf<(segment: string) => string>(
      (segment) => `${segment}=`,
      (segment) => `${segment}==`,
      (segment) => `${segment}\n`,
      (segment) => ` ${segment}`,
      (segment) => `${segment}.`,
      (segment) => respell(segment),
      (segment) => segment.slice(1),
      (segment) => segment.replaceAll('-', '+').replaceAll('_', '/'),
      () => '',
    ),
    fc.boolean(),
  )
  .map(
    ([index, change, isSealed]): Mutation =>
      (draft) => {
        const [header = '', payload = '', signature = ''] = seal(draft).split('.')
        if (index === 2) return `${header}.${payload}.${change(signature)}`
        const parts = index === 0 ? { header: change(header), payload } : { header, payload: change(payload) }
        return isSealed ? seal(draft, parts) : `${parts.header}.${parts.payload}.${signature}`
      },
  )
const character = fc
  .tuple(fc.double({ min: 0, max: 1, noNaN: true, maxExcluded: true }), oneOf('', 'A', '_', '=', '.', ' ', 'é'))
  .map(
    ([where, put]): Mutation =>
      (draft) => {
        const token = seal(draft)
        const at = Math.floor(where * token.length)
        return token.slice(0, at) + put + token.slice(at + 1)
      },
  )

const mutations = fc.oneof(claim, time, parameter, type, algorithm, key, json, spelling, character)
const drafts = oneOf(...(Object.keys(KIDS) as Draft['alg'][])).map(draftOf)

function draftOf(alg: Draft['alg']): Draft {
  return { alg, header: { alg, kid: KIDS[alg] }, claims: CLAIMS }
}

/** Tokens that nothing was changed in, one for each algorithm. */
export function soundTokens(): string[] {
  return (Object.keys(KIDS) as Draft['alg'][]).map((alg) => seal(draftOf(alg)))
}

/** Different tokens with one change each, most of them with a valid signature. But for their keys, the same in every run. */
export function mutatedTokens(count: number): string[] {
  const tokens = new Map<string, string>()
  for (const [draft, mutate] of fc.sample(fc.tuple(drafts, mutations), { numRuns: 4 * count, seed: 27 })) {
    const token = mutate(draft)
    // A signature of ES256 is another one each time.
    const [header, payload, signature = ''] = token.split('.')
    tokens.set(draft.alg === 'ES256' ? `${header}.${payload}.${signature.length}` : token, token)
  }
  return [...new Set(tokens.values())].slice(0, count)
}
