import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Database } from '../../src/db/database.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { rowsOf } from '../../src/db/rows.ts'
import { sql } from '../../src/db/sql.ts'
import { needsChromium } from '../support/browser.ts'
import { ConsoleWorld } from '../support/console.ts'
import { needsPostgres, sharedMigratedDatabase } from '../support/services.ts'

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
})
