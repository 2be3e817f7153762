import type { IdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { TokenForge } from './token-forge.ts'

/** The opposite of the hostile tokens: unusual but valid. A verifier that refuses one is wrong. */
export function goodTokens(idp: IdentityProvider): { name: string; token: string }[] {
  const forge = new TokenForge(idp)
  const having = (claims: Record<string, unknown>) => forge.mint({ claims })
  const by = (header: Record<string, unknown>) => forge.mint({ header })
  const text = JSON.stringify(forge.claims)
  const cases: [name: string, token: string][] = [
    ['a plain token', forge.mint()],
    ['a token written by hand', forge.seal(forge.header, forge.payload)],
    ['a token of exactly the length allowed', forge.ofLength('within', 8192)],
    ['no email', forge.mint({ email: null })],
    ['an email that is null', having({ email: null })],
    ['no scopes', forge.mint({ scopes: [] })],
    ['an empty string of scopes', having({ 'custom:scopes': '' })],
    ['blanks around the scopes', having({ 'custom:scopes': '  read:projects   write:projects ' })],
    ['nbf in the past', having({ nbf: forge.nowSeconds - 1 })],
    ['nbf at this very second', having({ nbf: forge.nowSeconds })],
    ['no iat', having({ iat: undefined })],
    ['an exp with a fraction', having({ exp: forge.nowSeconds + 60.5 })],
    ['an exp beyond all dates', having({ exp: 1e300 })],
    ['any audience', having({ aud: 'another-audience' })],
    ['an audience as a list', having({ aud: ['a', 'b'] })],
    ['a token use and client that are not checked', having({ token_use: 'id', client_id: 'any' })],
    ['a sub of 255 characters', having({ sub: 's'.repeat(255) })],
    ['a sub that only begins like a service account', having({ sub: 'svc_backend' })],
    ['a sub beyond ASCII', having({ sub: 'Åda 🧮' })],
    [
      'a claim of nested objects that repeat a name on another level',
      having({ sub2: { sub: 1, nested: [{ sub: 2 }] } }),
    ],
    ['a claim full of signs of JSON', having({ 'a:b': '{"sub":"\\\\",:[}' })],
    ['a claim with a quote before a colon', having({ x: 'a":b' })],
    ['a claim named __proto__', forge.seal(forge.header, TokenForge.encodeText(text.replace('{', '{"__proto__":{},')))],
    ['white space in the JSON', forge.seal(forge.header, TokenForge.encodeText(JSON.stringify(forge.claims, null, 2)))],
    ['typ JWT', by({ typ: 'JWT' })],
    ['typ jwt', by({ typ: 'jwt' })],
    ['typ at+jwt', by({ typ: 'at+jwt' })],
    ['typ AT+JWT', by({ typ: 'AT+JWT' })],
    ['typ application/at+jwt', by({ typ: 'application/at+jwt' })],
    ['a thumbprint', by({ x5t: 'AAAA' })],
    ['an unknown header parameter', by({ 'urn:example': [1] })],
  ]
  return cases.map(([name, token]) => ({ name, token }))
}
