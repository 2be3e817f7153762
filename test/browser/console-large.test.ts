import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { firstIdAt } from '../../src/core/ids.ts'
import type { Database } from '../../src/db/database.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { rowsOf } from '../../src/db/rows.ts'
import { sql } from '../../src/db/sql.ts'
import { needsChromium, openPage } from '../support/browser.ts'
import { ConsoleWorld, signIn } from '../support/console.ts'
import { needsPostgres, sharedMigratedDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'

const ENTRIES = 20_000
const OUTPUT_BYTES = 9 * 1024 * 1024
const EXACT = '12345678901234567890.10'

/** On PostgreSQL, where a test can write into the database of a running service. */
describe('large data in the console', { skip: needsChromium().skip || needsPostgres().skip }, () => {
  let world: ConsoleWorld
  let db: Database
  let drop: () => Promise<void>
  before(async () => {
    const database = await sharedMigratedDatabase()
    drop = database.drop
    world = await ConsoleWorld.start({ DATABASE_URL: database.url })
    db = await openPostgres({ url: database.url })
  })
  after(async () => {
    await world.close()
    await db.close()
    await drop()
  })

  test('an output of 9 MB opens branch by branch, and numbers keep every digit', async () => {
    const id = await world.startJob('report', { status: 'completed', input: { title: 'Large' } })
    const rows = Array.from({ length: 20_000 }, (_, n) => `{"n":${n},"text":"${'x'.repeat(480)}"}`)
    const output = `{"exact":${EXACT},"rows":[${rows.join(',')}]}`
    assert.ok(output.length > OUTPUT_BYTES)
    await db.query(sql`update jobs set output = ${output} where id = ${id}`)
    const { page, complaints } = await world.open('/jobs')
    await page.locator(`tr[data-id="${id}"] a`).first().click()
    const shown = page.getByRole('region', { name: 'Output' })
    await shown.getByText(EXACT).waitFor()
    await shown.getByRole('button', { name: '[ 20000 ]' }).click()
    await shown.getByRole('button', { name: '19900 more' }).waitFor()
    assert.equal(await shown.locator('li').count(), 2 + 100 + 1)
    await page.getByRole('link', { name: 'Audit' }).click()
    await page.getByRole('heading', { level: 1, name: 'Audit' }).waitFor()
    assert.deepEqual(complaints, [])
  })

  test('a timeline of 20,000 entries is read page by page, and the page answers a click', async () => {
    const id = await world.startJob('report', { status: 'completed', input: { title: 'Long' } })
    const startMs = Date.parse('2026-01-01T00:00:00Z')
    const entries = Array.from({ length: ENTRIES }, (_, n) => ({
      id: `tml_${String(n).padStart(26, '0')}`,
      at: startMs + n * 1_000,
    }))
    await db.query(sql`
      insert into job_timeline (id, job_id, at, kind, via, detail, times, last_at)
      select r.id, ${id}, r.at, 'check', 'sweep', '{}', 1, r.at
      from ${rowsOf('postgres', entries, { id: 'text', at: 'bigint' })} as r`)
    const { page, complaints } = await world.open('/jobs')
    await page.locator(`tr[data-id="${id}"] a`).first().click()
    const timeline = page.getByRole('region', { name: 'Timeline' })
    for (let pages = 1; pages <= 20; pages++) {
      await timeline
        .locator('li')
        .nth(pages * 100 - 1)
        .waitFor()
      await timeline.getByRole('button', { name: 'Load more' }).click()
    }
    await page.getByRole('link', { name: 'Audit' }).click()
    await page.getByRole('heading', { level: 1, name: 'Audit' }).waitFor()
    assert.deepEqual(complaints, [])
  })

  test('a job that begins to fit the filters between the jobs on the screen is counted as new', async () => {
    const nowMs = Date.now()
    const jobs = Array.from({ length: 210 }, (_, n) => ({
      id: `${firstIdAt('job', nowMs - n * 1_000)}${'0'.repeat(16)}`,
      status: n === 150 ? 'cancelled' : 'failed',
    }))
    const added = rowsOf('postgres', jobs, { id: 'text', status: 'text' })
    await db.query(sql`
      insert into jobs (id, type, status, thread_id, run_seq, check_attempts, deadline_at, created_at, updated_at)
      select id, 'failing', status, id, 1, 0, 0, 0, 0 from ${added} as r`)
    const { page, complaints } = await openPage(`${world.url}/console/jobs?status=failed`)
    // For the page no time passes, so it reads the list only when it is asked to.
    await page.clock.setFixedTime(nowMs)
    const following = page.waitForResponse((response) => new URL(response.url()).pathname === '/v1/events')
    await signIn(page, 'admin')
    for (let rows = 50; rows < 200; rows += 50) {
      await until(async () => (await page.locator('tbody tr').count()) === rows)
      await page.getByRole('button', { name: 'Load more' }).click()
    }
    await until(async () => (await page.locator('tbody tr').count()) === 200)
    await following
    await db.query(sql`update jobs set status = 'failed' where id = ${jobs[150]?.id ?? ''}`)
    await world.startJob('failing', { status: 'failed' })
    await page.getByRole('button', { name: '2 new jobs', exact: true }).waitFor()
    await page.context().close()
    assert.deepEqual(complaints, [])
  })
})
