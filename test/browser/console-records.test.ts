import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { needsChromium } from '../support/browser.ts'
import { ADA, ConsoleWorld, findAxeFaults } from '../support/console.ts'
import { until } from '../support/until.ts'

const said = (page: Page, text: string | RegExp) => page.locator('.toast').filter({ hasText: text }).waitFor()
const dialog = (page: Page) => page.getByRole('dialog')

describe('callbacks, people, keys and settings in the console', needsChromium(), () => {
  let world: ConsoleWorld
  before(async () => {
    world = await ConsoleWorld.start()
    await world.request('POST', '/v1/devices', { token: 'phone-of-ada', platform: 'android' }, 'ada')
  })
  after(() => world.close())

  test('the console shows the body of a callback, and replays one callback or many', async () => {
    await world.startJob('report', { status: 'completed', input: { title: 'Sales', n: 3 } })
    const { page, complaints } = await world.open('/callbacks')
    const row = page.getByRole('row').filter({ hasText: 'success' }).first()
    await row.getByRole('button', { name: /Show the body/ }).click()
    await dialog(page).getByText('"success"').waitFor()
    await page.keyboard.press('Escape')
    await row.getByRole('button', { name: /Replay/ }).click()
    await said(page, 'The callback was replayed')
    await page.getByLabel('Type').selectOption('report')
    await page.getByRole('button', { name: 'Replay all that fit these filters' }).click()
    await page.getByRole('dialog', { name: /Replay: \d+ callbacks?$/ }).waitFor()
    await dialog(page).getByRole('button', { name: 'Replay' }).click()
    await page.getByText(/replay: (\d+) of \1 \(done\)/).waitFor()
    await page.getByLabel('Outcome').selectOption('stale')
    await page.getByText('No callback fits these filters').waitFor()
    assert.equal(new URL(page.url()).searchParams.get('outcome'), 'stale')
    assert.deepEqual(complaints, [])
  })

  test('refused callbacks are on the page of callbacks, with their reason and job', async () => {
    const id = await world.startJob('report', { status: 'completed', input: { title: 'Sales' } })
    const url = `${world.url}/webhooks/jobs/report?token=wrong&job_id=${id}`
    for (let n = 0; n < 3; n++) assert.equal((await fetch(url, { method: 'POST', body: '{}' })).status, 401)
    const list = () => world.request<{ data: unknown[] }>('GET', '/v1/refused-callbacks')
    await until(async () => (await list()).data.length > 0)
    const { page, complaints } = await world.open('/callbacks')
    // They are counted by the minute, so there may be two rows.
    const rows = page.getByRole('region', { name: 'Refused callbacks' }).getByRole('row').filter({ hasText: id })
    const row = rows.first()
    await row.getByText('wrong token').waitFor()
    await row.getByRole('link', { name: id }).click()
    await page.waitForURL((address) => address.pathname.endsWith(id))
    assert.deepEqual(complaints, [])
  })

  test('a key is created, shown once, rotated and revoked', async () => {
    const { page, complaints } = await world.open('/keys')
    await page.getByText('There is no service account yet').waitFor()
    await page.getByRole('button', { name: 'New service account' }).click()
    await dialog(page).getByLabel('Name').fill('Importer')
    await dialog(page).getByLabel('read:projects').check()
    await dialog(page).getByRole('button', { name: 'Create' }).click()
    const shown = async () => {
      const code = page.getByRole('dialog', { name: 'The new key' }).locator('code')
      await code.waitFor()
      const key = (await code.textContent()) ?? ''
      await dialog(page).getByRole('button', { name: 'Close' }).click()
      await dialog(page).waitFor({ state: 'detached' })
      assert.equal(await page.getByText(key).count(), 0)
      return key
    }
    const first = await shown()
    await page.getByRole('button', { name: 'Rotate the key of Importer' }).click()
    await dialog(page).getByRole('button', { name: 'Rotate' }).click()
    const second = await shown()
    assert.notEqual(first, second)
    const isOpen = async (key: string) =>
      (await fetch(`${world.url}/v1/projects`, { headers: { 'x-api-key': key } })).status === 200
    assert.ok(await isOpen(second))

    await page.getByRole('button', { name: 'Revoke Importer' }).click()
    await dialog(page).getByRole('button', { name: 'Revoke' }).click()
    await said(page, 'The key was revoked')
    await page.getByRole('row').filter({ hasText: 'Importer' }).getByText('revoked').waitFor()
    await until(async () => !(await isOpen(second)))
    await page.getByRole('link', { name: 'Audit' }).click()
    for (const action of ['service_account.created', 'service_account.revoked']) {
      await page.getByText(action).waitFor()
    }
    await page
      .getByRole('button', { name: /Show aud_/ })
      .first()
      .click()
    await dialog(page).getByText('After').waitFor()
    assert.deepEqual(complaints, [])
  })

  test('a key whose answer is lost is made once, and the operator reads how to get another', async () => {
    const { page } = await world.open('/keys')
    let posts = 0
    await page.route('**/v1/service-accounts', async (route) => {
      if (route.request().method() !== 'POST' || ++posts > 1) return route.continue()
      await route.fetch()
      return route.abort('connectionreset')
    })
    await page.getByRole('button', { name: 'New service account' }).click()
    await dialog(page).getByLabel('Name').fill('Lost and found')
    await dialog(page).getByRole('button', { name: 'Create' }).click()
    await said(page, 'The answer with the key was lost. Rotate the key to get a new one.')
    // Rejects if there are two.
    await page.getByRole('button', { name: 'Rotate the key of Lost and found' }).waitFor()
  })

  test('a person is found, exported, blocked and unblocked', async () => {
    const { page, complaints } = await world.open('/people')
    await page.getByRole('link', { name: 'ada@example.com' }).click()
    await page.getByRole('heading', { level: 1, name: 'ada@example.com' }).waitFor()
    await page.getByText('android').waitFor()

    const downloading = page.waitForEvent('download')
    await page.getByRole('button', { name: 'Export' }).click()
    const download = await downloading
    assert.equal(download.suggestedFilename(), `${ADA}.json`)
    assert.match(readFileSync(await download.path(), 'utf8'), /ada@example\.com/)

    const statusOfAda = async () =>
      (await fetch(`${world.url}/v1/projects`, { headers: { authorization: `Bearer ${await world.tokenOf('ada')}` } }))
        .status
    await page.getByRole('button', { name: 'Block' }).click()
    await dialog(page).getByRole('button', { name: 'Block' }).click()
    await said(page, 'The user is blocked')
    await page.getByRole('region', { name: 'Profile' }).getByText('blocked').waitFor()
    await until(async () => (await statusOfAda()) === 403)
    await page.getByRole('button', { name: 'Unblock' }).click()
    await dialog(page).getByRole('button', { name: 'Unblock' }).click()
    await said(page, 'The user may sign in again')
    await until(async () => (await statusOfAda()) === 200)
    assert.deepEqual(complaints, [])
  })

  test('the limits of a person are shown and set; an empty field is the service’s default', async () => {
    const { sub } = await world.request<{ sub: string }>('GET', '/v1/users/me', undefined, 'margaret')
    const { page, complaints } = await world.open(`/people/${sub}`)
    const limits = async () => (await world.request<{ own_limits: object }>('GET', `/v1/users/${sub}/usage`)).own_limits
    await page.getByRole('button', { name: 'Limits' }).click()
    await dialog(page).getByLabel('Runs').fill('2500')
    await dialog(page).getByLabel('Tokens').fill('-1')
    await dialog(page).getByRole('button', { name: 'Set limits' }).click()
    assert.deepEqual(await limits(), { runs: null, tokens: null }, 'the browser refuses a negative number')
    await dialog(page).getByLabel('Tokens').fill('1000000')
    await dialog(page).getByRole('button', { name: 'Set limits' }).click()
    await said(page, 'The limits are set')
    await page.getByRole('region', { name: 'Profile' }).getByText('0 of 1,000,000').waitFor()
    assert.deepEqual(await limits(), { runs: 2_500, tokens: 1_000_000 })
    await page.getByRole('button', { name: 'Limits' }).click()
    assert.equal(await dialog(page).getByLabel('Runs').inputValue(), '2500')
    await dialog(page).getByLabel('Runs').fill('')
    await dialog(page).getByRole('button', { name: 'Set limits' }).click()
    await page.getByRole('region', { name: 'Profile' }).getByText('of 2,500').waitFor({ state: 'detached' })
    assert.deepEqual(await limits(), { runs: null, tokens: 1_000_000 })
    assert.deepEqual(complaints, [])
  })

  test('all devices of a person can be shown, also more than a page', async () => {
    for (let n = 1; n <= 21; n++) {
      await world.request('POST', '/v1/devices', { token: `phone-${n}-of-margaret`, platform: 'ios' }, 'margaret')
    }
    const { sub } = await world.request<{ sub: string }>('GET', '/v1/users/me', undefined, 'margaret')
    const { page, complaints } = await world.open(`/people/${sub}`)
    await page.getByRole('button', { name: 'Load more' }).click()
    await until(async () => (await page.getByText('ios').count()) === 21)
    assert.deepEqual(complaints, [])
  })

  test('the operator finds a person by search, and erases the person after typing the sub', async () => {
    const { sub } = await world.request<{ sub: string }>('GET', '/v1/users/me', undefined, 'grace')
    const job = await world.startJob('report', { status: 'completed', input: { title: 'Private' }, user: 'grace' })
    const { page, complaints } = await world.open('/people')
    await page.getByLabel('Sub or e-mail begins with').fill('GRACE@')
    await page.getByLabel('Sub or e-mail begins with').press('Enter')
    await page.getByRole('table', { name: 'Users that match the search' }).waitFor()
    await page.getByRole('link', { name: 'ada@example.com' }).waitFor({ state: 'detached' })
    await page.getByRole('link', { name: 'grace@example.com' }).click()
    await page.getByRole('button', { name: 'Erase' }).click()
    const confirm = dialog(page).getByRole('button', { name: 'Erase forever' })
    await dialog(page)
      .getByLabel(/to confirm/)
      .fill('grace')
    assert.equal(await confirm.isDisabled(), true)
    await page.keyboard.press('Enter')
    await dialog(page)
      .getByLabel(/to confirm/)
      .fill(sub)
    await confirm.click()
    await said(page, 'The erasure has started')
    await page.getByText('erase: 2 of 2 (done)').waitFor()
    assert.equal(await page.getByRole('button', { name: 'Stop' }).count(), 0)
    assert.deepEqual(await findAxeFaults(page), [])
    const { created_by, input } = await world.request('GET', `/jobs/${job}`)
    assert.deepEqual([created_by, input], [null, null])
    await page.getByRole('link', { name: 'All people' }).click()
    await page.getByRole('link', { name: 'ada@example.com' }).waitFor()
    // The list as it was read before shows until the new one has come.
    await page.getByRole('link', { name: 'grace@example.com' }).waitFor({ state: 'detached' })
    assert.deepEqual(complaints, [])
  })

  test('the page of another person, found by search, does not show the erasure of the one before', async () => {
    const { sub } = await world.request<{ sub: string }>('GET', '/v1/users/me', undefined, 'margaret')
    const { page, complaints } = await world.open(`/people/${sub}`)
    await page.getByRole('button', { name: 'Erase' }).click()
    await dialog(page)
      .getByLabel(/to confirm/)
      .fill(sub)
    await dialog(page).getByRole('button', { name: 'Erase forever' }).click()
    await page.getByRole('heading', { level: 1, name: 'Erasing a user' }).waitFor()
    await page.keyboard.press('Control+k')
    await dialog(page).getByRole('textbox').fill('ada@')
    await dialog(page).getByRole('button', { name: 'ada@example.com' }).click()
    await page.getByRole('heading', { level: 1, name: 'ada@example.com' }).waitFor()
    assert.deepEqual(complaints, [])
  })

  test('job types and settings show the values in use, and no secret', async () => {
    const { page, complaints } = await world.open('/job-types')
    await page.getByRole('region', { name: 'review', exact: true }).getByText('resume schema').waitFor()
    await page.getByRole('link', { name: 'Settings' }).click()
    const row = page.getByRole('row').filter({ hasText: 'WEBHOOK_SECRET' })
    await row.getByText('set, and never shown').waitFor()
    await page.getByRole('row').filter({ hasText: 'API_VARIANT' }).getByText('B', { exact: true }).waitFor()
    assert.deepEqual(complaints, [])
  })
})
