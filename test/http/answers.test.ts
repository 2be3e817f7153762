import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { beforeEach, describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import type { TimelineEntry } from '../../src/jobs/api/job-schema.ts'
import { CONFIRM_AFTER_MS } from '../../src/jobs/settlement/settlement.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { assertError } from '../support/assert-error.ts'
import { type JobWorld, RUN_MS, type ShownJob, sharedJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

const conflict = (message: string) => ({ status: 409, code: 'conflict', message }) as const
const unavailable = (message: string) => ({ status: 503, code: 'service_unavailable', message }) as const
const invalid = (message: string | RegExp) => ({ status: 400, code: 'invalid_request', message }) as const

interface Question {
  id: string
  value: { question: string }
}

describe('the answer to a paused job', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under)
    beforeEach(async () => (await shared()).runtime.setFaults(NO_RUNTIME_FAULTS))

    const pause = async (type: string) => {
      const world = await shared()
      const { id } = await world.start(type, { sub: `user-${randomUUID()}` })
      await world.pass(RUN_MS)
      // A pause without a question counts when it is seen twice.
      await world.sweepUntil(async () => (await world.stored(id)).status === 'awaiting_input')
      const job = await world.stored(id)
      return { world, job, questions: job.interrupts as unknown as Question[] }
    }
    const finish = async (world: JobWorld, { id }: ShownJob) => {
      await world.quiet()
      await world.pass(RUN_MS)
      return world.stored(id)
    }
    /** Another client of the runtime answers. */
    const answerElsewhere = async (world: JobWorld, job: ShownJob) => {
      await world.answerElsewhere(job, 'from elsewhere')
      await world.pass(RUN_MS)
    }

    test('false, 0, the empty text and null arrive as they are', async () => {
      for (const answer of [false, 0, '', null]) {
        const { world, job, questions } = await pause('pausing')
        const resumed = await world.resume(job, { input: answer })
        assert.equal(resumed.status, 202, resumed.text)
        const done = await finish(world, job)
        assert.deepEqual([done.status, done.output], ['completed', { title: 'Done', answer }])
        const run = world.runtime.recentRuns.find(({ runId }) => runId === done.run_id)
        assert.deepEqual(run?.work, { command: { resume: { [String(questions[0]?.id)]: answer } } })
      }
    })

    test('several questions are answered together, by their ids, and each fault of the ids is named', async () => {
      const { world, job, questions } = await pause('both')
      const [first, second] = questions.map(({ id }) => id)
      assert.ok(first && second)
      const faults: [body: object, message: string | RegExp][] = [
        [{ input: 'yes' }, /^body\/input answers one question, and the job asks 2: use "answers" with /],
        [{ answers: { [first]: 1 } }, `body/answers must have "${second}"`],
        [
          { answers: { [first]: 1, other: 2 } },
          `body/answers must not have "other", which the job does not ask, and must have "${second}"`,
        ],
        [{ answers: { [first]: 1 }, input: 1 }, 'body must have either "input" or "answers", not both'],
        [{}, 'body must have the field "input", or "answers"'],
      ]
      for (const [body, message] of faults) assertError(world.service, await world.resume(job, body), invalid(message))
      assert.equal((await world.stored(job.id)).status, 'awaiting_input')
      assert.equal((await world.resume(job, { answers: { [second]: null, [first]: false } })).status, 202)
      const done = await finish(world, job)
      assert.deepEqual(done.output, { title: 'Asked both', answers: [false, null] })
    })

    test('a static breakpoint asks nothing, and goes on with null', async () => {
      const { world, job } = await pause('stopping')
      assert.deepEqual(job.interrupts, [])
      const wrong = invalid('body/input must be null: the job asks no question, it only waits to be continued')
      assertError(world.service, await world.resume(job, { input: 'yes' }), wrong)
      assert.equal((await world.resume(job, { input: null })).status, 202)
      const done = await finish(world, job)
      assert.deepEqual([done.status, done.output], ['completed', { title: 'Done', n: 42 }])
      const run = world.runtime.recentRuns.find(({ runId }) => runId === done.run_id)
      assert.deepEqual(run?.work, { input: null })
    })

    test('a question that was answered elsewhere meanwhile is a 409, and the job goes on with that answer', async () => {
      const { world, job } = await pause('pausing')
      await answerElsewhere(world, job)
      const refused = await world.resume(job, { input: 'late' })
      assertError(world.service, refused, conflict('The question was answered elsewhere meanwhile'))
      const again = await world.resume(job, { input: 'late' })
      assertError(world.service, again, conflict('The job is generating: it awaits no input'))
      await world.sweepUntil(async () => (await world.stored(job.id)).status === 'completed')
      assert.deepEqual((await world.stored(job.id)).output, { title: 'Done', answer: 'from elsewhere' })
    })

    test('a thread that was deleted meanwhile is seen twice, then the job fails, and the caller reads why', async () => {
      const { world, job } = await pause('pausing')
      await fetch(`${world.runtime.url}/threads/${job.thread_id}`, { method: 'DELETE' })
      for (const waitMs of [CONFIRM_AFTER_MS - 1, 1]) {
        const refused = await world.resume(job, { input: 'early' })
        assertError(world.service, refused, unavailable('The runtime does not find the thread now'))
        assert.equal(refused.headers['retry-after'], '10')
        assert.equal((await world.stored(job.id)).status, 'awaiting_input')
        // A round of the sweep may fall on the moment at which the second look counts. The caller must be first.
        await world.db.query(sql`update job_checks set due_at = due_at + 60000 where job_id = ${job.id}`)
        await world.pass(waitMs)
      }
      const answer = await world.resume(job, { input: 'late' })
      assertError(world.service, answer, conflict('The runtime no longer knows the thread: the job has failed'))
      const { status, error, interrupts } = await world.stored(job.id)
      assert.deepEqual(
        [status, error, interrupts],
        ['failed', { code: 'run_lost', message: 'The runtime no longer knows the thread' }, null],
      )
      assertError(
        world.service,
        await world.resume(job, { input: 1 }),
        conflict('The job is failed: it awaits no input'),
      )
    })

    test('an answer given while the runtime is down is accepted, and arrives when the runtime is back', async () => {
      const { world, job } = await pause('pausing')
      world.runtime.setFaults({ lookup_failure: 1, start_failure: 1 })
      const answer = await world.resume(job, { input: false })
      assert.equal(answer.status, 202, answer.text)
      await world.quiet()
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      await world.sweepUntil(async () => (await world.stored(job.id)).status === 'completed')
      assert.deepEqual((await world.stored(job.id)).output, { title: 'Done', answer: false })
    })

    test('an answer that can no longer be applied is not lost silently: the job fails with the reason', async () => {
      const cases = [
        { code: 'answer_not_applied', message: 'The answer could not be applied: the question is not open any more' },
        { code: 'run_lost', message: 'The runtime no longer knows the thread' },
      ]
      for (const error of cases) {
        const { world, job } = await pause('pausing')
        world.runtime.setFaults({ lookup_failure: 1 })
        assert.equal((await world.resume(job, { input: 'kept' })).status, 202)
        await world.quiet()
        if (error.code === 'answer_not_applied') await world.changeByHand(job, { draft: 'by hand' }, 'ask')
        world.runtime.setFaults({ lookup_failure: 0 })
        if (error.code === 'run_lost') {
          await fetch(`${world.runtime.url}/threads/${job.thread_id}`, { method: 'DELETE' })
        }
        await world.sweepUntil(async () => (await world.stored(job.id)).status === 'failed')
        const failed = await world.stored(job.id)
        assert.deepEqual(failed.error, error)
        const runs = world.runtime.recentRuns.filter(({ threadId }) => threadId === job.thread_id)
        assert.ok(runs.every(({ work }) => !JSON.stringify(work).includes('kept')))
        const path = `/jobs/${job.id}/timeline?limit=100`
        const { body } = await world.service.request<{ data: TimelineEntry[] }>('GET', path, { token: world.admin })
        assert.match(JSON.stringify(body.data), new RegExp(`"to":"failed","error":"${error.code}"`))
      }
    })
  })
})
