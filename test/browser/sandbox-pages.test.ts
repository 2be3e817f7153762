import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { needsChromium, openPage } from '../support/browser.ts'
import { assertAccessible, ConsoleWorld } from '../support/console.ts'

describe('the pages of the sandbox', needsChromium(), () => {
  let world: ConsoleWorld
  before(async () => {
    world = await ConsoleWorld.start()
    await world.request('POST', '/v1/devices', { token: 'phone-of-ada', platform: 'android' }, 'ada')
    await world.startJob('report', { status: 'completed', input: { title: 'Sales' } })
  })
  after(() => world.close())

  for (const size of ['desktop', 'phone'] as const) {
    test(`the pages of the sandbox have no axe finding in either theme, fit the screen and link to the console on a ${size}`, async () => {
      const { page, complaints } = await openPage(world.addressOf('Start here'), { size })
      for (const name of ['Start here', 'Tokens', 'Runtime', 'Push', 'Webhooks']) {
        await page.goto(world.addressOf(name))
        await page.getByRole('heading', { level: 1 }).waitFor()
        await assertAccessible(page, name)
        await page.getByRole('link', { name: 'Console' }).click()
        await page.getByRole('heading', { name: 'Project API console' }).waitFor()
        assert.deepEqual(complaints, [], name)
      }
      await assertAccessible(page, 'the console before sign-in')
      await page.getByRole('button', { name: 'Sign in as another user' }).click()
      await page.getByRole('link', { name: 'Administrator' }).waitFor()
      await assertAccessible(page, 'the sign-in of the sandbox')
      assert.deepEqual(complaints, [])
      await page.context().close()
    })
  }
})
