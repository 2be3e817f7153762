import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, describe, test } from 'node:test'
import { assertError } from '../support/assert-error.ts'
import { type JobWorld, startJobWorld, TEST_JOB_TYPES, WEBHOOK_SECRET } from '../support/job-world.ts'
import { type LiveView, openLive } from '../support/live-view.ts'
import { forEachService, onOneService } from '../support/service.ts'
import { until } from '../support/until.ts'

const newUser = () => `user-${randomUUID()}`
const LONG_MS = 600_000
const BIG_BYTES = 900_000
const MAX_STREAMS_PER_CALLER = 50

const views: LiveView[] = []
after(() => {
  for (const view of views) view.close()
})

async function view(url: string, id: string, token: string, lastEventId?: string): Promise<LiveView> {
  const opened = await openLive(url, id, { token, ...(lastEventId === undefined ? {} : { lastEventId }) })
  views.push(opened)
  return opened
}

/** A job whose run goes on for minutes and says one word at its start. */
async function startLong(world: JobWorld, sub: string): Promise<string> {
  const input = { messages: [{ role: 'user', content: 'Hi' }], sandbox: { duration_ms: LONG_MS, say: 'Done' } }
  const { id } = await world.start('agent', { sub, input })
  await until(async () => {
    await world.clock.advance(50)
    return world.runtime.recentRuns.some((run) => run.metadata.job_id === id && run.events.length > 0)
  })
  return id
}

/** The graph writes to its custom stream now. */
function write(world: JobWorld, jobId: string, data: string): void {
  const run = world.runtime.recentRuns.find(({ metadata }) => metadata.job_id === jobId)
  assert.ok(run)
  run.events.push({ event: 'custom', data })
  for (const notify of run.followers) notify()
}

const big = (n: number) => `${n}:${'x'.repeat(BIG_BYTES)}`
const numbersIn = (viewer: LiveView) => viewer.of<string>('progress').map((text) => Number(text.split(':')[0]))

describe('live output at its limits', () => {
  forEachService((under) => {
    test('a viewer changes to a node that has not seen the run, and misses and repeats nothing', async () => {
      const world = await startJobWorld(under)
      const other = await under.start({
        db: world.db,
        clock: world.clock,
        jobTypes: TEST_JOB_TYPES,
        env: { WEBHOOK_SECRET, RUNTIME_URL: world.runtime.url },
      })
      const sub = newUser()
      const id = await startLong(world, sub)
      const first = await view(world.service.url, id, world.token(sub))
      for (const n of [0, 1, 2]) write(world, id, String(n))
      await first.until(() => first.names.length === 3)
      first.close()
      for (const n of [3, 4]) write(world, id, String(n))
      const second = await view(other.url, id, world.token(sub), first.ids.at(-1))
      await second.until(() => second.names.length === 2)
      write(world, id, '5')
      await second.until(() => second.names.length === 3)
      second.close()
      const back = await view(world.service.url, id, world.token(sub), second.ids.at(-1))
      write(world, id, '6')
      await back.until(() => back.names.length === 1)
      assert.deepEqual([first, second, back].flatMap(numbersIn), [0, 1, 2, 3, 4, 5, 6])
      const whole = await view(other.url, id, world.token(sub))
      await whole.until(() => whole.names.length === 7)
      assert.deepEqual(whole.ids, [...first.ids, ...second.ids, ...back.ids])
    })
  })

  onOneService((under) => {
    test('a viewer who does not read is cut and can resume, and the others see everything', async () => {
      const world = await startJobWorld(under)
      const sub = newUser()
      const id = await startLong(world, sub)
      const [good, slow] = [
        await view(world.service.url, id, world.token(sub)),
        await view(world.service.url, id, world.token(sub)),
      ]
      write(world, id, '0:')
      await slow.until(() => slow.names.length === 1)
      slow.freeze()
      const { live, metrics } = world.service.services
      let written = 1
      // As much as the system holds for a connection, and the log after that.
      for (; written < 60 && live.viewers > 1; written++) {
        write(world, id, big(written))
        await good.until(() => good.names.length > written)
      }
      await until(() => live.viewers === 1)
      assert.match(await metrics.render(), /^project_api_live_viewers_cut_total 1$/m)
      assert.deepEqual(
        numbersIn(good),
        Array.from({ length: written }, (_, n) => n),
      )
      assert.ok(live.bytes <= 4 * 1024 * 1024)
      const late = await view(world.service.url, id, world.token(sub), slow.ids[0])
      await late.until(() => late.names.length > 1)
      assert.equal(late.names[0], 'reset')
      await until(() => numbersIn(late).at(-1) === written - 1)
      assert.ok((numbersIn(late)[0] ?? 0) > 1)
      const recent = await view(world.service.url, id, world.token(sub), good.ids.at(-2))
      await recent.until(() => recent.names.length === 1)
      assert.deepEqual(numbersIn(recent), [written - 1], 'no reset for a viewer who needs only what is there')
    })

    test('an event that is too large becomes a reset, and the stream goes on', async () => {
      const world = await startJobWorld(under)
      const sub = newUser()
      const id = await startLong(world, sub)
      const viewer = await view(world.service.url, id, world.token(sub))
      write(world, id, 'x'.repeat(1_200_000))
      write(world, id, '1')
      await viewer.until(() => viewer.names.length === 2)
      assert.deepEqual(viewer.names, ['reset', 'progress'])
    })

    test('a caller has 50 streams, of events and live ones together', async () => {
      const world = await startJobWorld(under)
      const sub = newUser()
      const id = await startLong(world, sub)
      const token = world.token(sub)
      const opened = await Promise.all(
        Array.from({ length: MAX_STREAMS_PER_CALLER }, () => view(world.service.url, id, token)),
      )
      for (const path of [`/jobs/${id}/live`, '/v1/events']) {
        const refused = await world.request('GET', path, sub)
        const expected = { status: 429, code: 'rate_limit_exceeded', message: 'Too many open streams' } as const
        assertError(world.service, refused, expected)
        assert.equal(refused.headers['retry-after'], '5')
      }
      opened[0]?.close()
      await until(() => world.service.services.live.viewers === MAX_STREAMS_PER_CALLER - 1)
      await view(world.service.url, id, token)
    })

    test('an operator may view, and HEAD answers without a stream', async () => {
      const world = await startJobWorld(under)
      const id = await startLong(world, newUser())
      const operator = world.service.tokenFor({ sub: newUser(), scopes: ['read:operations'] })
      const viewer = await view(world.service.url, id, operator)
      write(world, id, '1')
      await viewer.until(() => viewer.names.length === 1)
      const head = await world.service.request('HEAD', `/jobs/${id}/live`, { token: operator })
      assert.equal(head.status, 200)
      assert.match(String(head.headers['content-type']), /^text\/event-stream/)
    })

    test('a node that stops ends its streams, and its viewers resume elsewhere', async () => {
      const world = await startJobWorld(under)
      const sub = newUser()
      const id = await startLong(world, sub)
      const other = await under.start({
        db: world.db,
        clock: world.clock,
        jobTypes: TEST_JOB_TYPES,
        env: { WEBHOOK_SECRET, RUNTIME_URL: world.runtime.url },
      })
      const viewer = await view(other.url, id, world.token(sub))
      write(world, id, '1')
      await viewer.until(() => viewer.names.length === 1)
      await other.app.close()
      await viewer.ended()
      assert.ok(Number(viewer.retryMs) >= 1_000)
      assert.equal(viewer.status, null)
      write(world, id, '2')
      const again = await view(world.service.url, id, world.token(sub), viewer.ids[0])
      await again.until(() => again.names.length === 1)
      assert.deepEqual(again.of('progress'), ['2'])
    })

    test('a callback still ends live output if no runtime is configured', async () => {
      const world = await startJobWorld(under, { runtime: false })
      const [thread_id, run_id] = [randomUUID(), randomUUID()]
      const running = { thread_id, run_id, status: 'running', metadata: {} }
      const adopted = await world.callback('report', running)
      const id = adopted.body.job_id
      const viewer = await view(world.service.url, id, world.admin)
      await world.callback('report', { thread_id, run_id, status: 'success', values: { report: { n: 1 } } })
      await viewer.ended()
      assert.deepEqual([viewer.names, viewer.status], [['end'], 'completed'])
    })

    test('a job cancelled while it is viewed ends its streams', async () => {
      const world = await startJobWorld(under)
      const sub = newUser()
      const id = await startLong(world, sub)
      const viewer = await view(world.service.url, id, world.token(sub))
      write(world, id, '1')
      await viewer.until(() => viewer.names.length === 1)
      await world.request('POST', `/jobs/${id}/cancel`, sub)
      await until(async () => {
        await world.clock.advance(200)
        return viewer.isOver
      })
      assert.equal(viewer.status, 'cancelled')
    })
  })
})
