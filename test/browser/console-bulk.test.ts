import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { needsChromium } from '../support/browser.ts'
import { ConsoleWorld } from '../support/console.ts'
import { until } from '../support/until.ts'

describe('failures and bulk operations in the console', needsChromium(), () => {
  let world: ConsoleWorld
  before(async () => {
    world = await ConsoleWorld.start()
  })
  after(() => world.close())

  test('failures are grouped by error, lead to their list and are retried together; the audit trail has one line for it', async () => {
    const failed: string[] = []
    for (let count = 0; count < 3; count++) failed.push(await world.startJob('failing', { status: 'failed' }))
    const { page, complaints } = await world.open('/failures')
    const group = page.getByRole('row').filter({ hasText: 'kaboom: upstream 500' })
    await group.getByText('new: none in the 1h before').waitFor()
    await group.getByRole('link', { name: '3 jobs' }).click()
    await until(async () => (await page.locator('tbody tr').count()) === 3)
    await page.goBack()
    const retryAll = () => group.getByRole('button', { name: /Retry all/ }).click()
    const dialog = page.getByRole('dialog')
    await retryAll()
    await page.getByRole('dialog', { name: 'Retry: 3 jobs' }).waitFor()
    const started = page.waitForRequest((request) => {
      const body = request.method() === 'POST' ? request.postDataJSON() : null
      return body?.action === 'retry' && !body.dry_run
    })
    await dialog.getByRole('button', { name: 'Retry', exact: true }).click()
    assert.equal((await started).postDataJSON().again, false)
    await page.getByText('retry: 3 of 3 (done)').waitFor()
    // The retries fail as well, and the jobs before them are left out.
    await group.getByRole('link', { name: '6 jobs' }).waitFor()
    await retryAll()
    await page.getByRole('dialog', { name: 'Retry: 3 jobs' }).waitFor()
    await dialog.getByText('3 jobs were retried already, and are left out.').waitFor()
    await dialog.getByRole('button', { name: 'Cancel', exact: true }).click()

    await page.getByRole('link', { name: 'Bulk operations' }).click()
    const operation = page.getByRole('row').filter({ hasText: 'retry' })
    await operation.getByText('3 of 3').waitFor()
    await operation.getByRole('link', { name: 'admin@example.com' }).waitFor()
    await operation.getByText('retry').click()
    await page.getByRole('dialog').getByText('retry: 3 of 3 (done)').waitFor()
    await page.keyboard.press('Escape')

    await page.getByRole('link', { name: 'Audit' }).click()
    await page.getByRole('row').filter({ hasText: 'operation.started' }).getByText('retry of 3').waitFor()
    assert.equal(await page.getByText('job.retried', { exact: true }).and(page.locator('strong')).count(), 0)
    await page.getByRole('link', { name: 'each change' }).click()
    await until(async () => (await page.locator('tbody tr').count()) === 3)
    await page.getByRole('link', { name: failed[0] ?? '' }).click()
    await page.waitForURL((url) => url.pathname.endsWith(failed[0] ?? ''))
    assert.deepEqual(complaints, [])
  })
})
