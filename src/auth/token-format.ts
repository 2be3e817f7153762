import { JsonScan } from '../core/json/json-scan.ts'
import { type Algorithm, DEFAULT_ALGORITHMS, isAlgorithm } from './issuer/algorithms.ts'
import { MAX_KID_LENGTH } from './issuer/jwk.ts'
import { TokenFault } from './token-fault.ts'

export type Claims = Readonly<Record<string, unknown>>

interface ParsedToken {
  alg: Algorithm
  kid: string
  claims: Claims
}

const SCHEME = /^Bearer +/i
const BASE64URL = /^[A-Za-z0-9_-]+$/
/** RFC 9068 allows both spellings of the type of an access token. */
const TYPES = new Set(['jwt', 'at+jwt', 'application/at+jwt'])

/**
 * Header parameters that change the verified content or choose the key. `crit` is refused with any content, since no
 * extension is supported. Thumbprints (`x5t`) only describe the key and are allowed.
 */
const REFUSED_PARAMETERS = ['crit', 'b64', 'jwk', 'jku', 'x5u', 'x5c'] as const

/** The token in an `Authorization: Bearer …` header; undefined if the header is absent or has any other form. */
export function bearerToken(authorization = ''): string | undefined {
  const [scheme] = SCHEME.exec(authorization) ?? []
  if (scheme === undefined) return undefined
  // One regular expression for the whole header would take five times as long.
  const token = authorization.slice(scheme.length).trimEnd()
  return token === '' || /\s/.test(token) ? undefined : token
}

/**
 * Parses a compact token strictly: only one spelling of a token is accepted. So another spelling cannot bypass a
 * cache or a deny-list, and every parser reads the same claims. The result is not verified yet.
 */
export function parseToken(token: string, algorithms: readonly Algorithm[] = DEFAULT_ALGORITHMS): ParsedToken {
  const [header, payload, signature, more] = token.split('.', 4)
  if (header === undefined || payload === undefined || signature === undefined || more !== undefined) {
    throw new TokenFault('malformed', 'The token does not have three parts')
  }
  decodeSegment(signature)
  return { ...checkHeader(decodeObject(header), algorithms), claims: decodeObject(payload) }
}

function checkHeader(header: Claims, algorithms: readonly Algorithm[]): Pick<ParsedToken, 'alg' | 'kid'> {
  const { alg, kid, typ } = header
  if (!isAlgorithm(alg) || !algorithms.includes(alg)) {
    throw new TokenFault('algorithm', `The algorithm is not ${algorithms.join(' or ')}`)
  }
  for (const name of REFUSED_PARAMETERS) {
    if (Object.hasOwn(header, name)) throw new TokenFault('header', `The header parameter ${name} is not accepted`)
  }
  if (typ !== undefined && !(typeof typ === 'string' && TYPES.has(typ.toLowerCase()))) {
    throw new TokenFault('header', 'The type is neither JWT nor at+jwt')
  }
  if (typeof kid !== 'string' || kid === '' || kid.length > MAX_KID_LENGTH) {
    throw new TokenFault('header', 'The kid is missing or not acceptable')
  }
  return { alg, kid }
}

/**
 * Node's decoder accepts padding, blanks, the other base64 alphabet and unused bits. Encode again and compare to refuse
 * these.
 */
function decodeSegment(segment: string): Buffer {
  const bytes = Buffer.from(segment, 'base64url')
  if (!BASE64URL.test(segment) || bytes.toString('base64url') !== segment) {
    throw new TokenFault('malformed', 'A part of the token is not canonical base64url')
  }
  return bytes
}

function decodeObject(segment: string): Claims {
  const bytes = decodeSegment(segment)
  let value: unknown
  let text: string
  try {
    // A byte order mark is kept, so that JSON.parse refuses it.
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes)
    value = JSON.parse(text)
  } catch (cause) {
    throw new TokenFault('malformed', 'A part of the token is not JSON in UTF-8', { cause })
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new TokenFault('malformed', 'A part of the token is not a JSON object')
  }
  // JSON.parse keeps the last of two equal names, other parsers keep the first. So a repeated name is refused.
  const scan = new JsonScan(text, { maxDepth: text.length })
  scan.advance(text.length)
  if (scan.root.members !== Object.keys(value).length) {
    throw new TokenFault('malformed', 'A part of the token repeats a name')
  }
  return value as Claims
}
