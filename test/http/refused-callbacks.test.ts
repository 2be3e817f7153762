import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { silentLog } from '../../src/core/log.ts'
import type { RefusedCallback } from '../../src/jobs/callbacks/callback-schema.ts'
import { type JobWorld, RUN_MS, startJobWorld, WEBHOOK_SECRET } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

const WRITE_MS = 5_000
const MINUTE_MS = 60_000

interface Page {
  data: RefusedCallback[]
  has_more: boolean
  next_cursor: string | null
}

async function refused(world: JobWorld, query = ''): Promise<Page> {
  const token = world.service.tokenFor({ sub: 'reader', scopes: ['read:operations'] })
  const answer = await world.service.request<Page>('GET', `/v1/refused-callbacks${query}`, { token })
  assert.equal(answer.status, 200, answer.text)
  return answer.body
}

/** The refusals, by their reason and path, once they are written. */
async function written(world: JobWorld, count: number): Promise<RefusedCallback[]> {
  let found: RefusedCallback[] = []
  await until(async () => {
    await world.pass(WRITE_MS)
    found = (await refused(world, '?limit=100')).data
    return found.reduce((sum, row) => sum + row.count, 0) >= count
  })
  return found
}

async function callbacksCheck(world: JobWorld): Promise<{ state: string; detail: string | null } | undefined> {
  const { body } = await world.service.request<{ checks: Record<string, { state: string; detail: string | null }> }>(
    'GET',
    '/readyz',
  )
  return body.checks.callbacks
}

/** Starts jobs, lets their runs end, and reads them. */
async function endJobs(world: JobWorld, count: number, beforeEnd = () => {}): Promise<string[]> {
  const ids: string[] = []
  for (let n = 0; n < count; n++) ids.push((await world.start('report')).id)
  beforeEnd()
  await world.pass(RUN_MS)
  for (const id of ids) assert.equal((await world.get(id)).status, 'completed')
  return ids
}

function collectWarnings() {
  const warnings: object[] = []
  const warn = (fields: object, event: string) => {
    if (event === 'callbacks.refused') warnings.push(fields)
  }
  return { warnings, log: { ...silentLog, warn } }
}

describe('refused callbacks', () => {
  forEachService((under) => {
    test('after the secret is changed on one side, the list, one log line a minute and /readyz show it', async () => {
      const { warnings, log } = collectWarnings()
      const world = await startJobWorld(under, { log })
      const { callbackAuthenticity } = world.service.services
      assert.deepEqual((await refused(world)).data, [])
      const ids = await endJobs(world, 6, () => callbackAuthenticity.useSecrets(['another-secret']))
      const [row, ...others] = await written(world, 6)
      assert.deepEqual(others, [])
      assert.ok(row)
      assert.deepEqual(
        [row.reason, row.path, row.address, row.count],
        ['wrong_token', '/webhooks/jobs/report', '127.0.0.1', 6],
      )
      assert.ok(ids.includes(row.job_id ?? ''))
      assert.deepEqual((await refused(world, `?id=${row.id}`)).data, [row])
      assert.deepEqual((await refused(world, '?id=rcb_none')).data, [])
      assert.deepEqual(Object.keys(row).sort(), [
        'address',
        'count',
        'first_at',
        'id',
        'job_id',
        'last_at',
        'path',
        'reason',
      ])
      assert.deepEqual(warnings, [{ reasons: { wrong_token: 6 } }])

      await world.callback('report', {}, { headers: { 'x-webhook-secret': WEBHOOK_SECRET } })
      await written(world, 7)
      assert.equal(warnings.length, 1, 'one line a minute')
      await world.pass(MINUTE_MS)
      assert.deepEqual(warnings[1], { reasons: { wrong_secret: 1 } })

      const missed = await callbacksCheck(world)
      assert.equal(missed?.state, 'degraded')
      assert.match(missed?.detail ?? '', /^6 of 6 jobs that ended in the last 5 minutes did so without their callback/)

      callbackAuthenticity.useSecrets(['another-secret', WEBHOOK_SECRET])
      await endJobs(world, 7)
      await world.pass(15_000)
      assert.deepEqual(await callbacksCheck(world), { state: 'ok', detail: null, since: null })
    })

    test('a deleted job is not named any more', async () => {
      const world = await startJobWorld(under)
      const [id] = await endJobs(world, 1, () => world.service.services.callbackAuthenticity.useSecrets(['another']))
      assert.equal((await written(world, 1))[0]?.job_id, id)
      assert.equal((await world.request('DELETE', `/jobs/${id}`, 'ada')).status, 204)
      assert.equal((await refused(world)).data[0]?.job_id, null)
    })

    test('few missed callbacks prove nothing, and neither do callbacks that came after a read', async () => {
      const few = await startJobWorld(under)
      few.runtime.setFaults({ drop_callbacks: 1 })
      await endJobs(few, 4)
      await few.pass(15_000)
      assert.equal((await callbacksCheck(few))?.state, 'ok')
      await endJobs(few, 1)
      await few.pass(15_000)
      assert.equal((await callbacksCheck(few))?.state, 'degraded')
      await few.leap(5 * MINUTE_MS)
      assert.equal((await callbacksCheck(few))?.state, 'ok', 'the ends are older than five minutes')

      const late = await startJobWorld(under)
      late.runtime.setFaults({ late_callbacks_ms: 3_000 })
      const ids: string[] = []
      for (let n = 0; n < 6; n++) ids.push((await late.start('report')).id)
      // Not `pass`, which waits for the callbacks.
      await late.clock.advance(RUN_MS)
      for (const id of ids) assert.equal((await late.get(id)).settled_by, 'read')
      await late.pass(15_000)
      assert.equal((await callbacksCheck(late))?.state, 'ok')
    })

    test('each refusal has its reason, and an unknown type or job does not appear', async () => {
      const world = await startJobWorld(under)
      const body = { thread_id: crypto.randomUUID(), run_id: crypto.randomUUID(), status: 'success' }
      const secret = { 'x-webhook-secret': WEBHOOK_SECRET }
      const signed = { 'webhook-id': 'a', 'webhook-timestamp': '1', 'webhook-signature': 'v1,abc' }
      const unknown = { query: { token: 'wrong', job_id: 'job_0000000000000000000000000x' }, headers: {} }
      assert.equal((await world.callback('report', body, unknown)).status, 401)
      assert.equal((await world.callback('agent', body, { headers: { authorization: 'Bearer wrong' } })).status, 401)
      assert.equal((await world.callback('report', body, { headers: signed })).status, 401)
      assert.equal((await world.callback('report', body, { headers: {} })).status, 401)
      assert.equal((await world.callback('guessed', body, { headers: secret })).status, 404)
      assert.equal((await world.callback('report', body, { raw: 'no JSON', headers: secret })).status, 400)
      assert.equal((await world.callback('report', body, { headers: secret })).status, 200)
      const rows = await written(world, 6)
      assert.deepEqual(rows.map(({ reason, path, job_id }) => [reason, path, job_id].join(' ')).sort(), [
        'no_credential /webhooks/jobs/report ',
        'unknown_type /webhooks/jobs/{type} ',
        'unreadable /webhooks/jobs/report ',
        'wrong_secret /webhooks/agent ',
        'wrong_signature /webhooks/jobs/report ',
        'wrong_token /webhooks/jobs/report ',
      ])
      const first = await refused(world, '?limit=4')
      assert.deepEqual([first.data.length, first.has_more], [4, true])
      const second = await refused(world, `?limit=4&cursor=${first.next_cursor}`)
      assert.equal(new Set([...first.data, ...second.data].map(({ id }) => id)).size, 6)
    })

    test('many addresses share a row once a hundred have one', async () => {
      const world = await startJobWorld(under, { env: { TRUST_PROXY: '127.0.0.1' } })
      for (let n = 0; n < 130; n++) {
        await world.callback('report', {}, { headers: { 'x-forwarded-for': `10.0.${n}.1` } })
      }
      await written(world, 100)
      const rows = (await refused(world, '?limit=100')).data
      const rest = await refused(world, `?limit=100&cursor=${(await refused(world, '?limit=100')).next_cursor}`)
      const all = [...rows, ...rest.data]
      assert.equal(all.length, 101)
      assert.deepEqual(
        all.filter(({ address }) => address === 'others').map(({ count }) => count),
        [30],
      )
    })
  })
})
