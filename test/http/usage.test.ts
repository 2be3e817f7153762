import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { afterReading } from '../support/after-reading.ts'
import { assertError } from '../support/assert-error.ts'
import { type JobWorld, RUN_MS, type ShownJob, START_RUN, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { forEachService } from '../support/service.ts'

interface Tokens {
  input: number
  output: number
  total: number
}

interface Usage {
  period: string
  runs: number
  by_type: { type: string; runs: number; tokens: Tokens }[]
  tokens: Tokens
  limit: number | null
  remaining: number | null
  limit_tokens: number | null
  remaining_tokens: number | null
  own_limits: { runs: number | null; tokens: number | null }
}

const NONE = { input: 0, output: 0, total: 0 }
const newUser = () => `user-${randomUUID()}`

async function usageOf(world: JobWorld, sub: string, period?: string): Promise<Usage> {
  const query = period === undefined ? '' : `?period=${period}`
  const answer = await world.request<Usage>('GET', `/v1/usage${query}`, sub)
  assert.equal(answer.status, 200, answer.text)
  return answer.body
}

describe('usage', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under)

    test('the usage of a user without jobs is zero', async () => {
      const world = await shared()
      assert.deepEqual(await usageOf(world, newUser()), {
        period: '2026-01',
        runs: 0,
        by_type: [],
        tokens: NONE,
        limit: null,
        remaining: null,
        limit_tokens: null,
        remaining_tokens: null,
        own_limits: { runs: null, tokens: null },
      })
    })

    test('each job is counted once when it ends, however it ends, by type, with the tokens its graph reports', async () => {
      const world = await shared()
      const sub = newUser()
      const ask = { input: { messages: [{ role: 'user', content: 'one two three' }] }, sub }
      await world.start('agent', ask)
      await world.start('agent', ask)
      const usage = { input_tokens: 10, output_tokens: 20 }
      await world.start('summary', { sub, input: { prompt: 'x', usage } })
      await world.start('throwing', { sub })
      const cancelled = await world.start('report', { sub })
      const paused = await world.start('pausing', { sub })
      assert.equal((await usageOf(world, sub)).runs, 0, 'what runs does not count yet')
      await world.request('POST', `/jobs/${cancelled.id}/cancel`, sub)
      await world.pass(RUN_MS)
      assert.equal((await world.stored(cancelled.id)).status, 'cancelled')
      assert.equal((await world.stored(paused.id)).status, 'awaiting_input')
      const counted = await usageOf(world, sub)
      assert.deepEqual(counted.by_type, [
        { type: 'agent', runs: 2, tokens: { input: 6, output: 10, total: 16 } },
        { type: 'report', runs: 1, tokens: NONE },
        { type: 'summary', runs: 1, tokens: { input: 10, output: 20, total: 30 } },
        { type: 'throwing', runs: 1, tokens: NONE },
      ])
      assert.equal(counted.runs, 5)
      assert.deepEqual(counted.tokens, { input: 16, output: 30, total: 46 })
    })

    test('the usage is the same whether a callback or a check ended the job', async () => {
      const world = await shared()
      const [byCallback, byCheck] = [newUser(), newUser()]
      const input = { messages: [{ role: 'user', content: 'one two three' }] }
      await world.start('agent', { sub: byCallback, input })
      await world.pass(RUN_MS)
      world.runtime.setFaults({ drop_callbacks: 1 })
      const job = await world.start('agent', { sub: byCheck, input })
      await world.pass(RUN_MS)
      world.runtime.setFaults({ drop_callbacks: 0 })
      await world.get(job.id)
      assert.deepEqual(await usageOf(world, byCheck), await usageOf(world, byCallback))
      assert.equal((await usageOf(world, byCheck)).tokens.total, 8)
    })

    test('the usage of another user is shown only to a caller who may read users', async () => {
      const world = await shared()
      const sub = newUser()
      await world.start('report', { sub })
      await world.pass(RUN_MS)
      const reader = world.service.tokenFor({ sub: 'reader', scopes: ['read:users'] })
      const path = `/v1/users/${sub}/usage`
      const shown = await world.service.request<Usage>('GET', path, { token: reader })
      assert.deepEqual(shown.body, await usageOf(world, sub))
      const refused = await world.request('GET', path, sub)
      assertError(world.service, refused, { status: 403, code: 'forbidden' })
    })

    test('a job started by an admin for a user counts for that user', async () => {
      const world = await shared()
      const sub = newUser()
      const body = { type: 'report', input: {}, created_by: sub }
      await world.service.request('POST', '/jobs', { token: world.admin, body })
      await world.quiet()
      await world.pass(RUN_MS)
      assert.equal((await usageOf(world, sub)).runs, 1)
    })

    test('an invalid period is a 400', async () => {
      const world = await shared()
      for (const period of ['2026', '2026-13', '2026-00', '2026-1', 'now', '']) {
        const answer = await world.request('GET', `/v1/usage?period=${period}`, 'ada')
        assertError(world.service, answer, { status: 400, code: 'invalid_request', message: /^querystring\/period / })
      }
    })

    test('absurd token counts of a graph do not break the sums', async () => {
      const world = await shared()
      const sub = newUser()
      for (const tokens of [1e12, 9007199254740991, -5, 'many', 1e300]) {
        const usage = { input_tokens: tokens, output_tokens: 1 }
        await world.start('summary', { sub, input: { prompt: 'x', usage } })
      }
      await world.pass(RUN_MS)
      const { runs, tokens } = await usageOf(world, sub)
      assert.equal(runs, 5)
      assert.deepEqual(tokens, { input: 1e12, output: 5, total: 1e12 + 4 })
    })
  })
})

describe('the limit of runs', () => {
  forEachService((under) => {
    const LIMIT = 3
    const shared = sharedJobWorld(under, {
      env: { USAGE_LIMIT_RUNS: String(LIMIT) },
      clock: new ManualClock(Date.UTC(2026, 0, 31, 23, 59)),
    })
    const start = (world: JobWorld, sub: string, more: object = {}) =>
      world.request<ShownJob>('POST', '/jobs', sub, { body: { type: 'report', input: {} }, ...more })

    test('the limit does not refuse a caller that follows the same run again', async () => {
      const world = await startJobWorld(under, { env: { USAGE_LIMIT_RUNS: '1' } })
      const sub = newUser()
      const body = { type: 'report', ...(await world.startElsewhere({ user_id: sub })) }
      const first = await world.request('POST', '/jobs', sub, { body })
      const second = await world.request('POST', '/jobs', sub, { body })
      assert.deepEqual([first.status, second.status, second.body.id], [202, 202, first.body.id])
      const other = { type: 'report', ...(await world.startElsewhere({ user_id: sub })) }
      const refused = await world.request('POST', '/jobs', sub, { body: other })
      assertError(world.service, refused, { status: 429, code: 'usage_limit_exceeded' })
    })

    test('the limit counts ended and unfinished jobs, for each caller alone, and no job starts beyond it', async () => {
      const world = await shared()
      const [sub, other] = [newUser(), newUser()]
      assert.deepEqual((await usageOf(world, sub)).remaining, LIMIT)
      for (let n = 0; n < LIMIT; n++) {
        assert.equal((await start(world, sub)).status, 202)
        if (n === 0) {
          await world.quiet()
          await world.pass(RUN_MS)
        }
      }
      await world.quiet()
      const { runs, limit, remaining } = await usageOf(world, sub)
      assert.deepEqual({ runs, limit, remaining }, { runs: 1, limit: LIMIT, remaining: 0 }, 'what runs is spoken for')
      const elsewhere = await world.startElsewhere({ user_id: sub })
      const before = world.calls(START_RUN)
      for (const body of [
        { type: 'report', input: {} },
        { type: 'report', ...elsewhere },
      ]) {
        const refused = await world.request('POST', '/jobs', sub, { body })
        const message = `The limit of ${LIMIT} runs for 2026-01 is reached`
        assertError(world.service, refused, { status: 429, code: 'usage_limit_exceeded', message })
        const nextMonthMs = Date.UTC(2026, 1, 1)
        assert.equal(refused.headers['retry-after'], String(Math.ceil((nextMonthMs - world.clock.now()) / 1000)))
      }
      await world.quiet()
      assert.equal(world.calls(START_RUN), before)
      assert.equal((await start(world, other)).status, 202)
      await world.quiet()
      await world.pass(RUN_MS)
      assert.equal((await usageOf(world, sub)).remaining, 0)
    })

    test('the limit holds when many jobs start at once', async () => {
      const db = await under.engine.openDatabase({ waitsLong: true })
      const world = await startJobWorld(under, { db, env: { USAGE_LIMIT_RUNS: String(LIMIT) } })
      const sub = newUser()
      const answers = await Promise.all(Array.from({ length: 20 }, () => start(world, sub)))
      assert.equal(answers.filter(({ status }) => status === 202).length, LIMIT)
      for (const answer of answers.filter(({ status }) => status !== 202)) {
        assertError(world.service, answer, { status: 429, code: 'usage_limit_exceeded' })
      }
      await world.quiet()
    })

    test('a request that is repeated with its key does not count towards the limit', async () => {
      const world = await shared()
      const sub = newUser()
      const once = { headers: { 'idempotency-key': 'once' } }
      for (let n = 0; n < 5; n++) assert.equal((await start(world, sub, once)).status, 202)
      await world.quiet()
      assert.equal((await start(world, sub)).status, 202)
      await world.quiet()
    })

    test('the limit is counted anew with each month', async () => {
      const world = await shared()
      const sub = newUser()
      for (let n = 0; n < LIMIT; n++) assert.equal((await start(world, sub)).status, 202)
      await world.quiet()
      await world.pass(RUN_MS)
      assert.equal((await start(world, sub)).status, 429)
      await world.pass(60_000)
      const fresh = await usageOf(world, sub)
      assert.deepEqual([fresh.period, fresh.runs], ['2026-02', 0])
      assert.equal((await start(world, sub)).status, 202)
      await world.quiet()
      assert.equal((await usageOf(world, sub, '2026-01')).runs, LIMIT)
    })
  })
})

describe('the limit of runs, where others commit meanwhile', () => {
  forEachService((under) => {
    // On SQLite no other connection commits while a transaction is open.
    if (under.engine.name === 'sqlite') return
    test('the limit holds when a job ends while a start counts', async () => {
      const sub = newUser()
      let between: (() => Promise<unknown>) | undefined
      const db = afterReading(await under.engine.openDatabase(), /from usage_counters\b/, async () => {
        const happens = between
        between = undefined
        await happens?.()
      })
      const world = await startJobWorld(under, { db, env: { USAGE_LIMIT_RUNS: '1' } })
      const { thread_id, id } = await world.start('report', { sub })
      const { run_id } = await world.stored(id)
      between = () => world.callback('report', { thread_id, run_id, status: 'success', values: { report: 1 } })
      const refused = await world.request('POST', '/jobs', sub, { body: { type: 'report', input: {} } })
      assert.equal((await world.stored(id)).status, 'completed')
      assertError(world.service, refused, { status: 429, code: 'usage_limit_exceeded' })
    })
  })
})
