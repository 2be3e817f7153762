import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Log } from '../../src/core/log.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { SteppedClock } from '../support/clocked-database.ts'
import { openStream } from '../support/event-stream.ts'
import { type JobWorld, RUN_MS, startJobWorld, TEST_JOB_TYPES, WEBHOOK_SECRET } from '../support/job-world.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { ScriptedSender } from '../support/scripted-sender.ts'
import { forEachService, type ServiceUnderTest, type TestService } from '../support/service.ts'

const HOUR_MS = 3_600_000
const CANCEL_RUN = 'POST /threads/{t}/runs/{r}/cancel'

interface Ready {
  status: string
  checks: { clock: { state: string; detail: string | null } }
}

async function startWorld(under: ServiceUnderTest) {
  const clock = new ManualClock()
  const database = new SteppedClock(clock)
  const events: string[] = []
  const note: Log['warn'] = (_fields: object, event: string) => void events.push(event)
  const log: Log = { debug: () => {}, info: () => {}, warn: note, error: note }
  const sender = new ScriptedSender()
  const world = await startJobWorld(under, { clock, databaseClock: database, log, pushSender: sender })
  void world.service.services.outbox.start()
  return { world, database, sender, events }
}

/** A token that outlives the step. */
function tokenOf(service: TestService, sub: string, scopes: string[] = []): string {
  return service.tokenFor({ sub, scopes, expiresInSeconds: 7 * 86_400 })
}

async function askClock(service: TestService) {
  const { body } = await service.request<Ready>('GET', '/readyz')
  return [body.status, body.checks.clock.state, body.checks.clock.detail?.replace(/\d+ s/, 'N s') ?? null]
}

/** Less than a minute passes until it holds. */
async function soon(world: JobWorld, holds: () => boolean | Promise<boolean>): Promise<void> {
  for (let second = 0; second < 60; second++) {
    if (await holds()) return
    await world.pass(1_000)
  }
  assert.fail(`It waits for longer than a minute: ${holds}`)
}

describe('a step of the database’s clock under a running service', () => {
  forEachService((under) => {
    test('a step forward by two hours ends no job early on two nodes, neither a short one nor a lasting one', async () => {
      const { world, database, events } = await startWorld(under)
      const second = await under.start({
        db: world.db,
        clock: world.clock,
        databaseClock: database,
        jobTypes: TEST_JOB_TYPES,
        env: { WEBHOOK_SECRET, RUNTIME_URL: world.runtime.url },
      })
      world.runtime.setFaults({ drop_callbacks: 1, zombie: true })
      const startedAtMs = world.clock.now()
      const jobs = [await world.start('report'), await world.start('report')]
      const assertAllRun = async (when: string) => {
        for (const { id } of jobs) assert.equal((await world.stored(id)).finished_at, null, when)
        assert.equal(world.calls(CANCEL_RUN), 0, when)
      }
      database.stepMs = 2 * HOUR_MS
      for (let s = 1; s <= 10; s++) {
        await world.pass(1_000)
        await assertAllRun(`${s} s after the step`)
      }
      assert.deepEqual(events, ['clock.stepped'])
      const shown = [
        'ready',
        'degraded',
        "the database's clock was set: it is N s ahead of the service's time, which follows slowly",
      ]
      for (const service of [world.service, second]) assert.deepEqual(await askClock(service), shown)
      database.stepMs = 0
      for (let s = 1; s <= 5; s++) await world.pass(1_000)
      await assertAllRun('after the short step')
      for (const service of [world.service, second]) assert.deepEqual(await askClock(service), ['ready', 'ok', null])

      database.stepMs = 2 * HOUR_MS
      for (let s = 1; s <= 90; s++) await world.pass(1_000)
      await assertAllRun('after a minute and a half')
      // The deadline of ten minutes is not a second too early.
      while (world.clock.now() < startedAtMs + 599_000) await world.pass(1_000)
      await assertAllRun('shortly before the deadline')
      await soon(world, async () => (await world.stored(jobs[0]?.id ?? '')).error?.code === 'deadline_exceeded')
    })

    for (const [name, lastsMs] of [
      ['short', 10_000],
      ['lasting', 300_000],
    ] as const) {
      test(`a ${name} step back by an hour delays no stream, list, start, check, push, statistic or operation`, async () => {
        const { world, database, sender } = await startWorld(under)
        const token = tokenOf(world.service, 'ada')
        const watcher = tokenOf(world.service, 'watcher', ['read:operations'])
        const admin = tokenOf(world.service, 'root', ['admin:*'])
        const device = { token: 'a-token', platform: 'ios' }
        await world.service.request('POST', '/v1/devices', { token, body: device })
        const before = await world.start('report')
        await world.pass(RUN_MS)
        await soon(world, async () => (await world.stored(before.id)).status === 'completed')
        await soon(world, () => sender.given.length === 1)
        const stream = await openStream(world.service.url, '/v1/events', { token })

        database.stepMs = -HOUR_MS
        for (let s = 0; s < lastsMs / 1_000; s += 2) await world.pass(2_000)
        if (name === 'short') database.stepMs = 0
        world.runtime.setFaults({ start_failure: 1 })
        const retried = await world.start('report')
        world.runtime.setFaults({ ...NO_RUNTIME_FAULTS, drop_callbacks: 1 })
        sender.answer(() =>
          sender.given.length === 2 ? { kind: 'retry', reason: 'busy', afterMs: null } : sender.sent(),
        )
        await soon(world, async () => (await world.stored(retried.id)).run_id !== null)
        await soon(world, async () => (await world.stored(retried.id)).status === 'completed')
        await soon(world, () => sender.given.length === 3)
        world.runtime.setFaults(NO_RUNTIME_FAULTS)
        const after = await world.start('report')
        await world.pass(RUN_MS)
        await soon(world, async () => (await world.stored(after.id)).status === 'completed')

        const isShown = () =>
          stream.received.some(({ data }) => {
            const { job_id, status } = data.data as { job_id: string; status: string }
            return job_id === after.id && status === 'completed'
          })
        await soon(world, isShown)
        stream.close()
        const list = await world.request<{ data: { id: string; created_at: string }[] }>('GET', '/jobs', 'ada', {
          token,
        })
        assert.deepEqual(
          list.body.data.map(({ id }) => id),
          [after.id, retried.id, before.id],
        )
        const times = list.body.data.map(({ created_at }) => created_at)
        assert.deepEqual(times, [...times].sort().reverse(), 'newest first by time, too')
        await soon(world, async () => {
          const { body } = await world.service.request<{ buckets: { ends: { count: number }[]; pushes: object }[] }>(
            'GET',
            '/v1/stats',
            { token: watcher },
          )
          return body.buckets.flatMap(({ ends }) => ends).reduce((sum, { count }) => sum + count, 0) === 3
        })
        const bulk = await world.service.request<{ id: string }>('POST', '/v1/operations', {
          token: admin,
          body: { action: 'retry', ids: [before.id] },
        })
        assert.equal(bulk.status, 202, bulk.text)
        await soon(world, async () => {
          const { body } = await world.service.request<{ finished_at: string | null }>(
            'GET',
            `/v1/operations/${bulk.body.id}`,
            { token: admin },
          )
          return body.finished_at !== null
        })
      })
    }

    test('an expiry that a person chose is judged by the database’s clock once a step has lasted for a minute', async () => {
      const { world, database } = await startWorld(under)
      const expires_at = new Date(world.clock.now() + HOUR_MS).toISOString()
      const made = await world.service.request<{ key: string; expires_at: string }>('POST', '/v1/service-accounts', {
        token: world.admin,
        body: { name: 'a backend', scopes: ['read:projects'], expires_at },
      })
      assert.equal(made.status, 201, made.text)
      const token = world.token('ada')
      const answers = async () => {
        const byKey = await world.service.request('GET', '/v1/projects', { headers: { 'x-api-key': made.body.key } })
        const byToken = await world.service.request('GET', '/jobs', { token })
        return [byKey.status, byToken.status]
      }
      database.stepMs = 2 * HOUR_MS
      for (let s = 0; s < 50; s++) await world.pass(1_000)
      assert.deepEqual(await answers(), [200, 200])
      for (let s = 0; s < 20; s++) await world.pass(1_000)
      assert.deepEqual(await answers(), [401, 401])
      database.stepMs = 0
      for (let s = 0; s < 70; s++) await world.pass(1_000)
      assert.deepEqual(await answers(), [200, 200])
      const shown = await world.service.request<{ data: { expires_at: string }[] }>('GET', '/v1/service-accounts', {
        token: world.admin,
      })
      assert.deepEqual(
        shown.body.data.map((account) => account.expires_at),
        [expires_at],
      )
    })
  })
})
