import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { besidesDeleted, needsChromium, openPage } from '../support/browser.ts'
import { ConsoleWorld, findAxeFaults, signIn } from '../support/console.ts'
import { until } from '../support/until.ts'

const said = (page: Page, text: string | RegExp) => page.locator('.toast').filter({ hasText: text }).waitFor()
const fact = (page: Page) => page.getByRole('region', { name: 'Facts' })
const confirm = async (page: Page, label: string) => {
  const dialog = page.getByRole('dialog')
  await dialog.getByRole('button', { name: label, exact: true }).click()
  await dialog.waitFor({ state: 'detached' })
}

describe('jobs in the console', needsChromium(), () => {
  let world: ConsoleWorld
  before(async () => {
    world = await ConsoleWorld.start()
  })
  after(() => world.close())

  const jobsOf = async (query: string) =>
    (await world.request<{ data: { id: string; retry_of: string | null }[] }>('GET', `/jobs?${query}`)).data

  test('a running job is checked and cancelled, and ends on the screen without a reload', async () => {
    const id = await world.startJob('slow', { status: 'generating', input: { ms: 3_600_000 } })
    const { page, complaints } = await world.open(`/jobs/${id}`)
    await page.getByRole('button', { name: 'Check now' }).click()
    await said(page, 'The runtime was asked')
    await page.getByRole('button', { name: 'Cancel', exact: true }).click()
    await page.getByText('The run is stopped').waitFor()
    await confirm(page, 'Cancel the job')
    await said(page, 'Cancellation was requested')
    await fact(page).getByText('cancelled').waitFor()
    await page.getByRole('region', { name: 'Timeline' }).getByText('→ cancelled').waitFor()
    assert.deepEqual(complaints, [])
  })

  test('a question is answered with the form of its schema', async () => {
    const id = await world.startJob('review', { status: 'awaiting_input', input: { title: 'Launch' } })
    const { page, complaints } = await world.open('/waiting')
    const form = page.getByRole('region', { name: `Question of ${id}` })
    await form.getByText('Publish it?').waitFor()
    await form.getByRole('checkbox', { name: 'Publish it' }).check()
    await form.getByLabel('Channel').selectOption('mail')
    await form.getByLabel('Copies').fill('12')
    await form.getByLabel('Note').fill('Before noon')
    await form.getByRole('button', { name: 'Send the answer' }).click()
    await said(page, 'The answer was sent')
    await world.untilJob(id, 'completed')
    const { output } = await world.request<{ output: { answer: unknown } }>('GET', `/jobs/${id}`)
    assert.deepEqual(output.answer, { publish: true, channel: 'mail', copies: 12, note: 'Before noon' })
    await page.getByText('No job waits for an answer').waitFor()
    assert.deepEqual(complaints, [])
  })

  test('a job that an admin started for a user shows both, and its configuration', async () => {
    const body = { type: 'whoami', input: {}, configurable: { language: 'Plattdeutsch' }, created_by: 'user-7' }
    const { id, actor } = await world.request<{ id: string; actor: string }>('POST', '/jobs', body)
    const { page, complaints } = await world.open(`/jobs/${id}`)
    await fact(page).getByText('user-7').waitFor()
    await fact(page).getByText('Asked by').waitFor()
    await fact(page).getByRole('link', { name: 'admin@example.com' }).waitFor()
    assert.equal(await fact(page).getByRole('link', { name: 'admin@example.com' }).getAttribute('title'), actor)
    await page.getByRole('heading', { name: 'Configuration' }).waitFor()
    await page.getByText('Plattdeutsch').first().waitFor()
    assert.deepEqual(await findAxeFaults(page), [])
    assert.deepEqual(complaints, [])
  })

  test('an ended job is retried, and deleted', async () => {
    const id = await world.startJob('failing', { status: 'failed' })
    const { page, complaints } = await world.open(`/jobs/${id}`)
    await page.getByText('kaboom: upstream 500').first().waitFor()
    await page.getByRole('button', { name: 'Retry' }).click()
    await confirm(page, 'Retry')
    await said(page, 'The new job was started')
    await page.waitForURL((url) => !url.pathname.endsWith(id))
    await fact(page).getByRole('link', { name: id }).click()
    await page.waitForURL((url) => url.pathname.endsWith(id))
    const [retry, ...others] = (await jobsOf('type=failing')).filter((job) => job.retry_of === id)
    assert.equal(others.length, 0)
    await fact(page)
      .getByRole('link', { name: retry?.id ?? '' })
      .waitFor()
    await page.getByRole('button', { name: 'Retry' }).click()
    await page.getByRole('dialog').getByText('It was retried already, as').waitFor()
    await confirm(page, 'Cancel')

    await page.getByRole('button', { name: 'Delete' }).click()
    assert.deepEqual(complaints, [])
    await confirm(page, 'Delete')
    await said(page, 'The job was deleted')
    await page.getByRole('heading', { level: 1, name: 'Jobs' }).waitFor()
    assert.ok(!(await jobsOf('type=failing')).some((job) => job.id === id))
    assert.deepEqual(besidesDeleted(complaints, id), [])
  })

  test('a job that is deleted while its page is open stays on the screen, and the page says so', async () => {
    const id = await world.startJob('failing', { status: 'failed' })
    const { page } = await world.open(`/jobs/${id}`)
    await fact(page).waitFor()
    await world.request('DELETE', `/jobs/${id}`)
    await page.getByRole('alert').filter({ hasText: 'This was deleted while the page was open.' }).waitFor()
    await fact(page).getByText('failed').waitFor()
    for (const name of ['Retry', 'Delete']) await page.getByRole('button', { name }).waitFor({ state: 'detached' })
    assert.deepEqual(await findAxeFaults(page), [])
    const { page: later } = await world.open(`/jobs/${id}`)
    await later.getByText('No such job. It may have been deleted.').waitFor()
  })

  test('a request whose response is lost is repeated, and the job is retried only once', async () => {
    const id = await world.startJob('failing', { status: 'failed' })
    const { page } = await world.open(`/jobs/${id}`)
    const keys: string[] = []
    await page.route(`**/jobs/${id}/retry`, async (route) => {
      keys.push(route.request().headers()['idempotency-key'] ?? '')
      if (keys.length > 1) return route.continue()
      // The service handles the request, but the connection breaks before the response arrives.
      await route.fetch()
      return route.abort('connectionreset')
    })
    await page.getByRole('button', { name: 'Retry' }).click()
    await confirm(page, 'Retry')
    await said(page, 'The new job was started')
    assert.equal(keys.length, 2)
    assert.equal(new Set(keys).size, 1)
    assert.equal((await jobsOf('type=failing')).filter((job) => job.retry_of === id).length, 1)
  })

  test('an action without an answer that the operator repeats happens once', async () => {
    const id = await world.startJob('failing', { status: 'failed' })
    const { page } = await world.open(`/jobs/${id}`)
    const keys = new Set<string>()
    let isCut = true
    await page.route(`**/jobs/${id}/retry`, async (route) => {
      keys.add(route.request().headers()['idempotency-key'] ?? '')
      if (!isCut) return route.continue()
      await route.fetch()
      return route.abort('connectionreset')
    })
    await page.getByRole('button', { name: 'Retry' }).click()
    await confirm(page, 'Retry')
    await said(page, 'cannot be reached')
    isCut = false
    await page.getByRole('button', { name: 'Retry' }).click()
    await confirm(page, 'Retry')
    await said(page, 'The new job was started')
    assert.equal(keys.size, 1)
    assert.equal((await jobsOf('type=failing')).filter((job) => job.retry_of === id).length, 1)
  })

  test('a token that expires during an action is renewed, and the action happens once', async () => {
    const id = await world.startJob('failing', { status: 'failed' })
    const { page } = await world.open(`/jobs/${id}`)
    let attempts = 0
    await page.route(`**/jobs/${id}/retry`, (route) => {
      attempts += 1
      if (attempts > 1) return route.continue()
      return route.fulfill({
        status: 401,
        json: { error: { code: 'unauthorized', message: 'Invalid or expired token' } },
      })
    })
    await page.getByRole('button', { name: 'Retry' }).click()
    await confirm(page, 'Retry')
    await said(page, 'The new job was started')
    assert.equal(attempts, 2)
    assert.equal((await jobsOf('type=failing')).filter((job) => job.retry_of === id).length, 1)
  })

  test('the console keeps its data while it is offline, and an action fails without effect', async () => {
    const id = await world.startJob('failing', { status: 'failed' })
    const { page } = await world.open(`/jobs/${id}`)
    await fact(page).waitFor()
    await page.context().setOffline(true)
    await page.getByRole('alert').filter({ hasText: 'This browser is offline' }).waitFor()
    await fact(page).getByText('failed').waitFor()
    assert.deepEqual(await findAxeFaults(page), [])
    await page.getByRole('button', { name: 'Delete' }).click()
    await confirm(page, 'Delete')
    await said(page, 'cannot be reached')
    await page.context().setOffline(false)
    await page.getByRole('alert').filter({ hasText: 'offline' }).waitFor({ state: 'detached' })
    await world.untilJob(id, 'failed')
  })

  test('if two operators act on a job, the second gets a conflict and sees the new state', async () => {
    const id = await world.startJob('slow', { status: 'generating', input: { ms: 3_600_000 } })
    const { page } = await world.open(`/jobs/${id}`)
    await page.getByRole('button', { name: 'Cancel', exact: true }).click()
    // The page still shows the old state when the other operator acts.
    await page.route(`**/jobs/${id}`, (route) =>
      route.request().method() === 'GET' ? route.abort() : route.continue(),
    )
    await world.request('POST', `/jobs/${id}/cancel`)
    await world.untilJob(id, 'cancelled')
    await page.unroute(`**/jobs/${id}`)
    await confirm(page, 'Cancel the job')
    await said(page, 'The job is cancelled already')
    await fact(page).getByText('cancelled').waitFor()
    await page.getByRole('button', { name: 'Retry' }).waitFor()
  })

  test('the list filters by its address, updates rows in place and counts new jobs', async () => {
    const running = await world.startJob('slow', { status: 'generating', input: { ms: 3_600_000 } })
    const { page, complaints } = await openPage(`${world.url}/console/jobs?type=slow`)
    // For the page no time passes: what it has read is never too old, so it reads the list only when it is asked to.
    await page.clock.setFixedTime(Date.now())
    const following = page.waitForResponse((response) => new URL(response.url()).pathname === '/v1/events')
    await signIn(page, 'admin')
    const row = page.locator(`tr[data-id="${running}"]`)
    await row.getByText(/processing|generating/).waitFor()
    await page.getByRole('link', { name: /^cancelled/ }).click()
    await row.waitFor({ state: 'detached' })
    assert.equal(new URL(page.url()).searchParams.get('status'), 'cancelled')
    await page.goBack()
    await row.waitFor()
    await following
    // Neither has the type that the filter asks for.
    for (const title of ['One', 'Two']) await world.startJob('report', { status: 'completed', input: { title } })
    await world.startJob('slow', { status: 'generating', input: { ms: 3_600_000 } })
    await page.getByRole('button', { name: /^\d+ new jobs?$/ }).waitFor()
    await page.getByRole('button', { name: '1 new job', exact: true }).waitFor()
    await world.request('POST', `/jobs/${running}/cancel`)
    await row.getByText('cancelled').waitFor()
    const before = await page.locator('tbody tr').count()
    await page.getByRole('button', { name: '1 new job', exact: true }).click()
    await until(async () => (await page.locator('tbody tr').count()) === before + 1)
    await page.getByRole('button', { name: /new job/ }).waitFor({ state: 'detached' })

    await page.getByRole('button', { name: 'Save this view' }).click()
    await page.getByRole('dialog').getByLabel('Name').fill('Slow ones')
    await confirm(page, 'Save')
    await page.getByRole('link', { name: 'All', exact: true }).click()
    await page.getByRole('button', { name: 'Clear filters' }).click()
    await page.getByRole('link', { name: 'Slow ones' }).click()
    await page.waitForURL((url) => url.searchParams.get('type') === 'slow')
    assert.deepEqual(complaints, [])
    await page.context().close()
  })

  test('many jobs are retried after the service has counted them, each once', async () => {
    const { data } = await world.request<{ data: { id: string }[] }>('GET', '/jobs?status=failed&limit=100')
    for (let count = data.length; count < 12; count++) await world.startJob('failing', { status: 'failed' })
    const failed = (await jobsOf('status=failed&type=failing&retried=false&limit=100')).map(({ id }) => id)
    const { page, complaints } = await world.open('/jobs?status=failed&type=failing&retried=false')
    await page.getByText('All that fit these filters').waitFor()
    await page.getByRole('button', { name: 'Retry', exact: true }).click()
    await page.getByRole('dialog', { name: `Retry: ${failed.length} jobs` }).waitFor()
    await page.getByText('For each job, a new job with the same input starts.').waitFor()
    await confirm(page, 'Retry')
    await page.getByText(`retry: ${failed.length} of ${failed.length} (done)`).waitFor()
    const retried = (await jobsOf('type=failing&limit=100')).flatMap(({ retry_of }) => retry_of ?? [])
    for (const id of failed) assert.equal(retried.filter((one) => one === id).length, 1, id)

    const [first = ''] = failed
    await page.goto(`${world.url}/console/jobs?type=failing`)
    await page.getByLabel(`Select ${first}`).check()
    await page.getByRole('button', { name: 'Retry', exact: true }).click()
    const dialog = page.getByRole('dialog')
    await page.getByRole('dialog', { name: 'Retry: 0 jobs' }).waitFor()
    await dialog.getByText('1 job was retried already').waitFor()
    assert.ok(await dialog.getByRole('button', { name: 'Retry', exact: true }).isDisabled())
    assert.deepEqual(await findAxeFaults(page), [])
    await dialog.getByRole('checkbox', { name: 'Retry it again' }).check()
    await page.getByRole('dialog', { name: 'Retry: 1 job' }).waitFor()
    await confirm(page, 'Retry')
    await page.getByText('retry: 1 of 1 (done)').waitFor()
    const again = (await jobsOf('type=failing&limit=100')).filter(({ retry_of }) => retry_of === first)
    assert.equal(again.length, 2)
    await page.locator(`tr[data-id="${first}"]`).getByRole('link', { name: 'retried' }).waitFor()
    assert.deepEqual(complaints, [])
  })

  test('the keyboard moves, selects, opens, and goes to a page or an id', async () => {
    await world.startJob('report', { status: 'completed', input: { title: 'One' } })
    const newest = await world.startJob('report', { status: 'completed', input: { title: 'Two' } })
    const { page } = await world.open('/jobs')
    const rows = page.locator('tbody tr')
    await rows.first().waitFor()
    for (const key of ['j', 'j', 'k', 'x']) await page.keyboard.press(key)
    await page.getByText('1 selected').waitFor()
    assert.ok(await rows.first().getByRole('checkbox').isChecked())
    await page.keyboard.press('Enter')
    await page.waitForURL((url) => url.pathname.endsWith(newest))

    await page.keyboard.press('?')
    await page.getByRole('dialog', { name: 'Keyboard' }).waitFor()
    assert.deepEqual(await findAxeFaults(page), [])
    await page.keyboard.press('Escape')
    await page.getByRole('dialog', { name: 'Keyboard' }).waitFor({ state: 'detached' })
    await page.keyboard.press('Control+k')
    await page.getByRole('dialog', { name: 'Search' }).getByRole('textbox').waitFor()
    await page.keyboard.type('audit')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { level: 1, name: 'Audit' }).waitFor()

    const { run_id: run } = await world.request<{ run_id: string }>('GET', `/jobs/${newest}`)
    await page.keyboard.press('/')
    await page.getByRole('dialog', { name: 'Search' }).getByRole('textbox').waitFor()
    await page.keyboard.type(run)
    await page.keyboard.press('Enter')
    await page.waitForURL((url) => url.pathname.endsWith(newest))
  })
})
