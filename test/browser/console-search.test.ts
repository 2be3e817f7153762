import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { needsChromium } from '../support/browser.ts'
import { ADA, assertAccessible, ConsoleWorld } from '../support/console.ts'
import { until } from '../support/until.ts'

/** Opens the search by its visible field, types a text and returns the titles of what it found. */
async function search(page: Page, text: string) {
  await page.getByRole('button', { name: /^Search/ }).click()
  const dialog = page.getByRole('dialog', { name: 'Search' })
  await dialog.getByRole('textbox').fill(text)
  return dialog
}

/** Every prefix of an id that the service makes. Webhook deliveries have ids of their own. */
const ID_PREFIXES = [
  ...Array.from(
    readFileSync(new URL('../../src/core/ids.ts', import.meta.url), 'utf8').matchAll(/^ {2}\| '([a-z]{3})'$/gm),
    ([, prefix = '']) => prefix,
  ),
  'whd',
]

describe('finding things in the console', needsChromium(), () => {
  let world: ConsoleWorld
  before(async () => {
    world = await ConsoleWorld.start()
  })
  after(() => world.close())

  test('the search finds people by e-mail, jobs by status and error, and ids of every kind', async () => {
    const report = await world.startJob('report', { status: 'completed', input: { title: 'Sales' } })
    const failed = await world.startJob('failing', { status: 'failed' })
    const { run_id, thread_id } = await world.request<{ run_id: string; thread_id: string }>('GET', `/jobs/${report}`)
    const { id: project } = await world.request<{ id: string }>('POST', '/v1/projects', { name: 'Launch' })
    const hook = { url: `${world.addressOf('Webhooks')}/hooks`, events: ['job.completed'] }
    const { id: endpoint } = await world.request<{ id: string }>('POST', '/v1/webhook-endpoints', hook)
    const { id: account } = await world.request<{ id: string }>('POST', '/v1/service-accounts', {
      name: 'Importer',
      scopes: [],
    })
    const callbacks = await world.request<{ data: { id: string }[] }>('GET', '/v1/callbacks')
    const callback = callbacks.data[0]?.id ?? ''
    const { id: device } = await world.request<{ id: string }>(
      'POST',
      '/v1/devices',
      { token: 'phone-of-ada', platform: 'android' },
      'ada',
    )
    const message = { users: [ADA], title: 'Hello', body: 'It is a test' }
    const { id: notification } = await world.request<{ id: string }>('POST', '/v1/notifications', message)
    const delivery = `dlv_${notification.slice(4)}${device.slice(4)}`
    const tested = await world.request<{ id: string; event_id: string }>(
      'POST',
      `/v1/webhook-endpoints/${endpoint}/test`,
    )
    await fetch(`${world.url}/webhooks/jobs/report`, { method: 'POST', body: '{}' })
    let refused = ''
    await until(async () => {
      const { data } = await world.request<{ data: { id: string }[] }>('GET', '/v1/refused-callbacks')
      refused = data[0]?.id ?? ''
      return refused !== ''
    })
    const bulk = { action: 'check', ids: [report] }
    const { id: operation } = await world.request<{ id: string }>('POST', '/v1/operations', bulk)
    const audit = await world.request<{ data: { id: string; request_id: string }[] }>(
      'GET',
      `/v1/audit?object=${notification}`,
    )
    const [entry] = audit.data
    // She has no jobs.
    const { sub: grace } = await world.request<{ sub: string }>('GET', '/v1/users/me', undefined, 'grace')
    const key = 'key_00000000000000000000000000'
    const trace = '0af7651916cd43dd8448eb211c80319c'
    const found: [text: string, choice: string | null, path: string, shown?: string | number][] = [
      ['ada@', 'ada@example.com', `/people/${ADA}`],
      ['ADA@EX', 'ada@example.com', `/people/${ADA}`],
      [ADA, null, `/people/${ADA}`],
      [grace, null, `/people/${grace}`],
      [grace, 'grace@example.com', `/people/${grace}`],
      ['awaiting', 'Jobs: awaiting input', '/jobs?status=awaiting_input'],
      ['run_failed', 'Jobs that failed: run failed', '/jobs?error_code=run_failed'],
      ['audit', 'Audit', '/audit'],
      [report, null, `/jobs/${report}`],
      [run_id, null, `/jobs/${report}`],
      [thread_id, null, `/jobs/${report}`],
      [callback, null, `/callbacks?id=${callback}`],
      [project, null, `/jobs?project_id=${project}`],
      [endpoint, null, `/webhooks/${endpoint}`],
      [account, null, `/keys?id=${account}`, 1],
      [key, null, `/keys?id=${key}`, 'No service account has this id or this key'],
      [device, null, `/push?device=${device}`, 1],
      [notification, null, `/push?notification=${notification}`, 1],
      [delivery, null, `/push?notification=${notification}&device=${device}`, 1],
      [tested.id, null, `/webhooks/${endpoint}?event_id=${tested.event_id}`, 1],
      [refused, null, `/callbacks?refused=${refused}`, 'Show all'],
      [operation, null, `/operations?id=${operation}`],
      [entry?.id ?? '', null, `/audit?id=${entry?.id}`, 1],
      [entry?.request_id ?? '', null, `/audit?request_id=${entry?.request_id}`, 1],
      [trace, null, `/jobs?trace_id=${trace}`],
    ]
    // An entry of a timeline is on the page of its job, which its id does not name.
    const tried = new Set(['tml', ...found.map(([text]) => /^([a-z]{3})_/.exec(text)?.[1])])
    assert.ok(ID_PREFIXES.length > 10)
    const untried = ID_PREFIXES.filter((prefix) => !tried.has(prefix))
    assert.deepEqual(untried, [])
    const { page, complaints } = await world.open('/')
    for (const [text, choice, path, shown] of found) {
      const dialog = await search(page, text)
      if (choice === null) await dialog.getByRole('button', { name: 'Go', exact: true }).click()
      else await dialog.getByRole('button', { name: choice, exact: true }).click()
      await page.waitForURL((url) => `${url.pathname}${url.search}` === `/console${path}`)
      await page.getByRole('dialog', { name: 'Search' }).waitFor({ state: 'detached' })
      if (text === callback || text === operation) {
        // The page shows before its dialog opens.
        await page.getByRole('dialog').waitFor()
        await page.keyboard.press('Escape')
        await page.getByRole('dialog').waitFor({ state: 'detached' })
      }
      if (typeof shown === 'string') await page.getByText(shown).first().waitFor()
      if (typeof shown === 'number') await until(async () => (await page.locator('tbody tr').count()) === shown)
    }
    await page.getByRole('link', { name: 'Audit', exact: true }).click()
    await page.getByRole('link', { name: notification, exact: true }).click()
    await page.waitForURL((url) => url.search === `?notification=${notification}`)
    await page.keyboard.press('Control+k')
    await page.getByRole('dialog', { name: 'Search' }).getByRole('textbox').fill('no such thing')
    await page.getByText('Nothing fits.').waitFor()
    await assertAccessible(page, 'the search')
    await page.keyboard.press('Escape')

    // The list shows why a job failed and whose it is.
    await search(page, 'run failed').then((dialog) => dialog.getByRole('button', { name: /run failed/ }).click())
    const row = page.locator(`tr[data-id="${failed}"]`)
    await row.getByText('run failed').waitFor()
    await row.getByRole('link', { name: 'ada@example.com' }).click()
    await page.waitForURL((url) => url.pathname === `/console/people/${ADA}`)
    assert.deepEqual(complaints, [])
  })

  test('a UUID may be a trace; one that nothing has is said to be unknown', async () => {
    const { page, complaints } = await world.open('/jobs')
    const [trace, unknown] = ['0af76519-16cd-43dd-8448-eb211c80319c', '0af76519-16cd-43dd-8448-000000000000']
    // No graph of the sandbox has such a trace.
    await page.route(`**/jobs?trace_id=${trace}*`, async (route) => {
      const answer = await route.fetch({ url: `${world.url}/jobs?fields=summary&limit=1` })
      await route.fulfill({ response: answer })
    })
    await search(page, trace).then((dialog) => dialog.getByRole('button', { name: 'Go', exact: true }).click())
    await page.waitForURL((url) => url.search === `?trace_id=${trace}`)
    await page.unrouteAll({ behavior: 'wait' })
    await search(page, unknown).then((dialog) => dialog.getByRole('button', { name: 'Go', exact: true }).click())
    await page.getByText('Nothing has this id').waitFor()
    assert.deepEqual(complaints, [])
  })

  test('a UUID in capitals is found as it is stored', async () => {
    const owner = 'B0AF7651-16CD-43DD-8448-EB211C80319C'
    await world.request('POST', '/jobs', { type: 'report', input: {}, created_by: owner })
    const report = await world.startJob('report', { status: 'completed' })
    const { run_id } = await world.request<{ run_id: string }>('GET', `/jobs/${report}`)
    const { page } = await world.open('/')
    for (const [text, path] of [
      [ADA.toUpperCase(), `/people/${ADA}`],
      [owner, `/people/${owner}`],
      [run_id.toUpperCase(), `/jobs/${report}`],
    ] as const) {
      await search(page, text).then((dialog) => dialog.getByRole('button', { name: 'Go', exact: true }).click())
      await page.waitForURL((url) => url.pathname === `/console${path}`)
    }
  })

  test('filters of closed sets are lists, and callbacks are filtered by time', async () => {
    const { page, complaints } = await world.open('/jobs')
    await page.getByLabel('Error').selectOption('run_lost')
    await page.getByText('No job fits these filters').waitFor()
    await page.getByLabel('Error').selectOption('run_failed')
    await until(async () => (await page.locator('tbody tr').count()) === 1)
    await page.getByLabel('Type').selectOption('report')
    await page.getByText('No job fits these filters').waitFor()
    await page.getByRole('button', { name: 'Clear filters' }).click()
    await page.getByLabel('Output check').selectOption('failed')
    await page.getByText('No job fits these filters').waitFor()
    assert.equal(new URL(page.url()).searchParams.get('output_check'), 'failed')

    await page.getByRole('link', { name: 'Audit' }).click()
    await page.getByLabel('Action').selectOption('service_account.created')
    await until(async () => (await page.locator('tbody tr').count()) === 1)

    await page.getByRole('link', { name: 'Callbacks' }).click()
    await page.getByRole('row').getByText('success').first().waitFor()
    await page.getByLabel(/^Received before/).fill('2020-01-02T03:04:05')
    await page.getByText('No callback fits these filters').waitFor()
    assert.deepEqual(complaints, [])
  })
})
