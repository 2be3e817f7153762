import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { needsChromium, openPage } from '../support/browser.ts'
import { ConsoleWorld, findAxeFaults } from '../support/console.ts'

describe('the pages of the sandbox', needsChromium(), () => {
  let world: ConsoleWorld
  before(async () => {
    world = await ConsoleWorld.start()
    await world.request('POST', '/v1/devices', { token: 'phone-of-ada', platform: 'android' }, 'ada')
    await world.startJob('report', { status: 'completed', input: { title: 'Sales' } })
  })
  after(() => world.close())

  for (const theme of ['light', 'dark'] as const) {
    for (const size of ['desktop', 'phone'] as const) {
      test(`have no axe finding, fit the screen and link to the console in ${theme} on a ${size}`, async () => {
        for (const name of ['Start here', 'Tokens', 'Runtime', 'Push']) {
          const { page, complaints } = await openPage(world.addressOf(name), { theme, size })
          await page.getByRole('heading', { level: 1 }).waitFor()
          assert.deepEqual(await findAxeFaults(page), [], name)
          const excess = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
          assert.ok(excess <= 0, `${name} is ${excess} px too wide`)
          await page.getByRole('link', { name: 'Console' }).click()
          await page.getByRole('heading', { name: 'Project API console' }).waitFor()
          assert.deepEqual(complaints, [], name)
          await page.context().close()
        }
        const { page, complaints } = await openPage(`${world.url}/console`, { theme, size })
        await page.getByRole('heading', { name: 'Project API console' }).waitFor()
        assert.deepEqual(await findAxeFaults(page), [], 'the console before sign-in')
        await page.getByRole('button', { name: 'Sign in as another user' }).click()
        await page.getByRole('link', { name: 'Administrator' }).waitFor()
        assert.deepEqual(await findAxeFaults(page), [], 'the sign-in of the sandbox')
        assert.deepEqual(complaints, [])
        await page.context().close()
      })
    }
  }
})
