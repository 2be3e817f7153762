import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { TimelineEntry } from '../../src/jobs/api/job-schema.ts'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { CONFIRM_AFTER_MS } from '../../src/jobs/settlement/settlement.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { assertError } from '../support/assert-error.ts'
import { calmJobWorld, newUser } from '../support/calm-job-world.ts'
import { openStream } from '../support/event-stream.ts'
import { addDevice, readJobRows } from '../support/job-rows.ts'
import { GET_STATE, type JobWorld, RUN_MS, type ShownJob, START_RUN, startJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

const HOUR_MS = 3_600_000
/** A read asks the runtime about a paused job once in this time. */
const PAUSED_MAX_AGE_MS = 10_000
const BY_HAND = 'the question was answered elsewhere, without a run; resume the job with the input null'

async function pause(world: JobWorld, type = 'pausing', sub = newUser()): Promise<ShownJob> {
  const { id } = await world.start(type, { sub })
  await world.pass(RUN_MS)
  await world.sweepUntil(async () => (await world.stored(id)).status === 'awaiting_input')
  return world.stored(id)
}

async function kindsOf(world: JobWorld, { id }: ShownJob): Promise<string[]> {
  const path = `/jobs/${id}/timeline?limit=100`
  const { body } = await world.service.request<{ data: TimelineEntry[] }>('GET', path, { token: world.admin })
  return body.data.map(({ kind }) => kind)
}

function hasEnded({ finished_at }: ShownJob): boolean {
  return finished_at !== null
}

/** The shown job without the report of its checks. */
function unchecked({ reconcile: _reconcile, ...job }: ShownJob): object {
  return job
}

describe('a question that is answered in another tool', () => {
  forEachService((under) => {
    const shared = calmJobWorld(under)

    test('its job goes on with that run, and ends with its result exactly once', async () => {
      const world = await shared()
      const sub = newUser()
      await addDevice(world.db, sub)
      const paused = await pause(world, 'pausing', sub)
      await world.pass(PAUSED_MAX_AGE_MS)
      const run = await world.answerElsewhere(paused, 'from elsewhere')
      await world.pass(RUN_MS)
      const going = await world.get(paused.id)
      assert.deepEqual([going.status, going.run_id, going.interrupts], ['generating', run, null])
      assert.equal(going.settled_by, null)
      await world.sweepUntil(async () => hasEnded(await world.stored(paused.id)))
      const job = await world.get(paused.id)
      assert.deepEqual([job.status, job.run_id], ['completed', run])
      assert.deepEqual(job.output, { title: 'Done', answer: 'from elsewhere' })
      const rows = await readJobRows(world.db, job.id)
      assert.deepEqual(
        rows.runs.map(({ run_id, run_seq }) => [run_id, run_seq]),
        [
          [paused.run_id, 1],
          [run, 2],
        ],
      )
      assert.deepEqual([rows.usage.length, rows.checks.length], [1, 0])
      assert.deepEqual(
        rows.notifications.map(({ title }) => title),
        ['Your answer is needed', 'Your result is ready'],
      )
      assert.equal(rows.events.at(-2)?.cause, `${job.id}:2:generating`)
      assert.equal(rows.events.at(-1)?.type, 'job.completed')
      assert.equal((await kindsOf(world, job)).filter((kind) => kind === 'continued_elsewhere').length, 1)
    })

    test('the run elsewhere may ask again, and its question is shown and answered here', async () => {
      const world = await shared()
      const paused = await pause(world, 'asking')
      await world.answerElsewhere(paused, 'yes', { assistant_id: 'ask_twice' })
      await world.pass(PAUSED_MAX_AGE_MS)
      await world.get(paused.id)
      const asked = async () => JSON.stringify((await world.stored(paused.id)).interrupts)
      await world.sweepUntil(async () => (await asked()).includes('Are you sure?'))
      const again = await world.stored(paused.id)
      assert.equal((await world.resume(again, { input: 'sure' })).status, 202)
      await world.sweepUntil(async () => hasEnded(await world.stored(paused.id)))
      const { output } = await world.stored(paused.id)
      assert.deepEqual(output, { title: 'Asked twice', answers: ['yes', 'sure'] })
    })

    async function answerUnseenQuestion(world: JobWorld, { isCancelled }: { isCancelled: boolean }): Promise<ShownJob> {
      const paused = await pause(world, 'asking')
      world.runtime.setFaults({ drop_callbacks: 1 })
      assert.equal((await world.resume(paused, { input: 'yes' })).status, 202)
      world.runtime.setFaults({ drop_callbacks: 1, lookup_failure: 1 })
      const onThread = () => world.runtime.recentRuns.filter(({ threadId }) => threadId === paused.thread_id)
      await world.sweepUntil(() => onThread().filter((run) => run.paused).length === 2)
      if (isCancelled) {
        const cancelled = await world.request('POST', `/jobs/${paused.id}/cancel`, String(paused.created_by))
        assert.equal(cancelled.status, 202, cancelled.text)
      }
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      // The second question is on the checkpoint of the first: the run that asked it has none of its own.
      const state = await fetch(`${world.runtime.url}/threads/${paused.thread_id}/state`)
      const { tasks } = (await state.json()) as { tasks: { interrupts: { id: string }[] }[] }
      const second = { resume: { [String(tasks[0]?.interrupts[0]?.id)]: 'sure' } }
      await world.continueElsewhere(paused, { assistant_id: 'ask_twice', command: second })
      await world.sweepUntil(async () => hasEnded(await world.stored(paused.id)))
      return world.stored(paused.id)
    }

    test('a question that was answered elsewhere before the service saw it does not end its job', async () => {
      const world = await shared()
      const job = await answerUnseenQuestion(world, { isCancelled: false })
      assert.deepEqual([job.status, job.output], ['completed', { title: 'Asked twice', answers: ['yes', 'sure'] }])
      assert.ok((await kindsOf(world, job)).includes('continued_elsewhere'))
    })

    test('a cancelled job whose question was answered elsewhere before the service saw it ends as cancelled', async () => {
      const { status, error } = await answerUnseenQuestion(await shared(), { isCancelled: true })
      assert.deepEqual([status, error], ['cancelled', null])
    })

    test('an answer that was accepted while the runtime was down is not applied if another client answered first: the job goes on with that run', async () => {
      const world = await shared()
      const paused = await pause(world)
      world.runtime.setFaults({ lookup_failure: 1 })
      assert.equal((await world.resume(paused, { input: 'too late' })).status, 202)
      await world.quiet()
      const run = await world.answerElsewhere(paused, 'from elsewhere')
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      await world.sweepUntil(async () => hasEnded(await world.stored(paused.id)))
      const job = await world.stored(paused.id)
      assert.deepEqual([job.status, job.run_id], ['completed', run])
      assert.deepEqual(job.output, { title: 'Done', answer: 'from elsewhere' })
      const path = `/jobs/${job.id}/timeline?limit=100`
      const { body } = await world.service.request<{ data: TimelineEntry[] }>('GET', path, { token: world.admin })
      const entry = body.data.find(({ kind }) => kind === 'continued_elsewhere')
      assert.deepEqual(entry?.detail, { run_seq: 3, run_id: run, answer: 'not_applied' })
    })

    test('a job at a breakpoint that was continued elsewhere goes on, too', async () => {
      const world = await shared()
      const paused = await pause(world, 'stopping')
      await world.continueElsewhere(paused, { assistant_id: 'breakpoint', input: null })
      await world.pass(PAUSED_MAX_AGE_MS)
      await world.get(paused.id)
      await world.sweepUntil(async () => hasEnded(await world.stored(paused.id)))
      const { status, output } = await world.stored(paused.id)
      assert.deepEqual([status, output], ['completed', { title: 'Done', n: 42 }])
    })

    test('a job that no client reads is asked about within the hour', async () => {
      const world = await shared()
      const paused = await pause(world)
      await world.answerElsewhere(paused, 'from elsewhere')
      await world.pass(RUN_MS)
      assert.equal((await world.stored(paused.id)).status, 'awaiting_input')
      await world.leap(HOUR_MS)
      await world.sweepUntil(async () => hasEnded(await world.stored(paused.id)))
      assert.equal((await world.stored(paused.id)).status, 'completed')
    })

    test('while the question is open, reads, pages and streams ask about it once in ten seconds, and change nothing', async () => {
      const world = await startJobWorld(under)
      // A second node on the same database.
      const { db, clock, runtime } = world
      const other = await startJobWorld(under, { db, clock, env: { RUNTIME_URL: runtime.url } })
      const sub = newUser()
      const paused = await pause(world, 'pausing', sub)
      const stream = await openStream(world.service.url, `/jobs/${paused.id}/events`, { token: world.token(sub) })
      const before = world.calls(GET_STATE)
      const { events } = await readJobRows(db, paused.id)
      const readAll = async () => {
        for (const node of [world, other]) {
          await Promise.all([node.get(paused.id), node.request('GET', '/jobs', sub), node.get(paused.id)])
        }
      }
      for (let round = 0; round < 3; round++) {
        await readAll()
        assert.equal(world.calls(GET_STATE), before + round)
        await world.pass(PAUSED_MAX_AGE_MS - 1)
        await readAll()
        assert.equal(world.calls(GET_STATE), before + round)
        await world.pass(1)
        await readAll()
        assert.equal(world.calls(GET_STATE), before + round + 1)
      }
      stream.close()
      assert.deepEqual(unchecked(await world.stored(paused.id)), unchecked(paused))
      assert.deepEqual((await readJobRows(db, paused.id)).events, events)
      assert.deepEqual(new Set(await kindsOf(world, paused)).has('continued_elsewhere'), false)
    })

    test('a run of this service never counts as an answer from elsewhere', async () => {
      const world = await shared()
      const paused = await pause(world)
      const metadata = { job_id: 'job_of_another_turn', run_seq: 1 }
      await world.answerElsewhere(paused, 'of another turn', { metadata })
      await world.pass(PAUSED_MAX_AGE_MS)
      await world.get(paused.id)
      await world.pass(CONFIRM_AFTER_MS)
      const job = await world.get(paused.id)
      assert.deepEqual([job.status, job.run_id], ['awaiting_input', paused.run_id])
    })

    test('a state that was changed by hand closes the question once it is seen twice, and the job is resumed with null', async () => {
      const world = await shared()
      const paused = await pause(world)
      await world.changeByHand(paused, { draft: 'by hand' }, 'ask')
      const refused = await world.resume(paused, { input: 'late' })
      const message = 'The question was answered elsewhere meanwhile'
      assertError(world.service, refused, { status: 409, code: 'conflict', message })
      assert.deepEqual(unchecked(await world.stored(paused.id)), unchecked(paused))
      await world.pass(CONFIRM_AFTER_MS + 1_000)
      for (let n = 0; n < 2; n++) {
        const shown = await world.get(paused.id)
        assert.deepEqual([shown.status, shown.interrupts], ['awaiting_input', []])
        assert.equal(shown.reconcile.last_error, BY_HAND)
        await world.pass(PAUSED_MAX_AGE_MS)
      }
      assert.equal((await kindsOf(world, paused)).filter((kind) => kind === 'answered_elsewhere').length, 1)
      const { events } = await readJobRows(world.db, paused.id)
      assert.equal(events.filter(({ cause }) => String(cause).includes('answered_elsewhere')).length, 1)

      const wrong = await world.resume(paused, { input: 'late' })
      const nothingAsked = 'body/input must be null: the job asks no question, it only waits to be continued'
      assertError(world.service, wrong, { status: 400, code: 'invalid_request', message: nothingAsked })
      assert.equal((await world.resume(paused, { input: null })).status, 202)
      await world.quiet()
      await world.pass(RUN_MS)
      await world.sweepUntil(async () => hasEnded(await world.stored(paused.id)))
      const { status, output } = await world.stored(paused.id)
      assert.deepEqual([status, output], ['completed', { title: 'Done', answer: 'by hand' }])
    })

    test('a state that was finished by hand is the result of the resumed job', async () => {
      const world = await shared()
      const paused = await pause(world)
      await world.changeByHand(paused, { report: { title: 'by hand' } }, 'write')
      for (let n = 0; n < 2; n++) {
        await world.pass(PAUSED_MAX_AGE_MS)
        await world.get(paused.id)
      }
      assert.equal((await world.resume(paused, { input: null })).status, 202)
      await world.quiet()
      await world.pass(RUN_MS)
      await world.sweepUntil(async () => hasEnded(await world.stored(paused.id)))
      const { status, output } = await world.stored(paused.id)
      assert.deepEqual([status, output], ['completed', { title: 'by hand' }])
    })

    test('a job whose state was changed by hand goes on with the run that another client starts then', async () => {
      const world = await shared()
      const paused = await pause(world)
      await world.changeByHand(paused, { draft: 'by hand' }, 'ask')
      for (let n = 0; n < 2; n++) {
        await world.pass(PAUSED_MAX_AGE_MS)
        await world.get(paused.id)
      }
      const run = await world.continueElsewhere(paused, { input: null })
      await world.pass(RUN_MS)
      const starts = world.calls(START_RUN)
      const refused = await world.resume(paused, { input: null })
      const message = 'The question was answered elsewhere meanwhile'
      assertError(world.service, refused, { status: 409, code: 'conflict', message })
      await world.sweepUntil(async () => hasEnded(await world.stored(paused.id)))
      const { status, run_id, output } = await world.stored(paused.id)
      assert.deepEqual([status, run_id, output], ['completed', run, { title: 'Done', answer: 'by hand' }])
      assert.equal(world.calls(START_RUN), starts)
    })

    test('a thread that is gone fails the job when it is seen twice, and no deadline does', async () => {
      const world = await shared()
      const paused = await pause(world)
      // Long after the deadline of its run.
      await world.leap(48 * HOUR_MS)
      await world.quiet()
      assert.equal((await world.stored(paused.id)).status, 'awaiting_input')
      await world.pass(2 * PAUSED_MAX_AGE_MS)
      await fetch(`${world.runtime.url}/threads/${paused.thread_id}`, { method: 'DELETE' })
      assert.equal((await world.get(paused.id)).status, 'awaiting_input')
      await world.pass(CONFIRM_AFTER_MS - 1)
      assert.equal((await world.get(paused.id)).status, 'awaiting_input')
      await world.sweepUntil(async () => hasEnded(await world.get(paused.id)))
      const { status, error } = await world.stored(paused.id)
      assert.deepEqual([status, error?.code], ['failed', 'run_lost'])
    })

    test('the conversation goes on when the run from elsewhere has ended', async () => {
      const world = await shared()
      const paused = await pause(world)
      const next = { type: 'pausing', input: { title: 'Next' }, continues: paused.id }
      const again = () => world.request('POST', '/jobs', String(paused.created_by), { body: next })
      await world.answerElsewhere(paused, 'from elsewhere')
      assert.equal((await again()).status, 409)
      await world.pass(PAUSED_MAX_AGE_MS)
      await world.get(paused.id)
      await world.sweepUntil(async () => hasEnded(await world.stored(paused.id)))
      assert.equal((await again()).status, 202)
    })

    test('a paused job takes no place of max_running; its run from elsewhere does', async () => {
      const jobTypes = toJobTypes({ single: { assistant_id: 'pause', output_key: 'report', max_running: 1 } })
      const world = await startJobWorld(under, { jobTypes })
      const first = await pause(world, 'single')
      const second = await pause(world, 'single')
      assert.equal(world.calls(START_RUN), 2)
      world.runtime.setFaults({ running_ms: 60_000 })
      // With a new input, the graph begins again, and asks again when the run ends.
      await world.continueElsewhere(first, { input: { title: 'Again' } })
      await world.pass(PAUSED_MAX_AGE_MS)
      assert.equal((await world.get(first.id)).status, 'generating')
      await world.resume(second, { input: 'yes' })
      await world.quiet()
      await world.pass(10_000)
      assert.equal((await world.stored(second.id)).run_id, null, 'it waits for a place')
      await world.sweepUntil(async () => (await world.stored(first.id)).status === 'awaiting_input')
      await world.sweepUntil(async () => hasEnded(await world.stored(second.id)))
      assert.equal((await world.stored(second.id)).status, 'completed')
    })
  })
})
