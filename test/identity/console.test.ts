import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { needsChromium, openPage } from '../support/browser.ts'
import { API, type OidcProvider, startOidcProvider } from '../support/oidc-provider.ts'
import { type Served, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'
import { until } from '../support/until.ts'

describe('signing in to the console at a provider that others wrote', needsChromium(), () => {
  let provider: OidcProvider
  let service: Served
  before(async () => {
    const port = String(await freePort())
    provider = await startOidcProvider({ serviceUrl: `http://127.0.0.1:${port}` })
    service = await startServe({
      settings: {
        PORT: port,
        ISSUER_URL: provider.issuer,
        CONSOLE_CLIENT_ID: 'console',
        TOKEN_ALGORITHMS: 'ES256',
        TOKEN_AUDIENCE: `${API}ES256`,
        SCOPES_CLAIM: 'roles',
        SCOPES_MAP: 'boss=admin:*',
      },
    })
  })
  after(() => provider.stop())

  const overview = (page: Page) => page.getByRole('heading', { level: 1, name: 'Overview' })
  const login = (page: Page) => page.getByPlaceholder('Enter any login')

  /** Signs in on the provider's own pages. */
  async function signIn(page: Page, user: string): Promise<void> {
    await page.getByRole('button', { name: 'Sign in', exact: true }).click()
    await login(page).fill(user)
    await page.getByPlaceholder('and password').fill('any')
    await page.getByRole('button', { name: 'Sign-in' }).click()
    await page.getByRole('button', { name: 'Continue' }).click()
  }

  test('an operator signs in, stays signed in past the end of the token, and signs out at the provider', async () => {
    const { page, complaints } = await openPage(`${service.url}/console`)
    const answers: Record<string, string>[] = []
    page.on('response', async (response) => {
      if (response.url() === `${provider.issuer}/token` && response.request().method() === 'POST') {
        answers.push((await response.json()) as Record<string, string>)
      }
    })
    const used = new Set<string>()
    page.on('request', (request) => used.add(request.headers().authorization ?? ''))
    const isUsed = (index: number) => used.has(`Bearer ${answers[index]?.access_token}`)
    const asked = page.waitForRequest((request) => request.url().startsWith(`${provider.issuer}/auth?`))
    await page.clock.install()
    await signIn(page, 'olivia')
    await overview(page).waitFor()
    const { searchParams } = new URL((await asked).url())
    assert.deepEqual(
      ['scope', 'audience', 'code_challenge_method'].map((name) => searchParams.get(name)),
      ['openid', `${API}ES256`, 'S256'],
    )

    await until(() => answers.length > 0)
    const redeemed = answers[0] ?? {}
    assert.equal((await service.request('GET', '/v1/audit', { token: redeemed.access_token ?? '' })).status, 200)
    const { status } = await service.request('GET', '/v1/audit', { token: redeemed.id_token ?? '' })
    assert.equal(status, 401, 'an ID token is for the client, not for the API')

    await page.clock.fastForward(550_000)
    await until(() => isUsed(1))
    assert.notEqual(answers[1]?.access_token, redeemed.access_token)
    assert.notEqual(answers[1]?.refresh_token, redeemed.refresh_token)
    // The provider rotates refresh tokens: a second renewal with the first one would end the session.
    await page.clock.fastForward(550_000)
    await until(() => isUsed(2))
    // Only the banner, which says what this service lacks: a runtime, a webhook secret, push credentials. The jump of the
    // clock ends its request, and the next one succeeds.
    await until(async () => (await page.getByRole('alert').filter({ hasNotText: 'not configured' }).count()) === 0)

    const ended = page.waitForRequest((request) => request.url().startsWith(`${provider.issuer}/session/end?`))
    await page.getByRole('button', { name: 'Sign out' }).click()
    assert.equal(new URL((await ended).url()).searchParams.get('id_token_hint'), answers[2]?.id_token)
    await page.getByRole('button', { name: 'Yes, sign me out' }).click()
    await page.getByRole('button', { name: 'Sign in', exact: true }).waitFor()
    assert.equal(page.url(), `${service.url}/console`)
    await page.getByRole('button', { name: 'Sign in', exact: true }).click()
    await login(page).waitFor()
    // The provider's own pages load a font from elsewhere.
    const ours = complaints.filter((complaint) => !/fonts\.googleapis\.com|ERR_FAILED/.test(complaint))
    assert.deepEqual(ours, [])
    await page.context().close()
  })

  test('at a provider that cannot end its session, signing out says so', async () => {
    const { page } = await openPage('about:blank')
    await page.route('**/console/settings.json', async (route) => {
      const response = await route.fetch()
      const settings = (await response.json()) as { signIn: object }
      await route.fulfill({ response, json: { ...settings, signIn: { ...settings.signIn, signOut: null } } })
    })
    await page.goto(`${service.url}/console`)
    await signIn(page, 'olivia')
    await page.getByRole('button', { name: 'Sign out' }).click()
    await page.getByRole('alert').filter({ hasText: 'may still have an open session' }).waitFor()
    await page.context().close()
  })

  test('while the provider cannot be reached, the page says so', async () => {
    const ISSUER_URL = `http://127.0.0.1:${await freePort()}`
    const { url } = await startServe({ settings: { ISSUER_URL, CONSOLE_CLIENT_ID: 'console' } })
    const { page } = await openPage(`${url}/console`)
    await page.getByText('The identity provider is unavailable').waitFor()
    await page.context().close()
  })

  test('a user whose role grants nothing is refused, and can sign out', async () => {
    const { page } = await openPage(`${service.url}/console`)
    await signIn(page, 'ursula')
    await page.getByRole('alert').filter({ hasText: 'ursula is not an operator' }).waitFor()
    await page.getByRole('button', { name: 'Sign ursula out' }).click()
    await page.getByRole('button', { name: 'Yes, sign me out' }).waitFor()
    await page.context().close()
  })
})
