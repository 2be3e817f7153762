import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { needsChromium } from '../support/browser.ts'
import { ADA, assertAccessible, ConsoleWorld } from '../support/console.ts'
import { needsPostgres, sharedMigratedDatabase } from '../support/services.ts'

type Paths = [path: string, heading: string | RegExp][]

/** Creates data for every page. */
async function fill(world: ConsoleWorld): Promise<Paths> {
  await world.request('POST', '/v1/devices', { token: 'phone-of-ada', platform: 'android' }, 'ada')
  await world.request('POST', '/v1/service-accounts', { name: 'Importer', scopes: ['read:projects'] })
  const report = await world.startJob('report', { status: 'completed', input: { title: 'Sales', n: 3 } })
  const failed = await world.startJob('failing', { status: 'failed' })
  const waiting = await world.startJob('review', { status: 'awaiting_input' })
  return [
    ['/', 'Overview'],
    ['/jobs', 'Jobs'],
    ['/jobs?status=failed', 'Jobs'],
    [`/jobs/${report}`, 'report job'],
    [`/jobs/${failed}`, 'failing job'],
    [`/jobs/${waiting}`, 'review job'],
    ['/waiting', 'Waiting for answers'],
    ['/callbacks', 'Callbacks'],
    ['/push', 'Push'],
    ['/people', 'People'],
    ['/people?search=ada', 'People'],
    [`/people/${ADA}`, 'ada@example.com'],
    ['/keys', 'Keys'],
    ['/job-types', 'Job types'],
    ['/settings', 'Settings'],
    ['/audit', 'Audit'],
  ]
}

async function visitAll(page: Page, paths: Paths, look: (path: string) => Promise<void>): Promise<void> {
  for (const [path, heading] of paths) {
    await page.evaluate((to) => {
      history.pushState(null, '', to)
      dispatchEvent(new PopStateEvent('popstate'))
    }, `/console${path}`)
    await page.getByRole('heading', { level: 1, name: heading, exact: true }).waitFor()
    await page.waitForFunction(() => document.querySelector('.spinner') === null)
    await look(path)
  }
}

describe('every page of the console', needsChromium(), () => {
  let world: ConsoleWorld
  let paths: Paths
  before(async () => {
    world = await ConsoleWorld.start()
    paths = await fill(world)
  })
  after(() => world.close())

  for (const size of ['desktop', 'phone'] as const) {
    test(`each page of the console has no axe finding, no error and no sideways scroll in either theme on a ${size}`, async () => {
      const { page, complaints } = await world.open('/', { size })
      await visitAll(page, paths, (path) => assertAccessible(page, path))
      assert.deepEqual(complaints, [])
    })
  }
})

describe('the console on PostgreSQL, with the errors of variant A', needsBoth(), () => {
  test('the console shows every page, and the message of a refused request', async () => {
    const database = await sharedMigratedDatabase()
    const world = await ConsoleWorld.start({ DATABASE_URL: database.url, API_VARIANT: 'A' })
    try {
      const paths = await fill(world)
      const { page, complaints } = await world.open('/')
      // Markup and colors do not depend on the engine, so another test examines them.
      await visitAll(page, paths, async () => {})
      assert.deepEqual(complaints, [])
      await world.open('/people/no-such-user')
      await page.getByText('No such user').first().waitFor()
    } finally {
      await world.close()
      await database.drop()
    }
  })
})

function needsBoth(): { skip: string | false } {
  return { skip: needsChromium().skip || needsPostgres().skip }
}
