import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { needsChromium, openPage } from '../support/browser.ts'
import { ConsoleWorld, findAxeFaults, signIn } from '../support/console.ts'
import { until } from '../support/until.ts'

const overview = (page: Page) => page.getByRole('heading', { level: 1, name: 'Overview' })
const refreshes = (body: string | null) => body?.includes('grant_type=refresh_token') ?? false

describe('signing in to the console', needsChromium(), () => {
  let world: ConsoleWorld
  before(async () => {
    world = await ConsoleWorld.start()
  })
  after(() => world.close())

  test('sign-in with code and PKCE returns to the requested page and stores no token in the browser', async () => {
    const { page } = await openPage(`${world.url}/console/jobs?status=failed`)
    const asked = page.waitForRequest((request) => request.url().includes('/oauth2/authorize'))
    const redeemed = page.waitForRequest((request) => request.url().endsWith('/oauth2/token'))
    await signIn(page, 'admin')
    const { searchParams } = new URL((await asked).url())
    assert.equal(searchParams.get('code_challenge_method'), 'S256')
    const form = new URLSearchParams((await redeemed).postData() ?? '')
    assert.match(form.get('code_verifier') ?? '', /^[\w-]{43,}$/)

    await page.getByRole('heading', { level: 1, name: 'Jobs' }).waitFor()
    assert.equal(new URL(page.url()).search, '?status=failed')
    const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]))
    assert.doesNotMatch(stored, /eyJ/)
    assert.equal(await page.evaluate(() => document.cookie), '')

    // The session at the provider is still open, so a reload asks no question.
    await page.reload()
    await page.getByRole('heading', { level: 1, name: 'Jobs' }).waitFor()
    await page.context().close()
  })

  test('the console refuses a sign-in that another page began, and says why', async () => {
    const { page } = await openPage(`${world.url}/console/signed-in?code=stolen&state=foreign`)
    await page.getByRole('alert').filter({ hasText: 'was not started here' }).waitFor()
    await page.context().close()
  })

  test('a short-lived token is renewed before it expires, without a question', async () => {
    const { page, complaints } = await openPage(`${world.url}/console`)
    // The provider issues tokens for ten minutes, which the console renews a minute before their end. A slow machine needs less.
    await page.route('**/oauth2/token', (route) => {
      const form = new URLSearchParams(route.request().postData() ?? '')
      form.set('expires_in', '600')
      return route.continue({ postData: form.toString() })
    })
    const credentials = new Set<string>()
    page.on('request', (request) => {
      const { authorization } = request.headers()
      if (authorization) credentials.add(authorization)
    })
    await page.clock.install()
    await signIn(page, 'admin')
    await overview(page).waitFor()
    assert.equal(credentials.size, 1)
    await page.clock.fastForward(550_000)
    await until(() => credentials.size === 2)
    // The jump of the clock may end a request, which the banner then shows. The next one succeeds.
    await until(async () => (await page.getByRole('alert').count()) === 0)
    assert.ok(!complaints.some((complaint) => complaint.startsWith('got ')), complaints.join())
    await page.context().close()
  })

  test('the console renews a refused token and repeats the request; after the session it asks to sign in', async () => {
    const { page } = await world.open('/keys')
    await page.getByRole('heading', { level: 1, name: 'Keys' }).waitFor()
    let refused = 0
    await page.route('**/v1/audit*', (route) => {
      refused += 1
      if (refused > 1) return route.continue()
      const body = JSON.stringify({ error: { code: 'unauthorized', message: 'Invalid or expired token' } })
      return route.fulfill({ status: 401, contentType: 'application/json', body })
    })
    const renewal = page.waitForRequest((request) => refreshes(request.postData()))
    await page.getByRole('link', { name: 'Audit' }).click()
    await renewal
    await until(() => refused > 1)
    await page.getByRole('heading', { level: 1, name: 'Audit' }).waitFor()
    await page.getByText('No changes yet').waitFor()

    await page.route('**/oauth2/token', (route) =>
      route.fulfill({ status: 400, json: { error: 'invalid_grant', error_description: 'refresh_token is unknown' } }),
    )
    await page.route('**/v1/users?*', (route) =>
      route.fulfill({ status: 401, json: { error: { code: 'unauthorized', message: 'Invalid or expired token' } } }),
    )
    await page.getByRole('link', { name: 'People' }).click()
    await page.getByRole('alert').filter({ hasText: 'Your session has ended' }).waitFor()
    await page.unrouteAll()
    await signIn(page, 'admin')
    await page.getByRole('heading', { level: 1, name: 'People' }).waitFor()
    await page.context().close()
  })

  test('signing out ends the session at the provider too', async () => {
    const { page, complaints } = await world.open('/')
    await overview(page).waitFor()
    await page.getByRole('button', { name: 'Sign out' }).click()
    await page.getByRole('button', { name: 'Sign in as admin' }).waitFor()
    await page.reload()
    await page.getByRole('button', { name: 'Sign in as another user' }).click()
    await page.getByRole('link', { name: 'Administrator' }).waitFor()
    assert.deepEqual(complaints, [])
    await page.context().close()
  })

  test('a user who is not an operator sees the reason, and can sign in as another user', async () => {
    const { page } = await openPage(`${world.url}/console`)
    await signIn(page, 'ada')
    await page.getByRole('alert').filter({ hasText: 'ada@example.com is not an operator' }).waitFor()
    assert.deepEqual(await findAxeFaults(page), [])
    await page.getByRole('button', { name: 'Sign ada@example.com out' }).click()
    await page.getByRole('alert').waitFor({ state: 'detached' })
    await signIn(page, 'margaret')
    await overview(page).waitFor()
    await page.getByText('read only').waitFor()
    await page.context().close()
  })
})

describe('a console without a client at the identity provider', needsChromium(), () => {
  test('a console without a client at the identity provider takes a pasted key or token and keeps it in memory only', async () => {
    const world = await ConsoleWorld.start({ CONSOLE_CLIENT_ID: '' })
    const { key } = await world.request<{ key: string }>('POST', '/v1/service-accounts', {
      name: 'Console',
      scopes: ['admin:*'],
    })
    const { page } = await openPage(`${world.url}/console`)
    const paste = async (credential: string) => {
      await page.getByLabel('Access token or service key').fill(credential)
      await page.getByRole('button', { name: 'Sign in', exact: true }).click()
    }
    await paste('pak_wrong')
    await page.getByRole('alert').waitFor()
    assert.deepEqual(await findAxeFaults(page), [])
    for (const credential of [key, await world.tokenOf('admin')]) {
      await paste(credential)
      await overview(page).waitFor()
      const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]))
      assert.ok(!stored.includes(credential))
      await page.getByRole('button', { name: 'Sign out' }).click()
    }
    await page.getByLabel('Access token or service key').waitFor()
    await page.context().close()
    await world.close()
  })
})
