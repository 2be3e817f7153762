import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { torture } from '../../verify/torture/torture.ts'
import { needsPostgres, needsRedis } from '../support/services.ts'

const SHORT = { jobs: 60, kills: 4, hurry: true }

/** The same run from the command line, longer and with a table: `npm run torture -- --jobs N --kills K`. */
describe('kill -9 at the worst moments loses nothing and doubles nothing', { concurrency: true }, () => {
  test('one node on SQLite loses no job and does none twice', async () => {
    const { violations, folder } = await torture({ ...SHORT, engine: 'sqlite', seed: 1 })
    const found = violations.filter(({ count }) => count > 0)
    assert.deepEqual(found, [], `logs and findings: ${folder}`)
  })

  test('two nodes on PostgreSQL lose no job and do none twice', {
    skip: needsPostgres().skip || needsRedis().skip,
  }, async () => {
    const { violations, folder } = await torture({ ...SHORT, engine: 'postgres', seed: 5 })
    const found = violations.filter(({ count }) => count > 0)
    assert.deepEqual(found, [], `logs and findings: ${folder}`)
  })
})
