import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { ALGORITHMS } from '../../src/auth/issuer/algorithms.ts'
import { runCommand } from '../support/command.ts'
import { API, type OidcProvider, startOidcProvider } from '../support/oidc-provider.ts'
import { freshFolder } from '../support/program.ts'
import { type Served, settingsWith, startServe } from '../support/served.ts'

const NAMES = Object.keys(ALGORITHMS)
const ALL = {
  TOKEN_ALGORITHMS: NAMES.join(','),
  TOKEN_AUDIENCE: NAMES.map((name) => `${API}${name}`).join(','),
  SCOPES_CLAIM: 'roles',
  SCOPES_MAP: 'project-reader=read:projects,boss=admin:*',
}

const partOf = (token: string, part: 0 | 1): Record<string, unknown> =>
  JSON.parse(Buffer.from(token.split('.')[part] ?? '', 'base64url').toString())

describe('tokens of a provider that others wrote', () => {
  let provider: OidcProvider
  before(async () => {
    provider = await startOidcProvider({ serviceUrl: 'http://127.0.0.1:1' })
  })
  after(() => provider.stop())

  const serve = (settings: Record<string, string>): Promise<Served> =>
    startServe({ settings: { ISSUER_URL: provider.issuer, ...settings } })

  test('the gate accepts every algorithm, takes scopes from a list of roles, and refuses another audience', async () => {
    const api = await serve(ALL)
    const get = (path: string, token: string) => api.request<{ sub?: string }>('GET', path, { token })
    for (const name of NAMES) {
      const token = await provider.machineToken({ resource: `${API}${name}` })
      const { alg, typ } = partOf(token, 0)
      assert.deepEqual([alg, typ], [name, 'at+jwt'])
      const me = await get('/v1/users/me', token)
      assert.deepEqual([me.status, me.body.sub], [200, 'machine'])
      assert.equal((await get('/v1/projects', token)).status, 200)
      assert.equal((await get('/v1/users', token)).status, 403, 'an unknown role grants nothing')
    }
    const other = await provider.machineToken({ resource: 'https://other.example.com/ES256' })
    assert.equal((await get('/v1/projects', other)).status, 401)
  })

  test('by default the gate accepts RS256 alone, and reads neither the roles nor the scope of the provider', async () => {
    const api = await serve({})
    const get = (path: string, token: string) => api.request('GET', path, { token })
    await api.program.untilSaid(/"tokens\.audience_not_checked"/)
    for (const name of NAMES) {
      const token = await provider.machineToken({ resource: `${API}${name}`, scope: 'projects.read' })
      assert.equal((await get('/v1/users/me', token)).status, name === 'RS256' ? 200 : 401, name)
      assert.equal((await get('/v1/projects', token)).status, name === 'RS256' ? 403 : 401, name)
    }
  })

  test('scopes may come from the claim scope, with the names that the provider has for them', async () => {
    const map = 'projects.read=read:projects,projects.write=write:projects'
    const api = await serve({ TOKEN_AUDIENCE: `${API}RS256`, SCOPES_CLAIM: 'scope', SCOPES_MAP: map })
    const reader = await provider.machineToken({ resource: `${API}RS256`, scope: 'projects.read' })
    const writer = await provider.machineToken({ resource: `${API}RS256`, scope: 'projects.read projects.write' })
    const create = (token: string) => api.request('POST', '/v1/projects', { token, body: { name: 'Engine' } })
    assert.equal((await api.request('GET', '/v1/projects', { token: reader })).status, 200)
    assert.equal((await create(reader)).status, 403)
    assert.equal((await create(writer)).status, 201)
  })

  test('doctor finds the keys by the discovery document, and says what an algorithm lacks', async () => {
    const env = await settingsWith({ ISSUER_URL: provider.issuer, DATA_DIR: freshFolder(), ...ALL })
    const sound = await runCommand(['doctor'], env)
    assert.match(sound.output, new RegExp(`^ok +issuer +3 usable keys at ${provider.issuer}/jwks$`, 'm'))
    const warned = await runCommand(['doctor'], { ...env, TOKEN_AUDIENCE: '', TOKEN_ALGORITHMS: 'EdDSA' })
    assert.match(warned.output, /^ok +issuer +1 usable keys at .*no TOKEN_AUDIENCE.*\n +→ Set TOKEN_AUDIENCE/m)
    const wrong = await runCommand(['doctor'], { ...env, ISSUER_URL: `${provider.issuer}/` })
    assert.match(wrong.output, /^FAIL +issuer .*names the issuer "http:[^"]+[^/]"\n +→ Check ISSUER/m)
  })
})
