import { generateKeyPairSync } from 'node:crypto'
import Provider from 'oidc-provider'

const [, , port, serviceUrl, api] = process.argv
const issuer = `http://127.0.0.1:${port}`

/** The roles of users and clients, in a claim of the provider's own. */
const ROLES = { olivia: ['boss'], ursula: ['visitor'], machine: ['project-reader', 'unknown-role'] }

const jwk = (pair, more) => ({ ...pair.privateKey.export({ format: 'jwk' }), use: 'sig', ...more })

const provider = new Provider(issuer, {
  jwks: {
    keys: [
      jwk(generateKeyPairSync('rsa', { modulusLength: 2048 }), { kid: 'rsa' }),
      jwk(generateKeyPairSync('ec', { namedCurve: 'P-256' }), { kid: 'ec' }),
      jwk(generateKeyPairSync('ed25519'), { kid: 'ed' }),
    ],
  },
  clients: [
    {
      client_id: 'console',
      token_endpoint_auth_method: 'none',
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      redirect_uris: [`${serviceUrl}/console/signed-in`],
      post_logout_redirect_uris: [`${serviceUrl}/console`],
      id_token_signed_response_alg: 'ES256',
    },
    {
      client_id: 'machine',
      client_secret: 'machine-secret',
      grant_types: ['client_credentials'],
      response_types: [],
      redirect_uris: [],
    },
  ],
  findAccount: (_ctx, sub) => ({ accountId: sub, claims: () => ({ sub }) }),
  extraTokenClaims: (_ctx, token) => ({ roles: ROLES[token.accountId ?? token.clientId] }),
  // A browser of the console may call the token endpoint.
  clientBasedCORS: (_ctx, origin, client) => client.clientId === 'console' && origin === serviceUrl,
  issueRefreshToken: (_ctx, client) => client.grantTypeAllowed('refresh_token'),
  ttl: { AccessToken: 600, ClientCredentials: 600, Grant: 86_400, IdToken: 86_400, Interaction: 600, Session: 86_400 },
  cookies: { keys: ['for the tests alone'] },
  features: {
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => `${api}ES256`,
      useGrantedResource: () => true,
      getResourceServerInfo: (_ctx, resource) => ({
        audience: resource,
        scope: 'projects.read projects.write',
        accessTokenFormat: 'jwt',
        jwt: { sign: { alg: new URL(resource).pathname.slice(1) } },
      }),
    },
  },
})

provider.listen(Number(port), '127.0.0.1', () => process.stdout.write('listening\n'))
process.on('SIGTERM', () => process.exit(0))
