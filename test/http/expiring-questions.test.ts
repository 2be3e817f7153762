import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { assertError } from '../support/assert-error.ts'
import { addDevice, readJobRows } from '../support/job-rows.ts'
import { type JobWorld, RUN_MS, type ShownJob, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

const HOUR_MS = 3_600_000
/** A resume waits for the state of the thread for this long. */
const STATE_BUDGET_MS = 3_000
const jobTypes = toJobTypes({
  hurried: { assistant_id: 'pause', output_key: 'report', answer_within_seconds: 600, remind_after_seconds: 300 },
  twice: { assistant_id: 'ask_twice', output_key: 'report', answer_within_seconds: 600, remind_after_seconds: 300 },
  patient: {
    assistant_id: 'pause',
    output_key: 'report',
    remind_after_seconds: 300,
    notifications: { reminder: { title: 'Still there?', body: 'A question waits.' } },
  },
})
const LATE = { status: 409, code: 'conflict', message: 'The time to answer is over' } as const

async function pause(world: JobWorld, type: string, sub = `user-${randomUUID()}`): Promise<ShownJob> {
  await addDevice(world.db, sub)
  const { id } = await world.start(type, { sub })
  await world.sweepUntil(async () => (await world.stored(id)).status === 'awaiting_input', RUN_MS)
  return world.stored(id)
}

const answerByOf = ({ answer_by }: ShownJob) => Date.parse(String(answer_by))
const passUntil = (world: JobWorld, atMs: number) => world.leap(atMs - world.clock.now())
const eventsOf = async (world: JobWorld, { id }: ShownJob) =>
  (await readJobRows(world.db, id)).events.map(({ type }) => type)
const countOf = (list: readonly unknown[], wanted: string) => list.filter((one) => one === wanted).length
async function kindsOf(world: JobWorld, { id, created_by }: ShownJob): Promise<string[]> {
  const { body } = await world.request<{ data: { kind: string }[] }>('GET', `/jobs/${id}/timeline`, String(created_by))
  return body.data.map(({ kind }) => kind)
}

describe('questions with a time to answer', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under, { jobTypes })

    test('a question that is not answered in time fails its job once, and not early', async () => {
      const world = await shared()
      const job = await pause(world, 'hurried')
      assert.ok(answerByOf(job) >= Date.parse(job.updated_at) + 600_000)
      await passUntil(world, answerByOf(job) - 1)
      assert.equal((await world.get(job.id)).status, 'awaiting_input')
      await world.sweepUntil(async () => (await world.stored(job.id)).status === 'failed')
      const failed = await world.stored(job.id)
      assert.deepEqual(failed.error, { code: 'answer_expired', message: 'The question was not answered in time' })
      assert.deepEqual([failed.answer_by, failed.interrupts, failed.settled_by], [null, null, null])
      assert.ok(Date.parse(String(failed.finished_at)) >= answerByOf(job))
      await world.leap(2 * HOUR_MS)
      const { events, usage, checks } = await readJobRows(world.db, job.id)
      assert.deepEqual(
        [
          countOf(
            events.map(({ type }) => type),
            'job.failed',
          ),
          usage.length,
          checks.length,
        ],
        [1, 1, 0],
      )
    })

    test('the owner is reminded once, by an event and a push, and the timeline notes it', async () => {
      const world = await shared()
      const job = await pause(world, 'patient')
      assert.equal(job.answer_by, null)
      await world.leap(299_000)
      await world.get(job.id)
      assert.equal(countOf(await eventsOf(world, job), 'job.reminder'), 0)
      await world.leap(20_000)
      await world.sweepUntil(async () => (await eventsOf(world, job)).includes('job.reminder'))
      await world.leap(3 * HOUR_MS)
      await world.get(job.id)
      assert.equal(countOf(await eventsOf(world, job), 'job.reminder'), 1)
      assert.equal(countOf(await kindsOf(world, job), 'reminded'), 1)
      const { notifications, deliveries } = await readJobRows(world.db, job.id)
      assert.deepEqual(
        notifications.map(({ title, body }) => [title, body]),
        [['Still there?', 'A question waits.']],
      )
      assert.equal(deliveries.length, 1)
      assert.equal((await world.stored(job.id)).status, 'awaiting_input')
    })

    test('an answer in time wins over the expiry, and a later one is refused', async () => {
      const world = await shared()
      const [quick, slow] = [await pause(world, 'hurried'), await pause(world, 'hurried')]
      await passUntil(world, answerByOf(quick) - 1)
      assert.equal((await world.resume(quick, { input: 'yes' })).status, 202)
      await world.quiet()
      world.runtime.setFaults({ ...NO_RUNTIME_FAULTS, hang_lookups: true })
      const calls = world.allCalls
      const late = world.resume(slow, { input: 'yes' })
      await until(() => world.allCalls > calls)
      // No longer: the sweep also asks about the question, and after its own timeout it ends the job.
      await world.clock.advance(STATE_BUDGET_MS)
      assertError(world.service, await late, LATE)
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      await world.sweepUntil(async () => (await world.stored(quick.id)).finished_at !== null)
      await world.sweepUntil(async () => (await world.stored(slow.id)).finished_at !== null)
      assert.equal((await world.stored(quick.id)).status, 'completed')
      assert.equal((await world.stored(slow.id)).error?.code, 'answer_expired')
    })

    test('each question of a job has its own time and its own reminder, also after an answer elsewhere', async () => {
      const world = await shared()
      const first = await pause(world, 'twice')
      await world.leap(320_000)
      await world.sweepUntil(async () => countOf(await eventsOf(world, first), 'job.reminder') === 1)
      await world.answerElsewhere(first, 'from elsewhere', { assistant_id: 'ask_twice' })
      await world.sweepUntil(async () => {
        const { status, answer_by } = await world.get(first.id)
        return status === 'awaiting_input' && answer_by !== first.answer_by
      })
      const second = await world.stored(first.id)
      assert.ok(answerByOf(second) > answerByOf(first))
      await passUntil(world, answerByOf(first) + 1_000)
      await world.pass(2_000)
      assert.equal((await world.stored(first.id)).status, 'awaiting_input')
      await world.sweepUntil(async () => countOf(await eventsOf(world, first), 'job.reminder') === 2)
      await passUntil(world, answerByOf(second))
      await world.sweepUntil(async () => (await world.stored(first.id)).error?.code === 'answer_expired')
    })

    test('two nodes remind the owner once, and end the job once', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const job = await pause(world, 'hurried')
      await under.start({ db: world.db, clock: world.clock, jobTypes, env: { RUNTIME_URL: world.runtime.url } })
      await world.leap(301_000)
      await world.sweepUntil(async () => (await eventsOf(world, job)).includes('job.reminder'))
      await passUntil(world, answerByOf(job))
      await world.sweepUntil(async () => (await world.stored(job.id)).error?.code === 'answer_expired')
      await world.pass(5_000)
      const { events, counters, deliveries } = await readJobRows(world.db, job.id)
      const types = events.map(({ type }) => type)
      assert.deepEqual([countOf(types, 'job.reminder'), countOf(types, 'job.failed')], [1, 1])
      assert.deepEqual(
        counters.map(({ runs }) => runs),
        [1],
      )
      assert.equal(new Set(deliveries.map(({ notification_id }) => notification_id)).size, deliveries.length)
    })

    test('questions are still reminded of and expire after a restart, and without a runtime', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const job = await pause(world, 'hurried')
      await world.service.services.close()
      const next = await startJobWorld(under, { jobTypes, db: world.db, clock: world.clock, runtime: false })
      await next.leap(301_000)
      await next.sweepUntil(async () => (await eventsOf(next, job)).includes('job.reminder'))
      await passUntil(next, answerByOf(job))
      await next.sweepUntil(async () => (await next.stored(job.id)).error?.code === 'answer_expired')
      assert.equal(countOf(await eventsOf(next, job), 'job.reminder'), 1)
    })

    test('evidence of an answer elsewhere delays the expiry by a minute at most, also if the runtime fails then', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const job = await pause(world, 'hurried')
      await passUntil(world, answerByOf(job) - 26_000)
      await world.changeByHand(job, { draft: 'by hand' }, 'ask')
      await passUntil(world, answerByOf(job) - 15_000)
      assert.equal((await world.get(job.id)).status, 'awaiting_input')
      const { awaiting_confirmation: evidence } = (await readJobRows(world.db, job.id)).job
      assert.equal(evidence, 'question_closed')
      const seenAtMs = world.clock.now()
      world.runtime.setFaults({ ...NO_RUNTIME_FAULTS, lookup_failure: 1 })
      await passUntil(world, seenAtMs + 12_000)
      await passUntil(world, answerByOf(job) + 1_000)
      await passUntil(world, seenAtMs + 59_000)
      assert.equal((await world.stored(job.id)).status, 'awaiting_input', 'it may have been answered elsewhere')
      for (let s = 0; s < 3; s++) await world.pass(1_000)
      assert.equal((await world.stored(job.id)).error?.code, 'answer_expired')
    })

    test('an open circuit breaker delays neither a reminder nor an expiry', async () => {
      const world = await startJobWorld(under, { jobTypes })
      const jobs = [await pause(world, 'hurried'), await pause(world, 'hurried'), await pause(world, 'hurried')]
      world.runtime.setFaults({ ...NO_RUNTIME_FAULTS, lookup_failure: 1, start_failure: 1 })
      for (let n = 0; n < 6; n++) await world.start('hurried').catch(() => {})
      await world.leap(320_000)
      await world.sweepUntil(async () => {
        const events = await Promise.all(jobs.map((job) => eventsOf(world, job)))
        return events.every((types) => countOf(types, 'job.reminder') === 1)
      })
      await passUntil(world, answerByOf(jobs[2] as ShownJob))
      for (let s = 0; s < 3; s++) await world.pass(1_000)
      for (const { id } of jobs) assert.equal((await world.stored(id)).error?.code, 'answer_expired')
    })
  })
})
