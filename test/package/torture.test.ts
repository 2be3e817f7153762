import assert from 'node:assert/strict'
import { test } from 'node:test'
import { torture } from '../../verify/torture/torture.ts'
import { needsPostgres, needsRedis } from '../support/services.ts'

test('two nodes of the build on PostgreSQL lose no job and do none twice under kill -9', {
  skip: needsPostgres().skip || needsRedis().skip,
}, async () => {
  const { violations, folder } = await torture({ jobs: 30, kills: 2, hurry: true, engine: 'postgres', seed: 5 })
  const found = violations.filter(({ count }) => count > 0)
  assert.deepEqual(found, [], `logs and findings: ${folder}`)
})
