import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { Transaction } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import { recordUsage } from '../../src/jobs/settlement/usage-of.ts'
import { saveLimits } from '../../src/usage/limit-store.ts'
import { lockFreeUsage, lockUsage } from '../../src/usage/usage-store.ts'
import { assertError } from '../support/assert-error.ts'
import { openStream } from '../support/event-stream.ts'
import { type JobWorld, RUN_MS, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { forEachService, forEachServiceAndVariant } from '../support/service.ts'
import { until } from '../support/until.ts'

interface Limits {
  runs: number | null
  tokens: number | null
}

interface Usage {
  runs: number
  limit: number | null
  remaining: number | null
  limit_tokens: number | null
  remaining_tokens: number | null
  own_limits: Limits
}

interface Reached {
  sub: string
  period: string
  threshold: number
  runs: { used: number; limit: number | null }
  tokens: { used: number; limit: number | null }
}

const NONE: Limits = { runs: null, tokens: null }
const PERIOD = '2026-01'
const newUser = () => `user-${randomUUID()}`
const pathOf = (sub: string) => `/v1/users/${sub}/limits`

const put = (world: JobWorld, sub: string, body: unknown) =>
  world.service.request<Limits>('PUT', pathOf(sub), { token: world.admin, body })

async function limit(world: JobWorld, sub: string, limits: Partial<Limits>): Promise<void> {
  const answer = await put(world, sub, { ...NONE, ...limits })
  assert.deepEqual([answer.status, answer.body], [200, { ...NONE, ...limits }], answer.text)
}

const start = (world: JobWorld, sub: string, body: object = { type: 'report', input: {} }) =>
  world.request('POST', '/jobs', sub, { body })

/** Starts jobs of this type and waits until they have ended. */
async function finish(world: JobWorld, sub: string, { count = 1, type = 'report', tokens = 0 } = {}): Promise<void> {
  const input = { prompt: 'x', usage: { input_tokens: tokens, output_tokens: 0 } }
  for (let n = 0; n < count; n++) await world.start(type, { sub, input })
  await world.pass(RUN_MS)
}

type Shown = Usage & { period: string; by_type: unknown; tokens: unknown }

async function usageOf(world: JobWorld, sub: string): Promise<Usage> {
  const { period: _p, by_type: _b, tokens: _t, ...usage } = (await world.request<Shown>('GET', '/v1/usage', sub)).body
  return usage
}

/** The announced thresholds of a user, as period, percentage, runs and tokens. */
async function announced(world: JobWorld, sub: string): Promise<[string, number, number, number][]> {
  const rows = await world.db.query<{ data: string }>(
    sql`select data from events where type = 'usage.threshold' and subject = ${sub} order by seq`,
  )
  return rows.map(({ data }) => {
    const { period, threshold, runs, tokens } = JSON.parse(data) as Reached
    return [period, threshold, runs.used, tokens.used]
  })
}

const thresholdsOf = async (world: JobWorld, sub: string) => (await announced(world, sub)).map(([, percent]) => percent)

const tooMany = (what: string) =>
  ({ status: 429, code: 'usage_limit_exceeded', message: `The limit of ${what} for ${PERIOD} is reached` }) as const

describe('the limits of a user', () => {
  forEachServiceAndVariant((under) => {
    const shared = sharedJobWorld(under)

    test('a limit of runs counts ended and unfinished jobs, for this user alone, and refuses start, follow and retry', async () => {
      const world = await shared()
      const [sub, other] = [newUser(), newUser()]
      await limit(world, sub, { runs: 3 })
      const ended = await world.start('report', { sub })
      await world.pass(RUN_MS)
      await world.start('pausing', { sub })
      await world.start('report', { sub })
      assert.deepEqual(await usageOf(world, sub), {
        runs: 1,
        limit: 3,
        remaining: 0,
        limit_tokens: null,
        remaining_tokens: null,
        own_limits: { runs: 3, tokens: null },
      })
      const elsewhere = { type: 'report', ...(await world.startElsewhere({ user_id: sub })) }
      const onBehalf = { type: 'report', input: {}, created_by: sub }
      for (const refused of [
        await start(world, sub),
        await start(world, sub, elsewhere),
        await world.request('POST', `/jobs/${ended.id}/retry`, sub),
        await world.service.request('POST', '/jobs', { token: world.admin, body: onBehalf }),
      ]) {
        assertError(world.service, refused, tooMany('3 runs'))
      }
      assert.equal((await start(world, other)).status, 202)
      await world.quiet()
      await world.pass(RUN_MS)
      assertError(world.service, await start(world, sub), tooMany('3 runs'))
    })

    test('a limit of tokens refuses starts once the ended jobs have used it up', async () => {
      const world = await shared()
      const sub = newUser()
      await limit(world, sub, { tokens: 100 })
      await finish(world, sub, { type: 'summary', tokens: 99 })
      assert.equal((await usageOf(world, sub)).remaining_tokens, 1)
      await finish(world, sub, { type: 'summary', tokens: 50 })
      const { remaining, limit_tokens, remaining_tokens } = await usageOf(world, sub)
      assert.deepEqual(
        { remaining, limit_tokens, remaining_tokens },
        { remaining: null, limit_tokens: 100, remaining_tokens: 0 },
      )
      assertError(world.service, await start(world, sub), tooMany('100 tokens'))
    })

    test('limits are only for admins to set; bad ones are refused by name', async () => {
      const world = await shared()
      const sub = newUser()
      for (const token of [
        world.token(sub),
        world.service.tokenFor({ sub: 'clerk', scopes: ['read:users', 'write:users'] }),
      ]) {
        const refused = await world.service.request('PUT', pathOf(sub), { token, body: { ...NONE, runs: 5 } })
        assertError(world.service, refused, { status: 403, code: 'forbidden' })
      }
      const bad: [unknown, RegExp][] = [
        [{}, /^body must have the field "runs"/],
        [{ runs: 1 }, /^body must have the field "tokens"/],
        [{ ...NONE, runs: -1 }, /^body\/runs must be >= 0/],
        [{ ...NONE, runs: 1.5 }, /^body\/runs must be/],
        [{ ...NONE, runs: '5' }, /^body\/runs must be/],
        [{ ...NONE, tokens: 1e13 }, /^body\/tokens must be <= /],
        [{ ...NONE, jobs: 3 }, /jobs/],
        [[], /^body must be object/],
      ]
      for (const [body, message] of bad) {
        assertError(world.service, await put(world, sub, body), { status: 400, code: 'invalid_request', message })
      }
      assert.deepEqual((await usageOf(world, sub)).own_limits, NONE)
    })
  })
})

describe('the thresholds of a limit', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under)

    test('an event follows at 80 % and at 100 %, once each, whichever limit is reached first', async () => {
      const world = await shared()
      const sub = newUser()
      await limit(world, sub, { runs: 5, tokens: 100 })
      await finish(world, sub, { count: 3 })
      assert.deepEqual(await announced(world, sub), [])
      await finish(world, sub)
      assert.deepEqual(await announced(world, sub), [[PERIOD, 80, 4, 0]])
      await world.start('summary', { sub, input: { prompt: 'x', usage: { input_tokens: 90, output_tokens: 0 } } })
      await world.pass(RUN_MS)
      assert.deepEqual(await announced(world, sub), [
        [PERIOD, 80, 4, 0],
        [PERIOD, 100, 5, 90],
      ])
      await limit(world, sub, { runs: 100, tokens: 100 })
      await finish(world, sub, { type: 'summary', tokens: 90 })
      assert.deepEqual(await thresholdsOf(world, sub), [80, 100], 'the tokens are used up later in the same month')
    })

    test('an end that passes both thresholds announces both, in order; a limit of tokens alone does too', async () => {
      const world = await shared()
      const [sub, teller] = [newUser(), newUser()]
      await limit(world, sub, { runs: 1 })
      await finish(world, sub)
      assert.deepEqual(await thresholdsOf(world, sub), [80, 100])
      await limit(world, teller, { tokens: 10 })
      await finish(world, teller, { type: 'summary', tokens: 8 })
      assert.deepEqual(await announced(world, teller), [[PERIOD, 80, 1, 8]])
    })

    test('a limit lowered below the usage is announced at once; changed limits announce nothing again', async () => {
      const world = await shared()
      const sub = newUser()
      await finish(world, sub, { count: 4 })
      assert.deepEqual(await announced(world, sub), [])
      await limit(world, sub, { runs: 5 })
      assert.deepEqual(await announced(world, sub), [[PERIOD, 80, 4, 0]])
      await limit(world, sub, { runs: 10 })
      await finish(world, sub, { count: 4 })
      assert.deepEqual(await thresholdsOf(world, sub), [80], 'the usage passes 80 % again')
      await limit(world, sub, { runs: 8 })
      assert.deepEqual(await thresholdsOf(world, sub), [80, 100])
      await limit(world, sub, {})
      await limit(world, sub, { runs: 0 })
      assert.deepEqual(await thresholdsOf(world, sub), [80, 100])
      assertError(world.service, await start(world, sub), tooMany('0 runs'))
    })

    test('the owner and admins get the event, other users do not', async () => {
      const world = await shared()
      const [sub, other] = [newUser(), newUser()]
      await limit(world, sub, { runs: 1 })
      const mine = await openStream(world.service.url, '/v1/events', { token: world.token(sub) })
      const theirs = await openStream(world.service.url, '/v1/events', { token: world.token(other) })
      const all = await openStream(world.service.url, '/v1/events?all=true', { token: world.admin })
      await finish(world, sub)
      const isOurs = ({ event, data }: (typeof all.received)[number]) =>
        event === 'usage.threshold' && (data.data as Reached).sub === sub
      await until(() => mine.received.filter(isOurs).length === 2 && all.received.filter(isOurs).length === 2)
      const event = mine.received.find(isOurs)
      assert.deepEqual(event?.data, {
        id: event?.id,
        type: 'usage.threshold',
        created_at: new Date(world.clock.now()).toISOString(),
        data: { sub, period: PERIOD, threshold: 80, runs: { used: 1, limit: 1 }, tokens: { used: 0, limit: null } },
      })
      assert.equal(mine.received.findIndex(isOurs) > mine.received.findIndex((e) => e.event === 'job.completed'), true)
      assert.deepEqual(theirs.received, [])
      for (const stream of [mine, theirs, all]) stream.close()
    })

    test('a job that ended before it got its owner counts towards the thresholds of that owner', async () => {
      const world = await shared()
      const sub = newUser()
      await limit(world, sub, { runs: 2 })
      const run = await world.startElsewhere({ user_id: sub })
      await world.callback('report', { ...run, status: 'success', values: { report: 1 } })
      assert.deepEqual(await announced(world, sub), [])
      assert.equal((await start(world, sub, { type: 'report', ...run })).status, 202)
      await finish(world, sub)
      assert.deepEqual(await announced(world, sub), [
        [PERIOD, 80, 2, 0],
        [PERIOD, 100, 2, 0],
      ])
    })

    test('jobs of many types that end at once announce each threshold once', async () => {
      const world = await shared()
      const sub = newUser()
      await limit(world, sub, { runs: 8 })
      const jobs = []
      for (const type of ['report', 'summary', 'decided', 'keyless', 'report', 'summary', 'decided', 'throwing']) {
        jobs.push(await world.start(type, { sub, input: { prompt: 'x' } }))
      }
      await Promise.all(jobs.map(({ id }) => world.request('POST', `/jobs/${id}/cancel`, sub)))
      await world.pass(RUN_MS)
      assert.equal((await usageOf(world, sub)).runs, 8)
      assert.deepEqual(await thresholdsOf(world, sub), [80, 100])
    })

    test('each month has its own thresholds', async () => {
      const world = await startJobWorld(under, { clock: new ManualClock(Date.UTC(2026, 0, 31, 23, 59, 30)) })
      const sub = newUser()
      await limit(world, sub, { runs: 1 })
      await finish(world, sub)
      await world.pass(60_000)
      await finish(world, sub)
      assert.deepEqual(
        (await announced(world, sub)).map(([period, threshold]) => [period, threshold]),
        [
          ['2026-01', 80],
          ['2026-01', 100],
          ['2026-02', 80],
          ['2026-02', 100],
        ],
      )
    })

    test('a change is in the audit trail with before and after; a repeated one is not', async () => {
      const world = await shared()
      const sub = newUser()
      await limit(world, sub, { runs: 5 })
      await limit(world, sub, { runs: 5 })
      await limit(world, sub, { runs: 6, tokens: 7 })
      await limit(world, sub, {})
      const { body } = await world.service.request<{ data: { action: string; before: Limits; after: Limits }[] }>(
        'GET',
        `/v1/audit?object=${sub}`,
        { token: world.admin },
      )
      assert.deepEqual(body.data.map(({ action, before, after }) => [action, before, after]).reverse(), [
        ['user.limits_changed', NONE, { runs: 5, tokens: null }],
        ['user.limits_changed', { runs: 5, tokens: null }, { runs: 6, tokens: 7 }],
        ['user.limits_changed', { runs: 6, tokens: 7 }, NONE],
      ])
    })

    test('limits are part of the export, and an erasure removes them, also of a user that never signed in', async () => {
      const world = await startJobWorld(under)
      const sub = newUser()
      const admin = { token: world.admin }
      await limit(world, sub, { runs: 0, tokens: 9 })
      assert.deepEqual(await thresholdsOf(world, sub), [80, 100])
      const exported = await world.service.request<{ limits: Limits }>('GET', `/v1/users/${sub}/export`, admin)
      assert.deepEqual(exported.body.limits, { runs: 0, tokens: 9 })
      const erasing = await world.service.request<{ id: string }>('DELETE', `/v1/users/${sub}`, admin)
      assert.equal(erasing.status, 202, erasing.text)
      const path = `/v1/operations/${erasing.body.id}`
      await until(async () => {
        await world.clock.advance(1_000)
        return (await world.service.request<{ state: string }>('GET', path, admin)).body.state === 'done'
      })
      const left = await world.db.query(sql`
        select subject from usage_limits where subject = ${sub}
        union all select subject from usage_thresholds where subject = ${sub}
        union all select subject from events where subject = ${sub}`)
      assert.deepEqual(left, [])
    })
  })
})

describe('the service’s default limit', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under, { env: { USAGE_LIMIT_RUNS: '2' } })

    test('the default holds without a limit of the user’s own, which replaces it and gives way to it again', async () => {
      const world = await shared()
      const sub = newUser()
      await limit(world, sub, { runs: 3 })
      await finish(world, sub, { count: 3 })
      assertError(world.service, await start(world, sub), tooMany('3 runs'))
      await limit(world, sub, { tokens: 50 })
      assertError(world.service, await start(world, sub), tooMany('2 runs'))
      const { limit: runs, limit_tokens, own_limits } = await usageOf(world, sub)
      assert.deepEqual(
        { runs, limit_tokens, own_limits },
        { runs: 2, limit_tokens: 50, own_limits: { runs: null, tokens: 50 } },
      )
    })

    test('the thresholds of the default are announced too', async () => {
      const world = await shared()
      const sub = newUser()
      await finish(world, sub)
      assert.deepEqual(await announced(world, sub), [])
      await finish(world, sub)
      assert.deepEqual(await thresholdsOf(world, sub), [80, 100])
    })

    test('a bulk retry starts no job beyond the limit', async () => {
      const world = await shared()
      const sub = newUser()
      const jobs = [await world.start('report', { sub }), await world.start('report', { sub })]
      await world.pass(RUN_MS)
      await limit(world, sub, { runs: 3 })
      const body = { action: 'retry', ids: jobs.map(({ id }) => id) }
      const { body: operation } = await world.service.request<{ id: string }>('POST', '/v1/operations', {
        token: world.admin,
        body,
      })
      const read = () =>
        world.service.request<{ state: string; failed: number }>('GET', `/v1/operations/${operation.id}`, {
          token: world.admin,
        })
      await until(async () => (await read()).body.state === 'done')
      assert.equal((await read()).body.failed, 1)
      await world.quiet()
      await world.pass(RUN_MS)
      assert.equal((await usageOf(world, sub)).runs, 3)
    })
  })
})

describe('the thresholds of a limit, where others commit meanwhile', () => {
  forEachService((under) => {
    // On SQLite no other connection commits while a transaction is open.
    if (under.engine.name === 'sqlite') return
    let started: Promise<JobWorld> | undefined
    const shared = () => {
      started ??= under.engine.openDatabase({ waitsLong: true }).then((db) => startJobWorld(under, { db }))
      return started
    }
    const isWaiting = async ({ db }: JobWorld) => {
      const waiting = await db.query(sql`
        select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
      return waiting.length > 0
    }
    const record = (tx: Transaction, world: JobWorld, { sub, type }: { sub: string; type: string }) =>
      recordUsage(tx, [{ subject: sub, period: PERIOD, type, input_tokens: 0, output_tokens: 0, total_tokens: 0 }], {
        usageLimitRuns: null,
        atMs: world.clock.now(),
      })

    test('two jobs of different types that end at once cannot both miss the threshold that they reach together', async () => {
      const world = await shared()
      const sub = newUser()
      await limit(world, sub, { runs: 2 })
      let isOver = false
      let second: Promise<void> | undefined
      await world.db.transaction(async (tx) => {
        await record(tx, world, { sub, type: 'report' })
        second = world.db
          .transaction((other) => record(other, world, { sub, type: 'summary' }))
          .finally(() => {
            isOver = true
          })
        await until(async () => isOver || (await isWaiting(world)))
      })
      await second
      assert.deepEqual(await announced(world, sub), [
        [PERIOD, 80, 2, 0],
        [PERIOD, 100, 2, 0],
      ])
    })

    test('a turn that interrupts locks the usage of its owner before the counters, as a change of limits does', async () => {
      const world = await shared()
      const sub = newUser()
      await limit(world, sub, { runs: 9 })
      const pause = async () => {
        const job = await world.start('pausing', { sub })
        await world.sweepUntil(async () => (await world.stored(job.id)).status === 'awaiting_input', RUN_MS)
        return job
      }
      assert.equal((await world.cancel(await pause())).status, 200)
      const { id: continues } = await pause()
      const interrupting = { type: 'pausing', input: {}, continues, on_busy: 'interrupt' }
      let answer: ReturnType<typeof start> | undefined
      await world.db.transaction(async (tx) => {
        await lockUsage(tx, { subjects: [sub], period: PERIOD })
        answer = start(world, sub, interrupting)
        await until(() => isWaiting(world))
        assert.equal((await lockFreeUsage(tx, { keys: [{ subject: sub, type: 'pausing' }], period: PERIOD })).size, 0)
      })
      assert.equal((await answer)?.status, 202)
      await world.quiet()
    })

    for (const jobs of [1, 2]) {
      test(`a limit that is set while job ${jobs} of the month ends counts that job`, async () => {
        const world = await shared()
        const sub = newUser()
        if (jobs > 1) await finish(world, sub)
        let setting: Promise<void> | undefined
        await world.db.transaction(async (tx) => {
          await record(tx, world, { sub, type: 'report' })
          setting = limit(world, sub, { runs: jobs })
          await until(() => isWaiting(world))
        })
        await setting
        assert.deepEqual(await thresholdsOf(world, sub), [80, 100])
      })
    }

    test('a start that waits for a change of the limit obeys the new one', async () => {
      const world = await shared()
      const sub = newUser()
      await limit(world, sub, { runs: 5 })
      let starting: ReturnType<typeof start> | undefined
      await world.db.transaction(async (tx) => {
        await lockUsage(tx, { subjects: [sub], period: PERIOD })
        await saveLimits(tx, sub, { runs: 0, tokens: null })
        starting = start(world, sub)
        await until(() => isWaiting(world))
      })
      assertError(world.service, await (starting as ReturnType<typeof start>), tooMany('0 runs'))
    })
  })
})
