import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import fastify from 'fastify'
import { ApiError, UnavailableError } from '../../src/core/errors.ts'
import type { App } from '../../src/http/app-instance.ts'
import { consolePages } from '../../src/ops/pages/console-pages.ts'
import { findSignIn } from '../../src/ops/pages/console-sign-in.ts'

const SETTINGS = {
  issuerUrl: 'https://issuer.example.com/pool',
  clientId: '4k2n',
  scope: 'openid',
  audience: null,
  dev: null,
}

const AUTH_URL = 'https://login.example.com'
const SIGN_IN = {
  server: {
    issuer: SETTINGS.issuerUrl,
    authorization_endpoint: `${AUTH_URL}/oauth2/authorize`,
    token_endpoint: `${AUTH_URL}/oauth2/token`,
  },
  signOut: { url: `${AUTH_URL}/logout`, returnParameter: 'logout_uri' as const },
}

describe('the pages of the console', () => {
  let folder: string
  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'console-'))
    mkdirSync(join(folder, 'assets'))
    writeFileSync(join(folder, 'index.html'), '<!doctype html><title>Console</title>')
    writeFileSync(join(folder, 'assets', 'index-1a2b.js'), 'start()')
    writeFileSync(join(folder, 'assets', 'notes.txt'), 'not for browsers')
    writeFileSync(join(folder, 'secret.js'), 'secret')
  })
  after(() => rmSync(folder, { recursive: true }))

  function serve(
    from: string,
    { clientId = SETTINGS.clientId as string | null, findAddresses = async () => SIGN_IN } = {},
  ) {
    const app: App = fastify()
    app.setErrorHandler((error, _request, reply) => reply.code(error instanceof ApiError ? error.status : 500).send())
    consolePages(app, { folder: from, settings: { ...SETTINGS, clientId }, findAddresses })
    return app
  }

  test('every path below /console is the page, under a policy that allows the sign-in and nothing foreign', async () => {
    const app = serve(folder)
    for (const path of ['/console', '/console/', '/console/jobs', '/console/jobs/job_1?status=failed']) {
      const { statusCode, headers } = await app.inject(path)
      assert.equal(statusCode, 200, path)
      const policy = String(headers['content-security-policy'])
      assert.match(policy, /default-src 'none'/)
      assert.match(policy, /script-src 'self';/)
      assert.match(policy, /connect-src 'self' https:\/\/issuer\.example\.com https:\/\/login\.example\.com;/)
      assert.equal(headers['cache-control'], 'no-cache')
    }
  })

  test('assets are kept by caches for good, and no other file is served', async () => {
    const app = serve(folder)
    const { statusCode, headers } = await app.inject('/console/assets/index-1a2b.js')
    assert.deepEqual(
      [statusCode, headers['content-type'], headers['cache-control']],
      [200, 'text/javascript; charset=utf-8', 'public, max-age=31536000, immutable'],
    )
    for (const name of ['none.js', 'notes.txt', '..%2fsecret.js', '%2e%2e%2fsecret.js', '__proto__']) {
      assert.equal((await app.inject(`/console/assets/${name}`)).statusCode, 404, name)
    }
  })

  test('the settings name the client and the sign-in address', async () => {
    const answer = await serve(folder).inject('/console/settings.json')
    assert.deepEqual(answer.json(), { ...SETTINGS, signIn: SIGN_IN })
  })

  test('while the provider cannot be reached, the page is shown and the settings say why', async () => {
    const findAddresses = () => Promise.reject(new UnavailableError('The identity provider is unavailable'))
    const app = serve(folder, { findAddresses })
    assert.equal((await app.inject('/console')).statusCode, 200)
    assert.equal((await app.inject('/console/settings.json')).statusCode, 503)
  })

  test('without a client, the provider is not asked', async () => {
    const findAddresses = () => Promise.reject(new Error('asked'))
    const app = serve(folder, { clientId: null, findAddresses })
    const { headers } = await app.inject('/console')
    assert.match(String(headers['content-security-policy']), /connect-src 'self' https:\/\/issuer\.example\.com;/)
    assert.equal((await app.inject('/console/settings.json')).json().signIn, null)
  })

  const issuer = 'https://login.example.com/realm/'
  const ENDPOINTS = {
    authorization_endpoint: 'https://login.example.com/auth',
    token_endpoint: 'https://tokens.example.com/token',
  }
  const pool = 'https://cognito-idp.eu-central-1.amazonaws.com/eu-central-1_AbC'
  const domain = 'https://acme.auth.eu-central-1.amazoncognito.com'
  const OF_POOL = { authorization_endpoint: `${domain}/oauth2/authorize`, token_endpoint: `${domain}/oauth2/token` }
  const CASES: { name: string; issuerUrl: string; metadata: object; server: object; signOut: object | null }[] = [
    {
      name: 'the discovery document names the addresses',
      issuerUrl: issuer,
      metadata: {
        ...ENDPOINTS,
        jwks_uri: 'https://x.example',
        end_session_endpoint: 'https://login.example.com/end',
        id_token_signing_alg_values_supported: ['ES256'],
      },
      server: { issuer, ...ENDPOINTS, id_token_signing_alg_values_supported: ['ES256'] },
      signOut: { url: 'https://login.example.com/end', returnParameter: 'post_logout_redirect_uri' },
    },
    {
      name: 'a provider without an end-session endpoint has no sign-out page',
      issuerUrl: issuer,
      metadata: ENDPOINTS,
      server: { issuer, ...ENDPOINTS },
      signOut: null,
    },
    {
      name: 'a Cognito pool signs out at its own page',
      issuerUrl: pool,
      metadata: OF_POOL,
      server: { issuer: pool, ...OF_POOL },
      signOut: { url: `${domain}/logout`, returnParameter: 'logout_uri' },
    },
    {
      name: 'a provider without a discovery document has the paths of a pool',
      issuerUrl: issuer,
      metadata: {},
      server: { issuer, authorization_endpoint: `${issuer}oauth2/authorize`, token_endpoint: `${issuer}oauth2/token` },
      signOut: { url: `${issuer}logout`, returnParameter: 'logout_uri' },
    },
  ]
  for (const { name, issuerUrl, metadata, ...expected } of CASES) {
    test(`the sign-in: ${name}`, async () => {
      const discovery = { get: async () => metadata }
      assert.deepEqual(await findSignIn({ issuerUrl, authUrl: null, discovery }), expected)
    })
  }

  test('an address that is set comes before the discovery document', async () => {
    const discovery = { get: () => Promise.reject(new Error('asked')) }
    assert.deepEqual(await findSignIn({ issuerUrl: SETTINGS.issuerUrl, authUrl: AUTH_URL, discovery }), SIGN_IN)
  })

  test('a console that is not built says how to build it', async () => {
    const { statusCode, body } = await serve(join(folder, 'missing')).inject('/console')
    assert.equal(statusCode, 200)
    assert.match(body, /npm run build/)
  })
})
