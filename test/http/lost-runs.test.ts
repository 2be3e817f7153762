import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { calmJobWorld, heal, isOver, newUser } from '../support/calm-job-world.ts'
import { readJobRows } from '../support/job-rows.ts'
import { type JobWorld, RUN_MS, startJobWorld } from '../support/job-world.ts'
import { forEachService, type ServiceUnderTest } from '../support/service.ts'

const DAY_MS = 24 * 3_600_000

/** A graph writes a draft and pauses. Its callback arrives, and the runtime cannot be asked. */
async function reportedPause(under: ServiceUnderTest): Promise<{ world: JobWorld; id: string }> {
  const world = await startJobWorld(under)
  const { id } = await world.start('tricky')
  world.runtime.setFaults({ lookup_failure: 1 })
  await world.pass(RUN_MS)
  const callbacks = await world.db.query(sql`select outcome from callbacks where job_id = ${id}`)
  assert.deepEqual(callbacks, [{ outcome: 'deferred' }])
  return { world, id }
}

describe('lost runs', () => {
  forEachService((under) => {
    const shared = calmJobWorld(under)

    test('a run that the runtime no longer knows is lost; if it was being cancelled, it is cancelled', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const [lost, cancelled] = [await world.start('report'), await world.start('report')]
      world.runtime.setFaults({ lookup_failure: 1 })
      assert.equal((await world.cancel(cancelled)).status, 202)
      world.runtime.setFaults({ lookup_failure: 0, lose_runs: true })
      assert.match((await world.get(lost.id)).status, /processing|generating/, 'a replica may lag: once is not enough')
      assert.match((await world.get(cancelled.id)).status, /processing|generating/, 'its run may still be active')
      await world.pass(9_999)
      for (const { id } of [lost, cancelled]) {
        await world.get(id)
        assert.match((await world.stored(id)).status, /processing|generating/, 'nor is twice in a moment')
      }
      await world.pass(1)
      const isOver = async (id: string) => (await world.get(id)).finished_at !== null
      await world.sweepUntil(async () => (await isOver(cancelled.id)) && (await isOver(lost.id)))
      assert.equal((await world.stored(cancelled.id)).status, 'cancelled')
      const job = await world.stored(lost.id)
      assert.deepEqual(job.error, { code: 'run_lost', message: 'The runtime no longer knows the run' })
      assert.deepEqual([job.status, job.settled_by], ['failed', 'read'])
    })

    test('a run or an output that a lagging replica hides once does not end the job', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1, lose_runs: true })
      const { id } = await world.start('report')
      await world.pass(RUN_MS)
      await world.get(id)
      world.runtime.setFaults({ lose_runs: false })
      await world.sweepUntil(async () => isOver(await world.stored(id)))
      const job = await world.stored(id)
      assert.deepEqual([job.status, job.settled_by], ['completed', 'read'])
      const { job: row } = await readJobRows(world.db, id)
      assert.deepEqual([row.awaiting_confirmation, row.awaiting_confirmation_since], [null, null])
    })

    test('a run that was hidden once and then seen running ends by its callback', async () => {
      const world = await shared()
      world.runtime.setFaults({ lose_runs: true })
      const input = { title: 'Done', sandbox: { duration_ms: 20_000 } }
      const { id } = await world.start('report', { input })
      await world.get(id)
      world.runtime.setFaults({ lose_runs: false })
      await world.pass(11_000)
      assert.equal((await world.get(id)).status, 'generating')
      // The run ends after 20,050 ms: so close to its end, no round of the sweep comes before its callback.
      await world.pass(9_049)
      await world.pass(1)
      const job = await world.stored(id)
      assert.deepEqual([job.status, job.settled_by], ['completed', 'callback'])
    })

    test('a run that is seen once contradicts its loss, though a later call of the same check fails', async () => {
      const world = await startJobWorld(under)
      world.runtime.setFaults({ drop_callbacks: 1, lookup_failure: 1 })
      const job = await world.start('report', { input: { title: 'Done', sandbox: { duration_ms: 60_000 } } })
      assert.equal((await world.cancel(job)).status, 202)
      world.runtime.setFaults({ lookup_failure: 0, lose_runs: true })
      await world.get(job.id)
      const evidence = async () => (await readJobRows(world.db, job.id)).job.awaiting_confirmation
      assert.equal(await evidence(), 'run_missing')
      // The run is found and asked to stop; the lookup after that fails.
      world.runtime.setFaults({ lookup_failure: 0.5, lose_runs: false })
      world.chances.push(0.9, 0.1)
      const read = await world.get(job.id)
      assert.match(read.reconcile.last_error ?? '', /the runtime answered 503/)
      assert.equal(await evidence(), null)
    })

    test('a thread, a question or a checkpoint that is found contradicts its loss, though the start after it fails', async () => {
      const world = await startJobWorld(under)
      const evidenceOf = async (id: string) => (await readJobRows(world.db, id)).job.awaiting_confirmation
      const see = (id: string, evidence: string) =>
        world.db.query(sql`
          update jobs set awaiting_confirmation = ${evidence}, awaiting_confirmation_since = ${world.clock.now()}
          where id = ${id}`)
      const continueJob = async ({ id: continues }: { id: string }) => {
        const body = { type: 'report', input: { title: 'next' }, continues }
        const turn = await world.request('POST', '/jobs', 'ada', { body })
        assert.equal(turn.status, 202, turn.text)
        return turn.body
      }
      const [first, pinned, paused] = [
        await world.start('report'),
        await world.start('report'),
        await world.start('pausing'),
      ]
      for (const { id } of [first, pinned, paused]) await world.sweepUntil(async () => isOver(await world.stored(id)))
      const { thread_id } = await world.stored(pinned.id)
      await world.db.query(sql`update threads set is_pinned = 1 where id = ${thread_id}`)
      world.runtime.setFaults({ start_failure: 1 })
      const [next, nextPinned] = [await continueJob(first), await continueJob(pinned)]
      assert.equal((await world.resume(paused, { input: 'yes' })).status, 202)
      await world.quiet()
      await see(next.id, 'thread_missing')
      await see(nextPinned.id, 'checkpoint_missing')
      await see(paused.id, 'question_closed')
      for (const { id } of [next, nextPinned, paused]) {
        await world.sweepUntil(async () => (await evidenceOf(id)) === null)
      }
      await heal(world)
    })

    test('a check that fails before it can confirm its evidence is repeated after the backoff', async () => {
      const world = await startJobWorld(under)
      world.runtime.setFaults({ drop_callbacks: 1 })
      const { id } = await world.start('keyless')
      await world.pass(RUN_MS)
      await world.get(id)
      assert.equal((await readJobRows(world.db, id)).job.awaiting_confirmation, 'output_missing')
      // The sweep finds the run, and the lookup of its state fails.
      world.runtime.setFaults({ lookup_failure: 0.5 })
      world.chances.push(0.9, 0.1)
      await world.leap(10_000)
      // After a leap the heartbeat is late, and the sweep may take the job only after the next one.
      await world.sweepUntil(async () => (await world.stored(id)).reconcile.last_error !== null)
      const { last_error, next_at } = (await world.stored(id)).reconcile
      assert.match(last_error ?? '', /the runtime answered 503/)
      assert.ok(Date.parse(next_at ?? '') > world.clock.now(), 'the next check is later')
    })

    test('an end that only a callback reported outlives the deadline, and the runtime decides', async () => {
      const { world, id } = await reportedPause(under)
      await world.leap(2 * DAY_MS)
      const waiting = await world.getInTime(id)
      assert.deepEqual([waiting.status, waiting.output], ['processing', null])
      assert.match(waiting.reconcile.last_error ?? '', /reported, and the runtime has not confirmed it yet/)
      await heal(world)
      await world.sweepUntil(async () => isOver(await world.stored(id)))
      assert.equal((await world.stored(id)).status, 'awaiting_input', 'the output was a draft')
    })

    test('the deadline does not end a job whose end was reported, though its type is not configured any more', async () => {
      const { world, id } = await reportedPause(under)
      await world.db.query(sql`update jobs set type = 'removed' where id = ${id}`)
      await world.leap(2 * DAY_MS)
      const waiting = await world.getInTime(id)
      assert.equal(waiting.status, 'processing')
      assert.match(waiting.reconcile.last_error ?? '', /the job type is not configured any more/)
      await world.leap(6 * DAY_MS)
      assert.equal((await world.getInTime(id)).error?.code, 'deadline_exceeded')
    })

    test('an end that the runtime does not confirm for a week is accepted, and the timeline says so', async () => {
      const { world, id } = await reportedPause(under)
      await world.leap(7 * DAY_MS)
      assert.equal((await world.getInTime(id)).status, 'completed')
      const timeline = await world.service.request<{ data: { kind: string; detail: { confirmed?: boolean } }[] }>(
        'GET',
        `/jobs/${id}/timeline`,
        { token: world.admin },
      )
      const last = timeline.body.data.findLast(({ kind }) => kind === 'transition')
      assert.equal(last?.detail.confirmed, false)
    })

    test('a run whose thread was deleted is lost as well', async () => {
      const world = await shared()
      const sub = newUser()
      const run = await world.startElsewhere({ user_id: sub })
      const followed = await world.request('POST', '/jobs', sub, { body: { type: 'report', ...run } })
      assert.equal(followed.status, 202, followed.text)
      await fetch(`${world.runtime.url}/threads/${run.thread_id}`, { method: 'DELETE' })
      await world.sweepUntil(async () => isOver(await world.stored(followed.body.id)))
      assert.equal((await world.stored(followed.body.id)).error?.code, 'run_lost')
    })

    test('a callback decides if the runtime deleted the run before it could confirm the end', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1, lookup_failure: 1 })
      const messages = [{ type: 'ai', content: 'The answer' }]
      const followed = { thread_id: randomUUID(), run_id: randomUUID(), status: 'success', values: { messages } }
      const { body } = await world.callback('agent', followed)
      assert.equal(body.outcome, 'adopted')
      await world.quiet()
      assert.equal((await world.stored(body.job_id)).status, 'processing', 'the runtime is to be asked first')
      await heal(world)
      await world.sweepUntil(async () => isOver(await world.stored(body.job_id)))
      const job = await world.get(body.job_id)
      assert.deepEqual([job.status, job.error], ['completed', null])
      assert.match(JSON.stringify(job.output), /The answer/)
    })

    test('a callback decides if the runtime deleted the thread, also when the callback comes twice', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const { id, thread_id } = await world.start('agent')
      const { run_id } = await world.stored(id)
      await fetch(`${world.runtime.url}/threads/${thread_id}`, { method: 'DELETE' })
      const messages = [{ type: 'ai', content: 'The answer' }]
      const callback = { thread_id, run_id, status: 'success', values: { messages } }
      assert.equal((await world.callback('agent', callback)).body.outcome, 'deferred')
      await world.quiet()
      // The second sighting is that of the second callback: only the clock goes on, not the sweep.
      await world.clock.leap(10_000)
      await world.callback('agent', { ...callback, webhook_sent_at: 'later' })
      await world.sweepUntil(async () => isOver(await world.stored(id)))
      const job = await world.get(id)
      assert.deepEqual([job.status, job.error], ['completed', null])
      assert.match(JSON.stringify(job.output), /The answer/)
    })
  })
})
