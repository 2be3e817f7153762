import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import type { Route } from 'playwright-core'
import { needsChromium, openPage } from '../support/browser.ts'
import { HttpClient } from '../support/http-client.ts'
import { Program } from '../support/program.ts'
import { freePort } from '../support/server-process.ts'
import { until } from '../support/until.ts'

/** What dev prints as `  Name   http://…`. */
function addressesIn(output: string): Map<string, string> {
  return new Map(
    Array.from(output.matchAll(/^ +([A-Z]\w+(?: \w+)?) +(http\S+)/gm), ([, name = '', url = '']) => [name, url]),
  )
}

describe('in a real browser that reaches only this machine', needsChromium(), () => {
  let addresses: Map<string, string>
  const addressOf = (name: string) => {
    const url = addresses.get(name)
    assert.ok(url, `dev prints no address of ${name}`)
    return url
  }
  before(async () => {
    const dev = new Program(['dev'], { settings: { PORT: String(await freePort()) } })
    await dev.untilSaid(/Ctrl-C/)
    addresses = addressesIn(dev.output)
  })

  test('the reference shows every group of operations, and an operation with what it needs', async () => {
    const { page, complaints } = await openPage(addressOf('Reference'))
    await page.getByText('List projects').first().waitFor()
    const description = await fetch(`${addressOf('API')}/openapi.json`)
    const { tags } = (await description.json()) as { tags: { name: string }[] }
    assert.ok(tags.length > 3)
    for (const { name } of tags) await page.getByRole('link', { name, exact: true }).first().waitFor()

    await page.getByText('Create a project').first().click()
    await page.getByRole('heading', { name: 'Create a project' }).waitFor()
    await page.getByText('write:projects').first().waitFor()
    await page.getByText('Idempotency-Key', { exact: false }).first().waitFor()
    assert.deepEqual(complaints, [])
  })

  test('the start page leads to the reference with a token filled in', async () => {
    const { page, complaints } = await openPage(addressOf('Start here'))
    await page.getByRole('link', { name: 'API reference' }).click()
    const filled = page.locator('input').filter({ visible: true })
    await until(async () => {
      const values = await Promise.all((await filled.all()).map((input) => input.inputValue()))
      return values.some((value) => value.startsWith('eyJ'))
    })
    assert.equal(new URL(page.url()).hash, '')
    assert.deepEqual(complaints, [])
  })

  test('the identity provider’s page issues tokens by a click, with the chosen user and scopes', async () => {
    const { page, complaints } = await openPage(addressOf('Tokens'))
    const api = new HttpClient(addressOf('API'))
    const shownToken = async () => (await page.locator('#token').textContent()) ?? ''
    const issue = async (act: () => Promise<void>) => {
      const before = await shownToken()
      await act()
      await until(async () => !['', before].includes(await shownToken()))
      return shownToken()
    }
    const statuses = async (token: string) => {
      const paths = ['/v1/projects', '/v1/users', '/v1/service-accounts']
      const answers = await Promise.all(paths.map((path) => api.request('GET', path, { token })))
      return answers.map(({ status }) => status)
    }

    // The page issues the first user's token when it opens.
    await until(async () => (await shownToken()) !== '')
    const grace = await issue(() => page.getByText('Grace Hopper').click())
    assert.deepEqual(await statuses(grace), [200, 200, 403])
    const fewer = await issue(async () => {
      await page.getByRole('checkbox', { name: 'read:users' }).uncheck()
      await page.getByRole('button', { name: 'Issue token' }).click()
    })
    assert.deepEqual(await statuses(fewer), [200, 403, 403])
    const root = await issue(() => page.getByText('Administrator').click())
    assert.deepEqual(await statuses(root), [200, 200, 200])
    assert.ok((await page.locator('#curl').textContent())?.includes(root))
    assert.deepEqual(complaints, [])
    api.close()
  })

  test('a late answer does not replace the token of the user who was chosen after it', async () => {
    const { page } = await openPage(addressOf('Tokens'))
    const shownToken = async () => (await page.locator('#token').textContent()) ?? ''
    await until(async () => (await shownToken()) !== '')
    const first = await shownToken()

    const late = Promise.withResolvers<Route>()
    await page.route(/token$/, (route) => late.resolve(route), { times: 1 })
    await page.getByText('Grace Hopper').click()
    const heldBack = await late.promise
    await page.getByText('Administrator').click()
    await until(async () => (await shownToken()) !== first)
    const chosen = await shownToken()

    const answered = page.waitForResponse(/token$/)
    await heldBack.continue()
    await (await answered).finished()
    // The page has processed the late answer before the answer to this later request.
    await page.evaluate(async () => (await fetch('/')).text())
    assert.equal(await shownToken(), chosen)
  })

  test('every other page that dev names opens without an error', async () => {
    for (const [name, url] of addresses) {
      if (['API', 'Reference', 'Tokens'].includes(name)) continue
      const { headers, status } = await fetch(url)
      if (status !== 200 || !headers.get('content-type')?.startsWith('text/html')) continue
      const { page, complaints } = await openPage(url)
      await page.getByRole('heading').first().waitFor()
      assert.deepEqual(complaints, [], name)
    }
  })
})
