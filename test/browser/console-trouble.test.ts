import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { needsChromium, openPage } from '../support/browser.ts'
import { assertAccessible, ConsoleWorld, signIn } from '../support/console.ts'

const PAGES = ['Overview', 'Jobs', 'Callbacks', 'Push', 'People', 'Keys', 'Settings', 'Audit']
const heading = (page: Page, name: string) => page.getByRole('heading', { level: 1, name, exact: true })
const banner = (page: Page, text: string | RegExp) => page.locator('#content > [role=alert]').filter({ hasText: text })

describe('the banner of the console', needsChromium(), () => {
  let world: ConsoleWorld
  before(async () => {
    world = await ConsoleWorld.start()
  })
  after(() => world.close())

  test('a dependency that is not ok shows on every page: what is wrong, since when, and its runbook', async () => {
    const { page } = await world.open('/')
    await heading(page, 'Overview').waitFor()
    assert.equal(await page.getByRole('alert').count(), 0)
    await world.setFaults('Runtime', { start_failure: 1 })
    for (let count = 0; count < 10; count++) await world.request('POST', '/jobs', { type: 'report', input: {} }, 'ada')
    for (const name of PAGES) {
      await page.getByRole('navigation', { name: 'Console' }).getByRole('link', { name, exact: true }).click()
      await heading(page, name).waitFor()
      await banner(page, /runtime: degraded, the runtime keeps failing.*, since .*\d/).waitFor()
    }
    const { checks } = await world.request<{ checks: { runtime: { since: string } } }>('GET', '/readyz')
    assert.equal(await banner(page, 'runtime').locator('time').getAttribute('datetime'), checks.runtime.since)
    await banner(page, 'runtime').getByRole('link', { name: 'Runbook' }).click()
    await heading(page, 'The runtime is down').waitFor()
    await world.setFaults('Runtime', { start_failure: 0 })
    await banner(page, 'runtime').waitFor({ state: 'detached' })
  })

  for (const [how, signal] of [
    ['hangs', 'SIGSTOP'],
    ['is dead', 'SIGKILL'],
  ] as const) {
    test(`a service that ${how} shows within five seconds, with a runbook that needs no service; counting ends`, async () => {
      const own = await ConsoleWorld.start()
      try {
        await own.startJob('failing', { status: 'failed' })
        const { page } = await openPage(`${own.url}/console/jobs?status=failed`)
        await page.clock.install()
        await signIn(page, 'admin')
        await page.getByRole('button', { name: 'Retry', exact: true }).waitFor()
        // From here on, time passes only as the test says.
        await page.clock.pauseAt(Date.now() + 60_000)
        own.program.signal(signal)
        await page.clock.runFor(5_000)
        await banner(page, /The service does not answer.*Last answer: .*\d/).waitFor()
        await page.clock.resume()

        await page.getByRole('button', { name: 'Retry', exact: true }).click()
        await page.getByRole('dialog', { name: 'Retry: not counted' }).waitFor()
        await page
          .getByRole('dialog')
          .getByText(/did not answer in time|cannot be reached/)
          .waitFor()
        await page.keyboard.press('Escape')
        await page.getByRole('dialog').waitFor({ state: 'detached' })
        await banner(page, 'does not answer').getByRole('link', { name: 'Runbook' }).click()
        await heading(page, 'Rollback').waitFor()
        if (signal === 'SIGSTOP') {
          own.program.signal('SIGCONT')
          await banner(page, 'does not answer').waitFor({ state: 'detached' })
        }
        await page.context().close()
      } finally {
        await own.close()
      }
    })
  }

  test('every runbook can be read in the console, on a phone too', async () => {
    const { page, complaints } = await world.open('/runbooks', { size: 'phone' })
    const links = page.locator('.runbook td a')
    await links.first().waitFor()
    const names = await links.allTextContents()
    assert.ok(names.length >= 10, names.join())
    for (const name of names) {
      await page.locator('.runbook td a').getByText(name, { exact: true }).click()
      await page.getByRole('heading', { level: 2, name: 'It is over when' }).waitFor()
      await assertAccessible(page, name)
      await page.getByRole('link', { name: 'All runbooks' }).click()
      await heading(page, 'Runbooks').waitFor()
    }
    assert.deepEqual(complaints, [])
  })
})
