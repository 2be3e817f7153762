import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { beforeEach, describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import type { Job } from '../../src/jobs/api/job-schema.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { openStream } from '../support/event-stream.ts'
import { GET_RUN, GET_STATE, type JobWorld, RUN_MS, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

const newUser = () => `user-${randomUUID()}`
const LONG = { title: 'Done', n: 42, sandbox: { duration_ms: 120_000 } }

describe('a job that a client polls, lists or watches', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under)
    beforeEach(async () => (await shared()).runtime.setFaults({ ...NO_RUNTIME_FAULTS, drop_callbacks: 1 }))

    const list = (world: JobWorld, sub: string, query = '') =>
      world.request<{ data: Job[] }>('GET', `/jobs${query}`, sub).then(({ body }) => body.data)

    test('a watched job ends by the check that its reader did not wait for, when each call of the runtime takes 1.6 s', async () => {
      const world = await shared()
      const { id } = await world.start('report', { sub: newUser() })
      await world.pass(RUN_MS)
      world.runtime.setFaults({ lookup_latency_ms: 1_600 })
      const [runs, states] = [world.calls(GET_RUN), world.calls(GET_STATE)]
      const first = world.get(id)
      await until(() => world.calls(GET_RUN) > runs)
      await world.clock.advance(1_600)
      await until(() => world.calls(GET_STATE) > states)
      await world.clock.advance(1_400)
      const { status, reconcile } = await first
      assert.match(status, /processing|generating/)
      assert.equal(reconcile.last_error, 'the runtime has not answered yet')
      const second = world.get(id)
      await world.clock.advance(200)
      const job = await second
      assert.deepEqual([job.status, job.settled_by], ['completed', 'read'])
      assert.equal(world.calls(GET_RUN), runs + 1, 'one check served both')
    })

    test('a watched job is not checked later because it is read', async () => {
      const world = await shared()
      const { id } = await world.start('report', { sub: newUser(), input: LONG })
      const nextAt = async () => (await world.stored(id)).reconcile.next_at ?? 'never'
      const planned = await nextAt()
      for (const lookup_failure of [0, 1]) {
        world.runtime.setFaults({ lookup_failure })
        for (let n = 0; n < 3; n++) {
          await world.clock.advance(100)
          await world.get(id)
        }
        assert.ok((await nextAt()) <= planned)
      }
    })

    test('a watched job is checked as often as any other after its readers have left', async () => {
      const world = await shared()
      const input = { title: 'Done', sandbox: { duration_ms: 30_000 } }
      const { id } = await world.start('report', { sub: newUser(), input })
      // All reads come before the first check of the sweep: a read would wait for a check in progress.
      for (let n = 0; n < 7; n++) {
        await world.clock.advance(300)
        await world.get(id)
      }
      // A check just before the end is followed by a pause of 40 s at most.
      for (let second = 0; second < 90; second++) await world.pass(1_000)
      assert.equal((await world.stored(id)).status, 'completed')
    })

    if (under.engine.name === 'postgres') {
      test('a watched job is shown as it is stored while another transaction locks its check', async () => {
        const world = await shared()
        const { id } = await world.start('report', { sub: newUser() })
        await world.db.transaction(async (tx) => {
          await tx.query(sql`select job_id from job_checks where job_id = ${id} for update`)
          assert.match((await world.get(id)).status, /processing|generating/)
        })
        await world.pass(RUN_MS)
        assert.equal((await world.get(id)).status, 'completed')
      })
    }

    test('a watched job is brought up to date by the page that shows it, unless it was checked a moment ago', async () => {
      // In the shared world, checks of other tests' jobs would be counted too.
      const world = await startJobWorld(under)
      world.runtime.setFaults({ drop_callbacks: 1 })
      const sub = newUser()
      const jobs = [await world.start('report', { sub }), await world.start('report', { sub, input: LONG })]
      await world.clock.advance(RUN_MS)
      const before = world.calls(GET_RUN)
      await list(world, sub)
      assert.equal(world.calls(GET_RUN), before, 'the start was a moment ago')
      await world.clock.advance(1_700)
      const [long, short] = await list(world, sub)
      assert.deepEqual([long?.id, long?.status], [jobs[1]?.id, 'generating'])
      assert.deepEqual(
        [short?.status, short?.settled_by, short?.output],
        ['completed', 'read', { title: 'Done', n: 42 }],
      )
      assert.equal(world.calls(GET_RUN), before + 2)
      await list(world, sub)
      assert.equal(world.calls(GET_RUN), before + 2, 'not again so soon')
    })

    test('a watched job is shown as it is stored when the runtime takes longer than a page waits', async () => {
      // In the shared world, a check of another test's job could be taken for that of the page.
      const world = await startJobWorld(under)
      world.runtime.setFaults({ drop_callbacks: 1 })
      const sub = newUser()
      const { id } = await world.start('report', { sub })
      await world.clock.advance(RUN_MS + 1_700)
      world.runtime.setFaults({ hang_lookups: true })
      const before = world.calls(GET_RUN)
      const listing = list(world, sub, '?status=processing')
      await until(() => world.calls(GET_RUN) > before)
      // As long as a page waits, and not so long that the check gives up.
      await world.clock.advance(1_000)
      assert.deepEqual(
        (await listing).map((job) => [job.id, job.status]),
        [[id, 'processing']],
      )
      world.runtime.setFaults({ hang_lookups: false })
      await world.quiet()
      assert.equal((await world.stored(id)).status, 'completed', 'the check went on')
    })

    test('a job on an open stream, its own or its owner’s, ends within five seconds though the callback is lost, also beside 20 delayed jobs', async () => {
      const world = await shared()
      const [owner, other] = [newUser(), newUser()]
      const streamed = await world.start('report', { sub: owner, input: LONG })
      // The newest jobs of the owner wait for their time: they must not take the places of those that run.
      const run_at = new Date(world.clock.now() + 3_600_000).toISOString()
      for (let n = 0; n < 20; n++) {
        const delayed = await world.request('POST', '/jobs', owner, { body: { type: 'report', input: {}, run_at } })
        assert.equal(delayed.status, 202, delayed.text)
      }
      const own = await world.start('report', { sub: other, input: LONG })
      const unwatched = await world.start('report', { sub: newUser(), input: LONG })
      const streams = [
        await openStream(world.service.url, '/v1/events', { token: world.token(owner) }),
        await openStream(world.service.url, `/jobs/${own.id}/events`, { token: world.token(other) }),
        await openStream(world.service.url, '/v1/events?all=true', { token: world.admin }),
      ]
      for (let second = 0; second < 126; second++) await world.pass(1_000)
      const [first, second, last] = await Promise.all([streamed, own, unwatched].map(({ id }) => world.stored(id)))
      assert.deepEqual([first?.status, second?.status], ['completed', 'completed'])
      for (const watched of [first, second]) assert.ok(Number(watched?.reconcile.attempts) >= 24)
      assert.ok(Number(last?.reconcile.attempts) < 12, 'a stream of all events watches no job')
      await until(() => streams[0]?.received.some(({ event }) => event === 'job.completed') === true)
      for (const stream of streams) stream.close()
    })
  })
})
