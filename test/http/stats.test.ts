import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { firstIdAt } from '../../src/core/ids.ts'
import { sql } from '../../src/db/sql.ts'
import { eraseSomeJobs } from '../../src/jobs/retention/erase-jobs.ts'
import { classOf, percentileOf } from '../../src/stats/stats-names.ts'
import { countByTime, countDeleted, countEvents } from '../../src/stats/stats-rollup.ts'
import { findCounts } from '../../src/stats/stats-store.ts'
import { assertError } from '../support/assert-error.ts'
import { type JobWorld, RUN_MS, startJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

interface Stats {
  window: string
  bucket_seconds: number
  buckets: {
    at: string
    ends: { status: string; settled_by: string | null; count: number }[]
    callbacks: Record<string, number>
    callback_miss_ratio: number | null
    time_to_truth_ms: { p50: number; p99: number } | null
    pushes: Record<string, number>
  }[]
  now: {
    unfinished: Record<string, number>
    oldest_unfinished_at: string | null
    checks_due: number
    pushes_waiting: number
  }
}

async function read(world: JobWorld, window = '1h'): Promise<Stats> {
  const token = world.service.tokenFor({ sub: 'watcher', scopes: ['read:operations'] })
  const answer = await world.service.request<Stats>('GET', `/v1/stats?window=${window}`, { token })
  assert.equal(answer.status, 200, answer.text)
  return answer.body
}

const endsOf = ({ buckets }: Stats) => buckets.flatMap(({ ends }) => ends)

describe('GET /v1/stats', () => {
  forEachService((under) => {
    test('the statistics show ends, callbacks, missed callbacks and the backlog within five seconds, in every window', async () => {
      const world = await startJobWorld(under)
      await world.start('report')
      await world.pass(RUN_MS)
      world.runtime.setFaults({ drop_callbacks: 1 })
      const missed = await world.start('report')
      await world.pass(RUN_MS)
      await world.get(missed.id)
      const paused = await world.start('pausing')
      await world.pass(RUN_MS)
      await world.get(paused.id)
      for (let second = 0; second < 5; second++) await world.pass(1_000)
      for (const [window, seconds, count] of [
        ['1h', 60, 60],
        ['24h', 900, 96],
        ['7d', 7_200, 84],
      ] as const) {
        const stats = await read(world, window)
        assert.deepEqual([stats.window, stats.bucket_seconds, stats.buckets.length], [window, seconds, count])
        const ends = endsOf(stats).sort((a, b) => String(a.settled_by).localeCompare(String(b.settled_by)))
        assert.deepEqual(ends, [
          { status: 'completed', settled_by: 'callback', count: 1 },
          { status: 'completed', settled_by: 'read', count: 1 },
        ])
        const times = stats.buckets.map(({ at }) => Date.parse(at))
        assert.deepEqual(
          times,
          [...times].sort((a, b) => a - b),
          'oldest first',
        )
        assert.ok((times.at(-1) ?? 0) <= world.clock.now() && (times.at(-1) ?? 0) + seconds * 1_000 > world.clock.now())
        const all = stats.buckets.filter(({ ends }) => ends.length > 0)
        assert.equal(
          stats.buckets.reduce((sum, { callbacks }) => sum + (callbacks.applied ?? 0), 0),
          1,
        )
        if (all.length === 1) assert.equal(all[0]?.callback_miss_ratio, 0.5)
        for (const { time_to_truth_ms: truth } of all) assert.ok(truth !== null && truth.p50 <= truth.p99)
        const empty = stats.buckets[0]
        assert.deepEqual(
          [empty?.ends, empty?.callback_miss_ratio, empty?.time_to_truth_ms, empty?.pushes],
          [[], null, null, {}],
        )
      }
      const { now } = await read(world)
      assert.deepEqual(now.unfinished, { processing: 0, generating: 0, awaiting_input: 1 })
      assert.equal(now.oldest_unfinished_at, paused.created_at)
      assert.deepEqual([now.checks_due, now.pushes_waiting], [0, 0])
    })

    test('each end of a job is counted once, also when two nodes count at the same time or one count is repeated after a crash', async () => {
      const world = await startJobWorld(under)
      for (let n = 0; n < 3; n++) await world.start('report')
      await world.pass(RUN_MS)
      await Promise.all(Array.from({ length: 4 }, () => countEvents(world.db)))
      while (await countEvents(world.db));
      await world.pass(5_000)
      assert.equal(
        endsOf(await read(world)).reduce((sum, { count }) => sum + count, 0),
        3,
      )
    })

    test('jobs that are deleted or erased at once after their end are counted, once, with their callbacks', async () => {
      const world = await startJobWorld(under)
      const jobs = await Promise.all(Array.from({ length: 10 }, () => world.start('report')))
      await world.pass(RUN_MS)
      const remove = async (id: string) => {
        const answer = await world.service.request('DELETE', `/jobs/${id}`, { token: world.admin })
        assert.equal(answer.status, 204, answer.text)
      }
      // Some are counted before their deletion, some with it, and some while the statistics are counted.
      for (const { id } of jobs.slice(0, 3)) await remove(id)
      await Promise.all([countEvents(world.db), ...jobs.slice(3, 7).map(({ id }) => remove(id))])
      while (await countEvents(world.db));
      for (const { id } of jobs.slice(7)) await remove(id)
      const erased = await Promise.all([1, 2].map(() => world.start('report', { sub: 'erased' })))
      await world.pass(RUN_MS)
      const erasure = { owner: 'erased', atMs: world.clock.now(), countDeleted }
      assert.deepEqual(await world.db.transaction((tx) => eraseSomeJobs(tx, erasure)), {
        found: erased.length,
        erased: erased.length,
        ofOthers: [],
      })
      for (let second = 0; second < 5; second++) await world.pass(1_000)
      const stats = await read(world)
      assert.deepEqual(endsOf(stats), [{ status: 'completed', settled_by: 'callback', count: 12 }])
      assert.equal(
        stats.buckets.reduce((sum, { callbacks }) => sum + (callbacks.applied ?? 0), 0),
        12,
      )
      const times = await findCounts(world.db, { bucketMs: 60_000, fromMs: 0 })
      assert.equal(
        times.filter(({ name }) => name.startsWith('truth:')).reduce((sum, { count }) => sum + count, 0),
        12,
      )
    })

    test('pushes are counted by the state they reached, and the statistics show those of their window', async () => {
      const world = await startJobWorld(under)
      await world.db.query(sql`update stats_cursors set position = 0`)
      const nowMs = world.clock.now()
      for (const [n, ageMs] of [10_000, 20_000, 7_200_000].entries()) {
        const at = nowMs - ageMs
        await world.db.query(sql`
          insert into notifications (id, cause, title, body, data, priority, ttl_seconds, dry_run, created_at)
          values (${`ntf_${n}`}, ${`api:ntf_${n}`}, '', '', '{}', 'high', 60, 0, ${at})`)
        await world.db.query(sql`
          insert into deliveries (notification_id, device_id, state, attempts, created_at, updated_at)
          values (${`ntf_${n}`}, 'dev_1', 'failed', 1, ${at}, ${at})`)
      }
      while (await countByTime(world.db, nowMs));
      const pushes = (await read(world)).buckets.map((bucket) => bucket.pushes.failed ?? 0)
      assert.equal(
        pushes.reduce((sum, count) => sum + count, 0),
        2,
      )
    })

    test('the statistics skip at once the time in which nothing happened, after a long stop of the service', async () => {
      const world = await startJobWorld(under)
      await countByTime(world.db, world.clock.now())
      await world.start('report')
      await world.pass(RUN_MS)
      const nowMs = world.clock.now() + 30 * 86_400_000
      await world.db.query(sql`
        insert into callbacks (id, path, type, job_id, thread_id, run_id, status, outcome, received_at, body)
        values (${firstIdAt('cbk', nowMs - 10_000)}, '', 'report', '', '', '', '', 'stale', ${nowMs - 10_000}, '{}')`)
      let steps = 1
      while (await countByTime(world.db, nowMs)) steps += 1
      assert.ok(steps < 10, `${steps} steps`)
      const counts = await findCounts(world.db, { bucketMs: 60_000, fromMs: 0 })
      const ofCallbacks = counts.filter(({ name }) => name.startsWith('callback:'))
      assert.deepEqual(
        ofCallbacks.map(({ name, count }) => [name, count]),
        [
          ['callback:applied', 1],
          ['callback:stale', 1],
        ],
      )
    })

    test('an unknown window is a 400, and a caller without the scope is refused', async () => {
      const world = await startJobWorld(under)
      const bad = await world.service.request('GET', '/v1/stats?window=1y', { token: world.admin })
      assertError(under, bad, { status: 400, code: 'invalid_request', message: /querystring\/window/ })
      const refused = await world.request('GET', '/v1/stats', 'ada')
      assertError(under, refused, { status: 403, code: 'forbidden' })
    })
  })
})

test('percentiles from classes are right within a tenth', () => {
  const classes = new Map<number, number>()
  for (let ms = 1; ms <= 1_000; ms++) classes.set(classOf(ms), (classes.get(classOf(ms)) ?? 0) + 1)
  const near = (actual: number | null, expected: number) =>
    assert.ok(actual !== null && actual >= expected * 0.9 && actual <= expected * 1.1, `${actual} for ${expected}`)
  near(percentileOf(classes, 0.5), 500)
  near(percentileOf(classes, 0.99), 990)
  assert.equal(percentileOf(new Map(), 0.5), null)
  assert.equal(percentileOf(new Map([[classOf(0), 1]]), 0.99), 1)
})
