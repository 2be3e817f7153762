import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { besidesDeleted, needsChromium } from '../support/browser.ts'
import { ADA, ConsoleWorld } from '../support/console.ts'
import { until } from '../support/until.ts'

interface Arrival {
  id: string
  type: string
  signed: boolean | null
}

interface Listed {
  data: { id: string; state: string }[]
}

const said = (page: Page, text: string) => page.locator('.toast').filter({ hasText: text }).waitFor()
const dialog = (page: Page) => page.getByRole('dialog')

describe('push, webhooks and the overview in the console', needsChromium(), () => {
  let world: ConsoleWorld
  before(async () => {
    world = await ConsoleWorld.start()
    await world.request('POST', '/v1/devices', { token: 'phone-of-ada', platform: 'android' }, 'ada')
  })
  after(() => world.close())

  test('the operator sends a test message to a user and sees its delivery', async () => {
    const { page, complaints } = await world.open('/push')
    await page.getByText('Nothing was pushed yet').waitFor()
    await page.getByRole('button', { name: 'Send a test' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('User (sub)').fill(ADA)
    await dialog.getByRole('checkbox').uncheck()
    await dialog.getByRole('button', { name: 'Send' }).click()
    await page.locator('.toast').filter({ hasText: 'The test is on its way' }).waitFor()
    await page.getByRole('row').getByText('sent', { exact: true }).first().waitFor()
    assert.deepEqual(complaints, [])
  })

  test('the overview counts the jobs that ended, and names every dependency', async () => {
    await world.startJob('failing', { status: 'failed' })
    const { page, complaints } = await world.open('/')
    const figure = page.locator('.figure').filter({ hasText: 'failed' }).locator('strong')
    await until(async () => (await figure.textContent()) === '1')
    for (const name of ['database', 'identity_provider', 'runtime', 'push']) {
      await page.getByRole('region', { name: 'Dependencies' }).getByText(name).waitFor()
    }
    await page.getByRole('link', { name: '24h' }).click()
    await page.waitForURL((url) => url.searchParams.get('window') === '24h')
    await page.getByText('Ended jobs per minute').waitFor()
    const counts = page.getByRole('listitem').filter({ has: page.locator('strong', { hasText: /^[\d,+]+$/ }) })
    const unlinked = counts.filter({ hasNot: page.getByRole('link') })
    await until(async () => (await counts.count()) > 8)
    assert.deepEqual(await unlinked.allTextContents(), [])
    const bySweep = await counts.getByRole('link', { name: 'noticed by the sweep' }).getAttribute('href')
    assert.match(bySweep ?? '', /\/jobs\?settled_by=sweep&finished_after=20/)
    const waiting = await counts.getByRole('link', { name: 'pushes waiting' }).getAttribute('href')
    assert.match(waiting ?? '', /\/push\?state=pending$/)
    // The list has the window of the number that leads to it, and its tab counts the same jobs.
    await page.locator('.figure').getByRole('link', { name: 'failed' }).click()
    await page.getByRole('heading', { level: 1, name: 'Jobs' }).waitFor()
    const { searchParams } = new URL(page.url())
    const age = Date.now() - Date.parse(searchParams.get('finished_after') ?? '')
    assert.ok(age > 23 * 3_600_000 && age < 25 * 3_600_000, searchParams.toString())
    await page.getByRole('link', { name: 'failed 1', exact: true }).waitFor()
    await until(async () => (await page.locator('tbody tr').count()) === 1)
    await page.getByLabel(/^Ended after/).fill('2020-01-02T03:04:05')
    await page.getByRole('link', { name: 'failed 1', exact: true }).waitFor()
    const { timeZoneOffsetMs, zone } = await page.evaluate(() => ({
      timeZoneOffsetMs: new Date(2020, 0, 2).getTimezoneOffset() * 60_000,
      zone: new Date().toLocaleTimeString(undefined, { timeZoneName: 'short' }).split(' ').at(-1),
    }))
    const expected = new Date(Date.parse('2020-01-02T03:04:05Z') + timeZoneOffsetMs).toISOString()
    await page.waitForURL((url) => url.searchParams.get('finished_after') === expected)
    await page.getByLabel(`Ended after (${zone})`).waitFor()
    await page.getByLabel(/^Ended before/).fill('2020-01-02T03:04:05')
    await page.getByText('No job fits these filters').waitFor()
    await page.getByRole('link', { name: 'failed 0', exact: true }).waitFor()
    assert.deepEqual(complaints, [])
  })

  test('a failed delivery is sent again', async () => {
    await world.setFaults('Push', { refuse: 'third_party_auth' })
    await world.startJob('report', { status: 'completed', input: { title: 'Sales' } })
    const failed = async () => (await world.request<Listed>('GET', '/v1/deliveries?state=failed')).data
    await until(async () => (await failed()).length === 1)
    const { page, complaints } = await world.open('/push?state=failed')
    await page.getByText('messages to android are lost: 401 THIRD_PARTY_AUTH_ERROR').waitFor()
    await world.setFaults('Push', { refuse: 'nothing' })
    await page.getByRole('button', { name: /Resend/ }).click()
    await page.locator('.toast').filter({ hasText: 'The message will be sent again' }).waitFor()
    await until(async () => (await failed()).length === 0)
    assert.deepEqual(complaints, [])
  })
  test('a webhook endpoint is created, its secret is shown once, and a delivery shows its attempts', async () => {
    const { page, complaints } = await world.open('/webhooks')
    await page.getByText('There is no webhook endpoint yet').waitFor()
    await page.getByRole('button', { name: 'New endpoint' }).click()
    await dialog(page).getByLabel('URL').fill('http://10.0.0.1/hooks')
    assert.ok(await dialog(page).getByRole('button', { name: 'Create' }).isDisabled(), 'an endpoint needs an event')
    await dialog(page).getByLabel('job.completed').check()
    await dialog(page).getByLabel('report', { exact: true }).check()
    await dialog(page).getByLabel('Description').fill('Billing')
    await dialog(page).getByRole('button', { name: 'Create' }).click()
    await dialog(page).getByRole('alert').getByText('body/url').waitFor()
    await dialog(page).getByLabel('URL').fill(hooks())
    await dialog(page).getByRole('button', { name: 'Create' }).click()
    await verifyWith(await secretShownOnce(page))

    await world.startJob('failing', { status: 'failed' })
    await world.startJob('report', { status: 'completed', input: { title: 'Sales' } })
    await page.getByRole('link', { name: hooks() }).click()
    const row = page.getByRole('row').filter({ hasText: 'job.completed' })
    await row.getByText('sent', { exact: true }).waitFor()
    await row.getByRole('button', { name: /Resend/ }).click()
    await said(page, 'The event will be sent again')
    await row.getByText('2 attempts').click()
    const attempt = dialog(page).getByRole('region').first()
    for (const shown of ['200', / ms$| s$/, '{"received":true}']) await attempt.getByText(shown).waitFor()
    assert.equal(await dialog(page).getByRole('region').count(), 2)
    await page.keyboard.press('Escape')
    const arrived = await arrivals()
    assert.deepEqual(
      arrived.map(({ type, signed }) => ({ type, signed })),
      [
        { type: 'job.completed', signed: true },
        { type: 'job.completed', signed: true },
      ],
    )
    assert.equal(arrived[0]?.id, arrived[1]?.id)
    // The first URL was refused.
    const others = complaints.filter((complaint) => !complaint.includes('400'))
    assert.deepEqual(others, [])
  })

  test('an endpoint is edited, tested, rotated, disabled, recovered and deleted', async () => {
    const { page, complaints } = await world.open('/webhooks')
    await page.getByRole('link', { name: hooks() }).click()
    const facts = page.getByRole('region', { name: 'Facts' })
    const press = (name: string) => page.getByRole('button', { name, exact: true }).click()
    const confirm = (name: string) => dialog(page).getByRole('button', { name, exact: true }).click()

    await press('Edit')
    await dialog(page).getByLabel('report', { exact: true }).uncheck()
    await dialog(page).getByLabel('job.failed').check()
    await confirm('Save')
    await facts.getByText('job.completed, job.failed').waitFor()
    await facts.getByText('Billing').waitFor()

    await press('Rotate the secret')
    await dialog(page).getByText('For 24 hours both secrets are valid').waitFor()
    await confirm('Rotate')
    await dialog(page).getByText('both valid for 24 hours').waitFor()
    await verifyWith(await secretShownOnce(page))
    await facts.getByText('Old secret').waitFor()

    await world.setFaults('Webhooks', { answer: '500' })
    await press('Test')
    await said(page, 'The test is on its way')
    await page.getByLabel('State').selectOption('failed')
    const test = page.getByRole('row').filter({ hasText: 'webhook.test' })
    await test.getByText('1 attempt').click()
    await dialog(page).getByText('the receiver answered 500').waitFor()
    await page.keyboard.press('Escape')
    await page.getByRole('button', { name: 'Clear filters' }).click()
    const [tested] = await arrivals()
    assert.deepEqual([tested?.type, tested?.signed], ['webhook.test', true])
    await world.setFaults('Webhooks', { answer: '200' })

    await press('Disable')
    await confirm('Disable')
    await facts.getByText('disabled by an admin').waitFor()
    assert.equal(await page.getByRole('button', { name: /Test|Recover|Resend/ }).count(), 0)
    await world.startJob('failing', { status: 'failed' })
    await press('Enable')
    await confirm('Enable')
    await facts.getByText('enabled').waitFor()
    await press('Recover')
    await dialog(page).getByLabel('Since').fill('2020-01-01T00:00')
    await confirm('Recover')
    await page.getByText(/recover: (\d+) of \1 \(done\)/).waitFor()
    const missed = page.getByRole('row').filter({ hasText: 'job.failed' })
    await missed.first().getByText('sent', { exact: true }).waitFor()

    await world.setFaults('Webhooks', { answer: '410' })
    await press('Test')
    await facts.getByText('because it answered 410').waitFor()
    // Days of outage, which this test cannot wait for.
    await page.route('**/v1/webhook-endpoints', async (route) => {
      const response = await route.fetch()
      const { data, ...rest } = (await response.json()) as { data: object[] }
      const late = data.map((endpoint) => ({ ...endpoint, waiting: 1_001, missed_events: 3 }))
      await route.fulfill({ response, json: { ...rest, data: late } })
    })
    await page.getByRole('navigation', { name: 'Console' }).getByRole('link', { name: 'Webhooks' }).click()
    const late = page.getByRole('row').filter({ hasText: 'disabled because it answered 410' })
    await late.getByText(/more than 1,000\swaiting, up to 3 events missed/).waitFor()
    await page.unrouteAll({ behavior: 'wait' })
    await late.click()
    await press('Delete')
    const id = new URL(page.url()).pathname.split('/').at(-1) ?? ''
    assert.match(id, /^whe_\w+$/)
    assert.deepEqual(complaints, [])
    await confirm('Delete')
    await page.getByText('There is no webhook endpoint yet').waitFor()
    assert.deepEqual(besidesDeleted(complaints, id), [])
  })

  test('if delivery is halted, the page shows the reason of the provider', async () => {
    await world.setFaults('Push', { refuse: 'permission' })
    await world.startJob('report', { status: 'completed', input: { title: 'Sales' } })
    await until(async () => (await world.request<{ state: string }>('GET', '/v1/push')).state === 'halted')
    const { reason } = await world.request<{ reason: string }>('GET', '/v1/push')
    assert.match(reason, /the credentials may not send: 403 PERMISSION_DENIED/)
    const { page, complaints } = await world.open('/push')
    await page.getByText('Delivery is halted, and messages wait').waitFor()
    await page.getByText(reason).waitFor()
    await world.open('/jobs')
    const banner = page.locator('#content > [role=alert]').filter({ hasText: 'push: degraded' })
    assert.doesNotMatch((await banner.textContent()) ?? '', /v1/)
    await banner.getByRole('link', { name: 'Push', exact: true }).click()
    await page.getByText(reason).waitFor()
    assert.deepEqual(complaints, [])
  })

  const hooks = () => `${world.addressOf('Webhooks')}/hooks`

  /** The webhooks that the receiver got, newest first. */
  async function arrivals(): Promise<Arrival[]> {
    const response = await fetch(`${world.addressOf('Webhooks')}/sandbox/webhooks`)
    return ((await response.json()) as { data: Arrival[] }).data
  }

  async function verifyWith(secret: string): Promise<void> {
    const body = JSON.stringify({ secrets: [secret] })
    const response = await fetch(`${world.addressOf('Webhooks')}/sandbox/secrets`, { method: 'PUT', body })
    assert.equal(response.status, 200)
  }
})

async function secretShownOnce(page: Page): Promise<string> {
  const code = page.getByRole('dialog', { name: 'The new secret' }).locator('code')
  await code.waitFor()
  const secret = (await code.textContent()) ?? ''
  assert.match(secret, /^whsec_/)
  await dialog(page).getByRole('button', { name: 'Copy the secret' }).waitFor()
  await dialog(page).getByRole('button', { name: 'Close' }).click()
  await dialog(page).waitFor({ state: 'detached' })
  assert.equal(await page.getByText(secret).count(), 0)
  return secret
}
