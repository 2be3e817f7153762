import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { needsChromium } from '../support/browser.ts'
import { ADA, ConsoleWorld } from '../support/console.ts'
import { until } from '../support/until.ts'

interface Listed {
  data: { id: string; state: string }[]
}

describe('push and the overview in the console', needsChromium(), () => {
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
    assert.deepEqual(complaints, [])
  })

  test('a failed delivery is sent again', async () => {
    await world.setFaults('Push', { refuse: 'third_party_auth' })
    await world.startJob('report', { status: 'completed', input: { title: 'Sales' } })
    const failed = async () => (await world.request<Listed>('GET', '/v1/deliveries?state=failed')).data
    await until(async () => (await failed()).length === 1)
    const { page, complaints } = await world.open('/push?state=failed')
    await world.setFaults('Push', { refuse: 'nothing' })
    await page.getByRole('button', { name: /Resend/ }).click()
    await page.locator('.toast').filter({ hasText: 'The message will be sent again' }).waitFor()
    await until(async () => (await failed()).length === 0)
    assert.deepEqual(complaints, [])
  })
})
