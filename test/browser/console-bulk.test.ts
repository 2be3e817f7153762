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

  test('when a bulk retry ends, the list is read again, and the operation is not read any more', async () => {
    const id = await world.startJob('failing', { status: 'failed' })
    const { page, complaints } = await world.open('/jobs?status=failed&type=failing')
    await page.locator(`tr[data-id="${id}"]`).waitFor()
    let isEnded = false
    const reads = { list: 0, operation: 0, readiness: 0 }
    page.on('request', (request) => {
      const { pathname, searchParams } = new URL(request.url())
      if (pathname === '/jobs' && searchParams.get('limit') === '50') reads.list++
      if (pathname.startsWith('/v1/operations/')) reads.operation++
      if (pathname === '/readyz') reads.readiness++
    })
    await page.route('**/v1/operations/*', async (route) => {
      const response = await route.fetch()
      const answer = (await response.json()) as object
      await route.fulfill({ response, json: isEnded ? answer : { ...answer, state: 'running' } })
    })
    await page.getByRole('button', { name: 'Retry', exact: true }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Retry', exact: true }).click()
    await page
      .getByRole('status')
      .getByText(/^retry: \d+ of \d+$/)
      .waitFor()
    await until(() => reads.operation > 2)
    Object.assign(reads, { list: 0, operation: 0, readiness: 0 })
    isEnded = true
    await page
      .getByRole('status')
      .getByText(/\(done\)$/)
      .waitFor()
    await until(() => reads.list > 0)
    await page.locator(`tr[data-id="${id}"]`).getByRole('link', { name: 'retried' }).waitFor()
    reads.operation = 0
    reads.readiness = 0
    // It was read each second, and the readiness is read every two seconds.
    await until(() => reads.readiness > 2)
    assert.ok(reads.operation <= 1, `${reads.operation} reads`)
    await page.unrouteAll({ behavior: 'wait' })
    assert.deepEqual(complaints, [])
  })

  test('a job that fails on the screen shows its error', async () => {
    await world.setFaults('Runtime', { start_failure: 1 })
    const id = await world.startJob('failing', { status: 'processing' })
    const { page } = await world.open('/jobs')
    const row = page.locator(`tr[data-id="${id}"]`)
    await row.getByText('processing').waitFor()
    await world.setFaults('Runtime', { start_failure: 0 })
    await row.getByText('run failed').waitFor()
  })

  test('counts that may be higher have a plus and no trend; a bulk operation shows its skipped items and the command line', async () => {
    const id = await world.startJob('failing', { status: 'failed' })
    await world.request('POST', '/v1/operations', { action: 'check', ids: [id] })
    const { page, complaints } = await world.open('/failures')
    // More failures than a test makes.
    const change = async <Item extends object>(path: string, more: object, ofItem: object) =>
      page.route(`**/v1/${path}*`, async (route) => {
        const response = await route.fetch()
        const answer = (await response.json()) as { data: Item[] }
        const data = answer.data.map((item) => ({ ...item, ...ofItem }))
        await route.fulfill({ response, json: { ...answer, ...more, data } })
      })
    await change('failures', { at_least: true }, { count: 5_000, before: null })
    await page.reload()
    const group = page.getByRole('row').filter({ hasText: 'kaboom: upstream 500' })
    await group.getByRole('link', { name: '5,000+ jobs' }).waitFor()
    await page.getByText('There may be more in this time.').waitFor()
    assert.equal(await group.getByText('before').count(), 0)

    await change('callers', { at_least: ['requests', 'jobs'] }, { requests: 1_200, refused: 3, jobs: 5_000 })
    await page.getByRole('link', { name: 'Overview', exact: true }).click()
    const callers = page.getByRole('region', { name: 'Top callers' })
    await callers.getByText('Requests are those to the node that answered this page.').waitFor()
    const caller = callers.getByRole('row').filter({ hasText: 'ada@example.com' })
    for (const text of ['1,200+ requests', '3+ refused', '5,000+ jobs']) await caller.getByText(text).waitFor()

    const byRoot = { total: 5, done: 2, skipped: 3, created_by: 'root', created_by_kind: 'command_line' }
    await change('operations', {}, byRoot)
    await page.getByRole('link', { name: 'Bulk operations' }).click()
    const operation = page.getByRole('row').filter({ hasText: 'check' }).first()
    await operation.getByText('2 of 5, 3 skipped').waitFor()
    await operation.getByText('command line (root)').waitFor()
    assert.equal(await operation.getByRole('link', { name: 'root' }).count(), 0)
    await change('audit', {}, { actor: { kind: 'command_line', id: 'root' } })
    await page.getByRole('link', { name: 'Audit', exact: true }).click()
    await page.getByText('command line (root)').first().waitFor()
    await page.unrouteAll({ behavior: 'wait' })
    assert.deepEqual(complaints, [])
  })

  test('a bulk retry from a list without retried jobs repeats those too, if the operator asks for it', async () => {
    const ids = [await world.startJob('failing', { status: 'failed', user: 'grace' })]
    ids.push(await world.startJob('failing', { status: 'failed', user: 'grace' }))
    const [first] = ids
    const { created_by, created_at } = await world.request<{ created_by: string; created_at: string }>(
      'GET',
      `/jobs/${ids[1]}`,
    )
    await world.request('POST', `/jobs/${first}/retry`, {})
    const created_before = new Date(Date.parse(created_at) + 1).toISOString()
    const { page, complaints } = await world.open(
      `/jobs?${new URLSearchParams({ created_by, created_before, retried: 'false' })}`,
    )
    await page.getByRole('button', { name: 'Retry', exact: true }).click()
    await page.getByRole('dialog', { name: 'Retry: 1 job' }).waitFor()
    await page.getByLabel('Retry it again').check()
    await page.getByRole('dialog', { name: 'Retry: 2 jobs' }).waitFor()
    await page.getByRole('dialog').getByRole('button', { name: 'Retry', exact: true }).click()
    await page.getByText('retry: 2 of 2 (done)').waitFor()
    assert.deepEqual(complaints, [])
  })

  test('all failures of a bulk operation can be shown', async () => {
    const ids = Array.from({ length: 210 }, (_, n) => `job_none_${n + 1}`)
    const { id } = await world.request<{ id: string }>('POST', '/v1/operations', { action: 'check', ids })
    await until(async () => (await world.request<{ state: string }>('GET', `/v1/operations/${id}`)).state === 'done')
    const { page, complaints } = await world.open(`/operations?id=${id}`)
    const dialog = page.getByRole('dialog')
    await dialog.getByText('Why they failed').click()
    const shown = () => dialog.getByRole('listitem').count()
    assert.equal(await shown(), 100)
    await dialog.getByRole('button', { name: 'Show all failures' }).click()
    await until(async () => (await shown()) === 200)
    await dialog.getByRole('button', { name: 'Show more' }).click()
    await until(async () => (await shown()) === 210)
    await dialog.getByText(/^job_none_210$/).waitFor()
    assert.deepEqual(complaints, [])
  })
})
