import { constants, createHmac, generateKeyPairSync, sign } from 'node:crypto'
import type { TokenFaultReason } from '../../src/auth/token-fault.ts'
import type { IdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { type RsaPair, rsaPair } from './rsa-keys.ts'
import { TokenForge } from './token-forge.ts'

export interface HostileToken {
  name: string
  token: string
  /** The expected reason of the refusal, so that no case passes for another reason. */
  reason: TokenFaultReason
}

/**
 * Tokens every verifier of ours must refuse, each with one fault and otherwise valid. Some need a bad key in the provider's
 * set, so call this before the set is fetched.
 */
export async function hostileTokens(idp: IdentityProvider): Promise<HostileToken[]> {
  const forge = new TokenForge(idp)
  return [
    ...shapes(forge),
    ...algorithms(forge),
    ...headers(forge),
    ...keys(forge),
    ...payloads(forge),
    ...claims(forge),
  ]
}

type Case = [name: string, token: string]

const refused = (reason: TokenFaultReason, cases: Case[]): HostileToken[] =>
  cases.map(([name, token]) => ({ name, token, reason }))

function shapes(forge: TokenForge): HostileToken[] {
  const good = forge.mint()
  const [header, payload, signature] = TokenForge.split(good)
  const [otherHeader, otherPayload, otherSignature] = TokenForge.split(forge.mint({ user: 'admin' }))
  const bytes = Buffer.from(signature, 'base64url')
  const withoutFirstByte = bytes.subarray(1).toString('base64url')
  return [
    ...refused('malformed', [
      ['the empty string', ''],
      ['one part', header],
      ['two parts', `${header}.${payload}`],
      ['four parts', `${good}.${signature}`],
      ['five parts, as an encrypted token has', `${header}.${payload}.${signature}.${payload}.${signature}`],
      ['a dot at the end', `${good}.`],
      ['a dot in front', `.${good}`],
      ['only dots', '..'],
      ['an empty header', `.${payload}.${signature}`],
      ['an empty payload', `${header}..${signature}`],
      ['an empty signature', `${header}.${payload}.`],
      ['a line feed at the end', `${good}\n`],
      ['a carriage return and line feed at the end', `${good}\r\n`],
      ['a blank in front', ` ${good}`],
      ['a blank at the end', `${good} `],
      ['a tab within the signature', `${header}.${payload}.${signature.slice(0, 9)}\t${signature.slice(9)}`],
      ['a second Bearer in front', `Bearer ${good}`],
      ['quotes around it', `"${good}"`],
      ['a NUL at the end', `${good}\u0000`],
      ['a letter that only looks like ASCII', good.replace('e', '\u0435')],
      ['padding after the signature', `${good}==`],
      ['padding after the header', forge.seal(forge.unpadded('header', '='), payload)],
      ['padding after the payload', forge.seal(header, forge.unpadded('payload', '='))],
      ['spare bits in the header', forge.seal(forge.spareBits('header'), payload)],
      ['spare bits in the payload', forge.seal(header, forge.spareBits('payload'))],
      ['spare bits in the signature: another spelling of the same bytes', TokenForge.respell(good)],
      ['the plus and slash alphabet', forge.withOtherAlphabet()],
      ['the JSON form of a signed token', JSON.stringify({ protected: header, payload, signature })],
    ]),
    ...refused('signature', [
      ['an altered signature', forge.altered(good)],
      ['the signature of another token', `${header}.${payload}.${otherSignature}`],
      ['the payload of another token', `${header}.${otherPayload}.${signature}`],
      [
        'a respelt header over an old signature',
        `${TokenForge.encode({ ...TokenForge.decode(otherHeader), x: 1 })}.${payload}.${signature}`,
      ],
      ['a signature cut short', `${header}.${payload}.${withoutFirstByte}`],
      [
        'a signature with a byte more',
        `${header}.${payload}.${Buffer.concat([Buffer.alloc(1), bytes]).toString('base64url')}`,
      ],
      ['a signature of zeros', `${header}.${payload}.${Buffer.alloc(256).toString('base64url')}`],
      ['a signature of one byte', `${header}.${payload}.AA`],
    ]),
    ...refused('too_long', [
      ['the shortest over 8 KB, well signed', forge.ofLength('over', 8192)],
      ['a payload of 1 MB, well signed', forge.mint({ claims: { filler: 'x'.repeat(1 << 20) } })],
      ['a megabyte of dots', '.'.repeat(1 << 20)],
    ]),
  ]
}

function algorithms(forge: TokenForge): HostileToken[] {
  const { payload, publicKey } = forge
  const hmac = (secret: string | Buffer, header: object = { kid: forge.kid, alg: 'HS256' }) =>
    forge.seal(TokenForge.encode(header), payload, (input) => createHmac('sha256', secret).update(input).digest())
  const none = (alg: string) => TokenForge.encode({ kid: forge.kid, alg })
  const ec = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const ed = generateKeyPairSync('ed25519')
  const secret = Buffer.alloc(32, 7)
  forge.publish({ ...ec.publicKey.export({ format: 'jwk' }), kid: 'ec', alg: 'ES256', use: 'sig' })
  forge.publish({ ...ed.publicKey.export({ format: 'jwk' }), kid: 'ed', alg: 'EdDSA', use: 'sig' })
  forge.publish({ kty: 'oct', k: secret.toString('base64url'), kid: 'oct', alg: 'HS256' })
  const es256 = (input: Buffer) => sign('sha256', input, { key: ec.privateKey, dsaEncoding: 'ieee-p1363' })
  const rs = (digest: string, alg: string) =>
    forge.seal(TokenForge.encode({ kid: forge.ownKid, alg }), payload, (input) => sign(digest, input, forge.ownKey))
  const ps256 = (input: Buffer) =>
    sign('sha256', input, { key: forge.ownKey, padding: constants.RSA_PKCS1_PSS_PADDING, saltLength: 32 })
  return refused('algorithm', [
    ['alg none with a signature', forge.seal(none('none'), payload)],
    ['alg None', forge.seal(none('None'), payload)],
    ['alg NONE', forge.seal(none('NONE'), payload)],
    ['alg none with one byte for a signature', `${none('none')}.${payload}.AA`],
    ['alg rs256 in small letters', forge.mint({ header: { alg: 'rs256' } })],
    ['alg RS256 with a blank', forge.mint({ header: { alg: 'RS256 ' } })],
    ['alg missing', forge.mint({ header: { alg: undefined } })],
    ['alg null', forge.mint({ header: { alg: null } })],
    ['alg as a list', forge.mint({ header: { alg: ['RS256'] } })],
    ['alg as a number', forge.mint({ header: { alg: 256 } })],
    ['HS256 with the public key in PEM as the secret', hmac(publicKey.export({ type: 'spki', format: 'pem' }))],
    ['HS256 with the public key in DER as the secret', hmac(publicKey.export({ type: 'spki', format: 'der' }))],
    ['HS256 with the modulus as the secret', hmac(String(publicKey.export({ format: 'jwk' }).n))],
    ['HS256 with an empty secret', hmac('')],
    ['HS256 with a secret the set publishes', hmac(secret, { kid: 'oct', alg: 'HS256' })],
    ['RS384 by a key of the set', rs('sha384', 'RS384')],
    ['RS512 by a key of the set', rs('sha512', 'RS512')],
    ['PS256 by a key of the set', forge.seal(TokenForge.encode({ kid: forge.ownKid, alg: 'PS256' }), payload, ps256)],
    ['ES256 by a key of the set', forge.seal(TokenForge.encode({ kid: 'ec', alg: 'ES256' }), payload, es256)],
    [
      'EdDSA by a key of the set',
      forge.seal(TokenForge.encode({ kid: 'ed', alg: 'EdDSA' }), payload, (input) => sign(null, input, ed.privateKey)),
    ],
  ])
}

function headers(forge: TokenForge): HostileToken[] {
  const mallory = rsaPair('mallory')
  const jwk = { ...mallory.publicKey.export({ format: 'jwk' }), alg: 'RS256' }
  const by = (header: Record<string, unknown>) => forge.mint({ header })
  const text = (header: string | Buffer) => forge.seal(TokenForge.encodeText(header), forge.payload)
  const kid = JSON.stringify(forge.kid)
  return [
    ...refused('header', [
      ['no kid, though one key could be meant', by({ kid: undefined })],
      ['an empty kid', by({ kid: '' })],
      ['a kid that is null', by({ kid: null })],
      ['a kid that is a number', by({ kid: 1 })],
      ['a kid that is a list', by({ kid: [forge.kid] })],
      ['a kid of 257 characters', by({ kid: 'k'.repeat(257) })],
      ['an unknown crit', by({ crit: ['urn:example:unknown'], 'urn:example:unknown': true })],
      ['an empty crit', by({ crit: [] })],
      ['a crit that is null', by({ crit: null })],
      ['a crit that is a string', by({ crit: 'exp' })],
      ['a crit naming a registered parameter', by({ crit: ['alg'] })],
      ['a crit of b64, set to true', by({ crit: ['b64'], b64: true })],
      ['a crit of b64, set to false', by({ crit: ['b64'], b64: false })],
      ['b64 false without crit', by({ b64: false })],
      ['b64 true without crit', by({ b64: true })],
      ['an embedded key and its signature', forge.mint({ key: mallory.privateKey, header: { jwk } })],
      ['an embedded key that is null', by({ jwk: null })],
      [
        'a jku to a foreign set',
        forge.mint({ key: mallory.privateKey, header: { jku: 'https://example.com/jwks.json' } }),
      ],
      ['a jku to the right set', by({ jku: forge.jwksUrl })],
      ['an x5u', by({ x5u: 'https://example.com/cert.pem' })],
      ['an x5c', by({ x5c: ['MIIB'] })],
      ['a type of another kind', by({ typ: 'secevent+jwt' })],
      ['an empty type', by({ typ: '' })],
      ['a type that is a list', by({ typ: ['JWT'] })],
      ['a type that is null', by({ typ: null })],
    ]),
    ...refused('algorithm', [['an empty object for a header', text('{}')]]),
    ...refused('malformed', [
      ['a header that is a list', text('["RS256"]')],
      ['a header that is an empty list', text('[]')],
      ['a header that is a string', text('"RS256"')],
      ['a header that is null', text('null')],
      ['a header that is not JSON', text(`{alg:"RS256",kid:${kid}}`)],
      ['a header with something after it', text(`{"alg":"RS256","kid":${kid}}{}`)],
      ['a header that is no UTF-8', text(Buffer.from(`{"alg":"RS256","kid":${kid},"x":"\xff"}`, 'latin1'))],
      ['a header behind a byte order mark', text(`\ufeff{"alg":"RS256","kid":${kid}}`)],
      ['alg given twice', text(`{"alg":"none","kid":${kid},"alg":"RS256"}`)],
      ['kid given twice', text(`{"alg":"RS256","kid":"another","kid":${kid}}`)],
      ['kid given twice, once in escapes', text(`{"alg":"RS256","\\u006bid":"another","kid":${kid}}`)],
    ]),
  ]
}

function keys(forge: TokenForge): HostileToken[] {
  const published = (kid: string, pair: RsaPair, extra: object = {}) => {
    forge.publish({ ...pair.publicKey.export({ format: 'jwk' }), kid, ...extra })
    return forge.mint({ kid, key: pair.privateKey })
  }
  const mallory = rsaPair('mallory')
  const sound = rsaPair('sound')
  const shown = mallory.privateKey.export({ format: 'jwk' })
  return [
    ...refused('signature', [['a foreign key under a known kid', forge.mint({ key: mallory.privateKey })]]),
    ...refused('unknown_key', [
      ['an unpublished kid', forge.mint({ kid: 'unknown', key: mallory.privateKey })],
      ['an unpublished kid, by the right key', forge.mint({ kid: `${forge.kid}x` })],
      ['a kid that differs in case', forge.mint({ kid: swapCase(forge.kid) })],
      ['a kid named __proto__', forge.mint({ kid: '__proto__' })],
      ['a kid named constructor', forge.mint({ kid: 'constructor' })],
      ['a kid that is a path', forge.mint({ kid: '../../dev/null' })],
      ['a key of 1024 bits, though the set has it', published('weak', rsaPair('weak', { bits: 1024 }))],
      ['a key with the exponent 3, though the set has it', published('low', rsaPair('low', { exponent: 3 }))],
      ['a key for encryption, though the set has it', published('enc', sound, { use: 'enc' })],
      ['a key for RS512, though the set has it', published('rs512', sound, { alg: 'RS512' })],
      ['a key that may not verify, though the set has it', published('ops', sound, { key_ops: ['encrypt'] })],
      ['a key whose private half the set shows', published('shown', mallory, shown)],
    ]),
  ]
}

function payloads(forge: TokenForge): HostileToken[] {
  const sealed = (payload: string | Buffer) => forge.seal(forge.header, TokenForge.encodeText(payload))
  const good = JSON.stringify(forge.claims)
  const plus = (member: string) => `${good.slice(0, -1)},${member}}`
  return refused('malformed', [
    ['a payload that is a list', sealed(`[${good}]`)],
    ['a payload that is an empty list', sealed('[]')],
    ['a payload that is a string', sealed(JSON.stringify(good))],
    ['a payload that is null', sealed('null')],
    ['a payload that is a number', sealed('1')],
    ['a payload that is a token itself', sealed(forge.mint())],
    ['a payload cut short', sealed(good.slice(0, -1))],
    ['a payload with a comment', sealed(`${good}/* */`)],
    ['a payload with something after it', sealed(`${good}${good}`)],
    ['a payload behind a byte order mark', sealed(`\ufeff${good}`)],
    ['a payload that is no UTF-8', sealed(Buffer.from(plus('"x":"\xff\xfe"'), 'latin1'))],
    ['a payload in UTF-16', sealed(Buffer.from(good, 'utf16le'))],
    ['a payload with an overlong NUL', sealed(Buffer.from(plus('"x":"\xc0\x80"'), 'latin1'))],
    ['sub given twice', sealed(plus('"sub":"another-user"'))],
    ['sub given twice, once in escapes', sealed(plus('"s\\u0075b":"another-user"'))],
    ['exp given twice', sealed(plus('"exp":9999999999'))],
    ['iss given twice', sealed(plus(`"iss":${JSON.stringify(forge.issuer)}`))],
    ['custom:scopes given twice', sealed(plus('"custom:scopes":"admin:*"'))],
    ['an unread claim given twice', sealed(plus('"x":{"a":1},"x":2'))],
    ['__proto__ given twice', sealed(plus('"__proto__":{"sub":"a"},"__proto__":{}'))],
  ])
}

function claims(forge: TokenForge): HostileToken[] {
  const having = (changed: Record<string, unknown>) => forge.mint({ claims: changed })
  const raw = (name: string, value: string) =>
    forge.seal(
      forge.header,
      TokenForge.encodeText(JSON.stringify({ ...forge.claims, [name]: '@' }).replace('"@"', value)),
    )
  const { issuer } = forge
  return [
    ...refused('issuer', [
      ['iss missing', having({ iss: undefined })],
      ['iss null', having({ iss: null })],
      ['iss as a list', having({ iss: [issuer] })],
      ['iss of another pool', having({ iss: `${issuer}_2` })],
      ['iss with a slash at the end', having({ iss: `${issuer}/` })],
      ['iss in capitals', having({ iss: issuer.toUpperCase() })],
      ['iss as the beginning of the right one', having({ iss: issuer.slice(0, -1) })],
      ['iss empty', having({ iss: '' })],
      ['no claims at all', forge.seal(forge.header, TokenForge.encodeText('{}'))],
    ]),
    ...refused('expired', [
      ['exp in the past', forge.mint({ expiresInSeconds: -1 })],
      ['exp at this very second', forge.mint({ expiresInSeconds: 0 })],
      ['exp at the epoch', having({ exp: 0 })],
      ['exp before the epoch', having({ exp: -1 })],
      ['exp too negative for a date', having({ exp: -1e300 })],
    ]),
    ...refused('not_yet_valid', [
      ['nbf in an hour', having({ nbf: forge.nowSeconds + 3600 })],
      ['nbf beyond all dates', having({ nbf: 1e300 })],
    ]),
    ...refused('claims', [
      ['exp missing', having({ exp: undefined })],
      ['exp null', having({ exp: null })],
      ['exp as a string', having({ exp: String(forge.nowSeconds + 3600) })],
      ['exp true', having({ exp: true })],
      ['exp as a list', having({ exp: [forge.nowSeconds + 3600] })],
      ['exp infinite', raw('exp', '1e999')],
      ['nbf as a string', having({ nbf: '0' })],
      ['nbf null', having({ nbf: null })],
      ['nbf minus infinite', raw('nbf', '-1e999')],
      ['iat as a string', having({ iat: String(forge.nowSeconds) })],
      ['iat null', having({ iat: null })],
      ['iat infinite', raw('iat', '1e999')],
      ['sub missing', having({ sub: undefined })],
      ['sub empty', having({ sub: '' })],
      ['sub null', having({ sub: null })],
      ['sub as a number', having({ sub: 42 })],
      ['sub as a list', having({ sub: ['ada'] })],
      ['sub as an object', having({ sub: { toString: 'ada' } })],
      ['sub of 256 characters', having({ sub: 's'.repeat(256) })],
      ['sub like a service account', having({ sub: 'svc_01arz3ndektsv4rrffq69g5fav' })],
      ['sub of the command line', having({ sub: 'command_line' })],
      ['sub with a NUL', having({ sub: 'a\u0000b' })],
      ['sub with half a character', having({ sub: 'a\ud800' })],
      ['sub only behind __proto__', having({ sub: undefined, ['__proto__']: { sub: 'ada' } })],
      ['custom:scopes as a list', having({ 'custom:scopes': ['admin:*'] })],
      ['custom:scopes null', having({ 'custom:scopes': null })],
      ['custom:scopes as a number', having({ 'custom:scopes': 1 })],
      ['custom:scopes as an object', having({ 'custom:scopes': { 0: 'admin:*' } })],
      ['custom:scopes true', having({ 'custom:scopes': true })],
      ['email as a number', having({ email: 1 })],
      ['email false', having({ email: false })],
      ['email as a list', having({ email: ['ada@example.com'] })],
      ['email as an object', having({ email: {} })],
      ['email with a NUL', having({ email: 'a\u0000@example.com' })],
      ['email with half a character', having({ email: '\udc00@example.com' })],
    ]),
  ]
}

function swapCase(text: string): string {
  return text.replace(/[a-z]/i, (letter) =>
    letter === letter.toLowerCase() ? letter.toUpperCase() : letter.toLowerCase(),
  )
}
