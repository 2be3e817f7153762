const HOST = /^(?:issuer-)?cognito-idp\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?$/

/** Whether an issuer is a Cognito user pool: `cognito-idp.{region}` or, of newer pools, `issuer-cognito-idp.{region}`. */
export function isCognitoIssuer(issuerUrl: string): boolean {
  const { protocol, hostname = '' } = URL.parse(issuerUrl) ?? {}
  return protocol === 'https:' && HOST.test(hostname)
}
