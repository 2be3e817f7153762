import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { needsChromium } from '../support/browser.ts'
import { ADA, assertAccessible, ConsoleWorld } from '../support/console.ts'
import { needsPostgres, sharedMigratedDatabase } from '../support/services.ts'

type Paths = [path: string, heading: string][]

const LONG = `${'someone.with.a.very.long.name'.repeat(2)}@${'mail.department.'.repeat(10)}example.com`

/** A user whose e-mail address is longer than any column, with a job. */
async function addLongUser(world: ConsoleWorld): Promise<void> {
  const form = { grant_type: 'client_credentials', sub: 'long-user', email: LONG }
  const response = await fetch(`${world.addressOf('Tokens')}/local_pool/oauth2/token`, {
    method: 'POST',
    body: new URLSearchParams(form),
  })
  const { access_token: token } = (await response.json()) as { access_token: string }
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
  const body = JSON.stringify({ type: 'failing', input: {} })
  assert.equal((await fetch(`${world.url}/jobs`, { method: 'POST', headers, body })).status, 202)
}

/** Creates data for every page. */
async function fill(world: ConsoleWorld): Promise<Paths> {
  await world.request('POST', '/v1/devices', { token: 'phone-of-ada', platform: 'android' }, 'ada')
  await world.request('POST', '/v1/service-accounts', { name: 'Importer', scopes: ['read:projects'] })
  const webhooks = await world.request<{ id: string }>('POST', '/v1/webhook-endpoints', {
    url: `${world.addressOf('Webhooks')}/hooks`,
    events: ['job.completed', 'job.failed'],
    description: 'Billing',
  })
  await addLongUser(world)
  const report = await world.startJob('report', { status: 'completed', input: { title: 'Sales', n: 3 } })
  const failed = await world.startJob('failing', { status: 'failed' })
  await world.request('POST', '/v1/operations', { action: 'retry', ids: [failed] })
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
    ['/webhooks', 'Webhooks'],
    [`/webhooks/${webhooks.id}`, 'Webhook endpoint'],
    ['/people', 'People'],
    ['/people?search=ada', 'People'],
    ['/people?search=someone', 'People'],
    ['/people/long-user', LONG],
    ['/failures', 'Failures'],
    ['/operations', 'Bulk operations'],
    ['/runbooks', 'Runbooks'],
    ['/runbooks/disk', 'Disk'],
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
    assert.equal(await page.title(), `${heading} – Project API console`)
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
    test(`the navigation stays in sight when a page scrolls on a ${size}`, async () => {
      const { page } = await world.open('/settings', { size })
      await page.getByRole('row').last().scrollIntoViewIfNeeded()
      assert.ok(
        await page.evaluate(() => document.scrollingElement?.scrollTop ?? 0),
        'the page is longer than the screen',
      )
      if (size === 'phone') await page.getByRole('button', { name: 'Menu' }).click()
      const { top } = await page
        .getByRole('link', { name: 'Overview' })
        .evaluate((link) => link.getBoundingClientRect())
      assert.ok(top > 0 && top < 844, String(top))
    })

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
