import assert from 'node:assert/strict'
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
    const trace = '0af7651916cd43dd8448eb211c80319c'
    const found: [text: string, choice: string | null, path: string][] = [
      ['ada@', 'ada@example.com', `/people/${ADA}`],
      ['ADA@EX', 'ada@example.com', `/people/${ADA}`],
      [ADA, null, `/people/${ADA}`],
      ['awaiting', 'Jobs: awaiting input', '/jobs?status=awaiting_input'],
      ['run_failed', 'Jobs that failed: run failed', '/jobs?error_code=run_failed'],
      ['audit', 'Audit', '/audit'],
      [report, null, `/jobs/${report}`],
      [run_id, null, `/jobs/${report}`],
      [thread_id, null, `/jobs/${report}`],
      [callback, null, `/callbacks?id=${callback}`],
      [project, null, `/jobs?project_id=${project}`],
      [endpoint, null, `/webhooks/${endpoint}`],
      [account, null, `/audit?object=${account}`],
      [trace, null, `/jobs?trace_id=${trace}`],
    ]
    const { page, complaints } = await world.open('/')
    for (const [text, choice, path] of found) {
      const dialog = await search(page, text)
      if (choice === null) await dialog.getByRole('button', { name: 'Go', exact: true }).click()
      else await dialog.getByRole('button', { name: choice, exact: true }).click()
      await page.waitForURL((url) => `${url.pathname}${url.search}` === `/console${path}`)
      await page.getByRole('dialog', { name: 'Search' }).waitFor({ state: 'detached' })
      if (text === callback) await page.keyboard.press('Escape')
    }
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
