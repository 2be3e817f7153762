import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { calmJobWorld, isOver, newUser } from '../support/calm-job-world.ts'
import { addDevice, readJobRows } from '../support/job-rows.ts'
import { RUN_MS, START_RUN } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

const QUESTION = { question: 'Publish it?' }

describe('pause and resume', () => {
  forEachService((under) => {
    const shared = calmJobWorld(under)

    test('a graph that pauses asks its question; the answer goes on as a new run of the same job', async () => {
      const world = await shared()
      const sub = newUser()
      await addDevice(world.db, sub)
      const started = await world.start('pausing', { sub, input: { title: 'Paused' } })
      await world.pass(RUN_MS)
      const paused = await world.get(started.id)
      assert.equal(paused.status, 'awaiting_input')
      assert.equal(paused.output, null)
      assert.equal(paused.finished_at, null)
      assert.deepEqual(
        (paused.interrupts as { value: unknown }[]).map(({ value }) => value),
        [QUESTION],
      )
      const all = world.allCalls
      await world.pass(60_000)
      assert.equal(world.allCalls, all, 'without a read, the runtime is asked about the question only once an hour')

      const answer = await world.resume(paused, { input: { approved: true } })
      assert.equal(answer.status, 202, answer.text)
      assert.equal(answer.body.status, 'processing')
      assert.equal(answer.body.run_id, null)
      assert.equal(answer.body.interrupts, null)
      await world.quiet()
      const late = { thread_id: paused.thread_id, run_id: paused.run_id, status: 'success', values: { report: 'old' } }
      assert.equal((await world.callback('pausing', late)).body.outcome, 'stale')
      await world.pass(RUN_MS)
      const job = await world.get(started.id)
      assert.equal(job.status, 'completed')
      assert.deepEqual(job.output, { title: 'Paused', answer: { approved: true } })
      assert.notEqual(job.run_id, paused.run_id)
      assert.equal(job.thread_id, paused.thread_id)
      const rows = await readJobRows(world.db, job.id)
      assert.deepEqual(
        rows.runs.map(({ run_id, run_seq }) => [run_id, run_seq]),
        [
          [paused.run_id, 1],
          [job.run_id, 2],
        ],
      )
      assert.equal(rows.usage.length, 1)
      assert.deepEqual(
        rows.events.map(({ type }) => type).filter((type) => type !== 'job.updated'),
        ['job.created', 'job.awaiting_input', 'job.completed'],
      )
      assert.deepEqual(
        rows.notifications.map(({ title }) => title),
        ['Your answer is needed', 'Your result is ready'],
      )
    })

    test('a graph may ask twice, and each question is shown and pushed', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const sub = newUser()
      await addDevice(world.db, sub)
      const { id } = await world.start('asking', { sub })
      await world.pass(RUN_MS)
      await world.resume(await world.get(id), { input: 'yes' })
      await world.quiet()
      await world.pass(RUN_MS)
      const again = await world.get(id)
      assert.equal(again.status, 'awaiting_input')
      assert.match(JSON.stringify(again.interrupts), /Are you sure\?/)
      await world.resume(again, { input: 'sure' })
      await world.quiet()
      await world.pass(RUN_MS)
      const job = await world.get(id)
      assert.deepEqual(job.output, { title: 'Asked twice', answers: ['yes', 'sure'] })
      const { notifications, events } = await readJobRows(world.db, id)
      assert.equal(notifications.length, 3)
      assert.equal(events.filter(({ type }) => type === 'job.awaiting_input').length, 2)
    })

    test('two concurrent resumes start one run', async () => {
      const world = await shared()
      const started = await world.start('pausing', { sub: newUser() })
      await world.pass(RUN_MS)
      const before = world.calls(START_RUN)
      const answers = await Promise.all([1, 2, 3, 4].map((n) => world.resume(started, { input: n })))
      assert.deepEqual(answers.map(({ status }) => status).sort(), [202, 409, 409, 409])
      await world.quiet()
      assert.equal(world.calls(START_RUN), before + 1)
      await world.pass(RUN_MS)
      assert.equal((await world.stored(started.id)).status, 'completed')
    })

    test('a callback of an earlier run never settles the next one, even if that run is not known yet', async () => {
      const world = await shared()
      const started = await world.start('pausing', { sub: newUser() })
      await world.pass(RUN_MS)
      world.runtime.setFaults({ start_failure: 1 })
      await world.resume(started, { input: 'yes' })
      await world.quiet()
      assert.equal((await world.stored(started.id)).run_id, null)
      const stale = { thread_id: started.thread_id, run_id: randomUUID(), status: 'error', error: 'of the first run' }
      for (const run_seq of [1, 3]) {
        const metadata = { job_id: started.id, run_seq }
        const answer = await world.callback('pausing', { ...stale, metadata })
        assert.deepEqual(answer.body, { received: true, outcome: 'stale', job_id: started.id })
      }
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      await world.sweepUntil(async () => isOver(await world.stored(started.id)))
      assert.equal((await world.stored(started.id)).status, 'completed')
    })

    test('a job of a type with may_pause false still awaits input if it pauses without an output', async () => {
      const world = await shared()
      const { id } = await world.start('careless')
      await world.pass(RUN_MS)
      assert.equal((await world.stored(id)).status, 'awaiting_input')
    })
  })
})
