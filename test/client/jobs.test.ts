import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { afterEach, describe, test } from 'node:test'
import { type ClientOptions, createClient } from '../../client/src/client.ts'
import { JobAwaitingInput, JobCancelled, JobFailed } from '../../client/src/errors.ts'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { closeFetchConnections } from '../support/fetch-connections.ts'
import { type JobWorld, type ShownJob, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { overTime } from '../support/over-time.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

interface TestTypes {
  report: { input: { title?: string; n?: number; sandbox?: object }; output: { title: string; n: number } }
  throwing: { input: object; output: unknown }
  pausing: { input: { title: string }; output: { title: string; answer: string }; resume: string }
  both: { input: object; output: { answers: unknown[] }; resume: string }
  stopping: { input: object; output: { title: string } }
}

describe('the client on the real service', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under)
    afterEach(closeFetchConnections)

    function clientOf(world: JobWorld, sub = `user-${randomUUID()}`, options: Partial<ClientOptions> = {}) {
      return createClient<TestTypes>({ url: world.service.url, token: () => world.token(sub), ...options })
    }

    test('the client starts a job, follows it and returns its typed result', async () => {
      const world = await shared()
      const api = clientOf(world)
      const job = await api.jobs.start('report', { title: 'Sales', n: 3 })
      assert.equal(job.data?.status, 'processing')
      assert.deepEqual(await overTime(world, job.result()), { title: 'Sales', n: 3 })
      assert.equal(job.data?.status, 'completed')
      const again = await api.jobs.get<'report'>(job.id)
      assert.deepEqual(await again.result(), { title: 'Sales', n: 3 })
    })

    test('the client configures a start, an answer and a next turn', async () => {
      const language = { type: 'string' }
      const configurable_schema = { properties: { language }, additionalProperties: false }
      const jobTypes = toJobTypes({
        whoami: { assistant_id: 'whoami_asked', output_key: 'report', configurable_schema },
      })
      const world = await startJobWorld(under, { jobTypes })
      interface Types {
        whoami: { input: object; output: { language: string }; resume: string; configurable: { language: string } }
      }
      const api = createClient<Types>({ url: world.service.url, token: () => world.token('ada') })
      const options = (name: string) => ({ configurable: { language: name } })
      const job = await api.jobs.start('whoami', {}, options('de'))
      assert.deepEqual(job.data?.configurable, { language: 'de' })
      await overTime(world, assert.rejects(job.result(), JobAwaitingInput))
      await overTime(world, job.answer('yes', options('en')))
      assert.equal((await overTime(world, job.result())).language, 'en')
      const next = await job.continue({}, options('fr'))
      assert.deepEqual(next.data?.configurable, { language: 'fr' })
    })

    test('an answer after the question expired is refused, and the result says why', async () => {
      const pausing = { assistant_id: 'pause', output_key: 'report', answer_within_seconds: 60 }
      const world = await startJobWorld(under, { jobTypes: toJobTypes({ pausing }) })
      const api = clientOf(world)
      const job = await api.jobs.start('pausing', { title: 'Plan' })
      await overTime(world, assert.rejects(job.result(), JobAwaitingInput))
      await world.leap(61_000)
      await world.sweepUntil(async () => (await world.stored(job.id)).finished_at !== null)
      await overTime(world, assert.rejects(job.answer('yes'), { code: 'conflict', status: 409 }))
      await overTime(world, assert.rejects(job.result(), { code: 'answer_expired' }))
      await overTime(world, assert.rejects(job.answer('yes'), { code: 'conflict', status: 409 }))
    })

    test('a failed job throws JobFailed with its code, a cancelled one JobCancelled', async () => {
      const world = await shared()
      const api = clientOf(world)
      const failing = await api.jobs.start('throwing', {})
      const failed = assert.rejects(failing.result(), (error) => {
        assert.ok(error instanceof JobFailed)
        assert.equal(error.code, 'run_failed')
        assert.equal(error.job.id, failing.id)
        return true
      })
      await overTime(world, failed)

      const cancelled = await api.jobs.start('report', {})
      await overTime(world, cancelled.cancel())
      await overTime(world, assert.rejects(cancelled.result(), JobCancelled))
      assert.equal((await cancelled.cancel()).status, 'cancelled')
      await assert.rejects(failing.cancel(), { code: 'conflict', status: 409 })
    })

    test('a turn is enqueued, its input replaced, and the conversation deleted', async () => {
      const world = await shared()
      const api = clientOf(world)
      const first = await api.jobs.start('report', { title: 'one' })
      await assert.rejects(first.continue({ title: 'two' }), { code: 'conflict' })
      const second = await first.continue({ title: 'two' }, { onBusy: 'enqueue' })
      assert.equal(second.data?.queued_behind, first.id)
      assert.deepEqual((await second.replaceInput({ title: 'two again' })).input, { title: 'two again' })
      await assert.rejects(api.conversations.delete(second.data?.thread_id ?? ''), { code: 'conflict' })
      assert.deepEqual(await overTime(world, second.result()), { title: 'two again', n: 0 })
      await assert.rejects(second.replaceInput({ title: 'too late' }), { code: 'conflict' })
      await api.conversations.delete(second.data?.thread_id ?? '')
      await assert.rejects(first.get(), { code: 'not_found' })
    })

    test('an ended job is repeated as a new job with the same input', async () => {
      const world = await shared()
      const api = clientOf(world)
      const job = await api.jobs.start('report', { title: 'Sales', n: 3 })
      await assert.rejects(job.retry(), { code: 'conflict' })
      await overTime(world, job.result())
      const again = await job.retry({ idempotencyKey: 'again' })
      assert.deepEqual(await overTime(world, again.result()), { title: 'Sales', n: 3 })
      assert.equal(again.data?.retry_of, job.id)
      assert.equal((await job.retry({ idempotencyKey: 'again' })).id, again.id)
      assert.equal((await job.get()).retried_as, again.id)
      await assert.rejects(job.retry(), { code: 'conflict' })
      const third = await job.retry({ again: true })
      assert.equal((await job.get()).retried_as, third.id)
      const retried = await api.jobs.list({ retried: true }).page()
      assert.ok(retried.data.some(({ id }) => id === job.id))
    })

    test('a question is thrown and answered by its id; answering it again is no error', async () => {
      const world = await shared()
      const api = clientOf(world)
      const job = await api.jobs.start('pausing', { title: 'Plan' })
      const asked = assert.rejects(job.result(), (error) => {
        assert.ok(error instanceof JobAwaitingInput)
        assert.deepEqual(error.interrupts[0]?.value, { question: 'Publish it?' })
        return true
      })
      await overTime(world, asked)
      await overTime(world, job.answer('yes'))
      const onAnotherDevice = api.jobs.handle<'pausing'>(job.id)
      const { status } = await overTime(world, onAnotherDevice.answers({ any: 'no' }))
      assert.notEqual(status, 'awaiting_input')
      assert.deepEqual(await overTime(world, job.result()), { title: 'Plan', answer: 'yes' })
    })

    test('an answer that came too late resolves, and the job goes on with the run that another tool started', async () => {
      const world = await shared()
      const api = clientOf(world, undefined, { clock: world.clock })
      const answerLate = async (answerElsewhere: (paused: ShownJob) => Promise<string>) => {
        const job = await api.jobs.start('pausing', { title: 'Plan' })
        await overTime(world, assert.rejects(job.result(), JobAwaitingInput))
        const runId = await answerElsewhere(await world.stored(job.id))
        const resumed = await overTime(world, job.answer('too late'))
        assert.deepEqual([resumed.run_id, resumed.status === 'awaiting_input'], [runId, false])
        return job
      }
      // Closed by hand, and the run that goes on has written nothing yet: the service sees that twice, 10 s apart.
      await answerLate(async (paused) => {
        await world.changeByHand(paused, { draft: 'by hand' }, 'ask')
        return world.continueElsewhere(paused, { input: { sandbox: { duration_ms: 30_000 } } })
      })
      const job = await answerLate(async (paused) => {
        const runId = await world.answerElsewhere(paused, 'from elsewhere')
        await world.pass(1_000)
        return runId
      })
      assert.equal((await overTime(world, job.result())).answer, 'from elsewhere')
    })

    test('result with waitForAnswer goes on with the run of another tool that answered the question', async () => {
      const world = await shared()
      const job = await clientOf(world, undefined, { clock: world.clock }).jobs.start('pausing', { title: 'Plan' })
      const result = job.result({ waitForAnswer: true })
      await world.sweepUntil(async () => (await world.stored(job.id)).status === 'awaiting_input')
      await world.answerElsewhere(await world.stored(job.id), 'from elsewhere')
      assert.deepEqual(await overTime(world, result), { title: 'Plan', answer: 'from elsewhere' })
    })

    test('an answer is refused if the question was closed elsewhere without a run, and resume continues the job', async () => {
      const world = await shared()
      const job = await clientOf(world, undefined, { clock: world.clock }).jobs.start('pausing', { title: 'Plan' })
      await overTime(world, assert.rejects(job.result(), JobAwaitingInput))
      await world.changeByHand(await world.stored(job.id), { answer: 'by hand' })
      await overTime(world, assert.rejects(job.answer('too late'), { code: 'conflict' }))
      assert.deepEqual(job.data?.interrupts, [])
      const { status } = await overTime(world, job.resume())
      assert.notEqual(status, 'awaiting_input')
    })

    test('a job starts at its time, and a question that is not answered in time fails with answer_expired', async () => {
      const jobTypes = toJobTypes({
        report: { assistant_id: 'report', output_key: 'report', may_pause: false },
        pausing: { assistant_id: 'pause', output_key: 'report', answer_within_seconds: 60, remind_after_seconds: 30 },
      })
      const world = await startJobWorld(under, { jobTypes })
      const api = clientOf(world)
      const runAt = new Date(world.clock.now() + 600_000)
      const later = await api.jobs.start('report', { title: 'Later', n: 1 }, { runAt })
      const asking = await api.jobs.start('pausing', { title: 'Plan' })
      assert.equal(later.data?.run_at, runAt.toISOString())
      const expired = assert.rejects(asking.result({ waitForAnswer: true }), (error) => {
        assert.ok(error instanceof JobFailed)
        assert.equal(error.code, 'answer_expired')
        return true
      })
      await overTime(world, expired)
      assert.ok(asking.data?.answer_by === null)
      assert.equal((await later.get()).run_id, null)
      await world.leap(600_000)
      assert.deepEqual(await overTime(world, later.result()), { title: 'Later', n: 1 })
    })

    test('several questions are answered together, and a breakpoint is continued', async () => {
      const world = await shared()
      const api = clientOf(world)
      const both = await api.jobs.start('both', {})
      const stopping = await api.jobs.start('stopping', {})
      await overTime(world, assert.rejects(both.result(), JobAwaitingInput))
      await overTime(world, assert.rejects(stopping.result(), JobAwaitingInput))
      const interrupts = both.data?.interrupts
      assert.equal(interrupts?.length, 2)
      const fine = Object.fromEntries((interrupts ?? []).map(({ id }) => [String(id), 'fine']))
      await overTime(world, Promise.all([both.answers(fine), stopping.resume()]))
      const [answered, continued] = await overTime(world, Promise.all([both.result(), stopping.result()]))
      assert.deepEqual(answered.answers.length, 2)
      assert.equal(continued.title, 'Untitled')
    })

    test('a lost callback only costs time: the open stream makes the service check the run', async () => {
      const world = await startJobWorld(under)
      world.runtime.setFaults({ drop_callbacks: 1 })
      const job = await clientOf(world).jobs.start('report', { title: 'Lost', n: 1 })
      assert.deepEqual(await overTime(world, job.result()), { title: 'Lost', n: 1 })
    })

    test('the client gets the result without any stream by reading the job', async () => {
      const world = await shared()
      const clock = new ManualClock()
      const api = clientOf(world, undefined, { streaming: false, clock })
      const job = await api.jobs.start('report', { title: 'Polled', n: 2 })
      // The client has its own clock, which sets the pace of its reads.
      const passing = { pass: async (ms: number) => void (await Promise.all([world.pass(ms), clock.advance(ms)])) }
      assert.deepEqual(await overTime(passing, job.result()), { title: 'Polled', n: 2 })
    })

    test('events arrive typed and in order, and lists, counts and summaries show the jobs', async () => {
      const world = await shared()
      const api = clientOf(world)
      const stop = new AbortController()
      const seen: string[] = []
      const reading = (async () => {
        for await (const event of api.events({ signal: stop.signal, after: '0' })) {
          seen.push(event.type)
          if (event.type === 'job.completed') stop.abort()
        }
      })()
      const first = await api.jobs.start('report', { title: 'One' })
      await overTime(world, reading)
      assert.deepEqual([seen[0], seen.at(-1)], ['job.created', 'job.completed'])
      // Takes so long that it has not ended when the lists have been read.
      const second = await api.jobs.start('report', { title: 'Two', sandbox: { duration_ms: 60_000 } })
      const ids: string[] = []
      const listing = (async () => {
        for await (const { id } of api.jobs.list({ limit: 1 })) ids.push(id)
      })()
      await overTime(world, listing)
      assert.deepEqual(ids, [second.id, first.id])
      const { data } = await api.jobs.list({ fields: 'summary', status: 'completed' }).page()
      assert.deepEqual(
        data.map((job) => [job.id, 'input' in job]),
        [[first.id, false]],
      )
      const { counts } = await api.jobs.counts()
      assert.equal(counts.completed, 1)
      assert.ok((await api.jobs.types()).some(({ name }) => name === 'report'))
      assert.equal((await first.timeline({ limit: 1 }).page()).data.length, 1)
      await first.delete()
      await assert.rejects(first.get(), { code: 'not_found' })
    })

    test('a stream continues after a restart of the service, and the result arrives', async () => {
      const world = await startJobWorld(under)
      const sub = `user-${randomUUID()}`
      let url = world.service.url
      const api = clientOf(world, sub, {
        url: 'http://service.test',
        fetch: (input, init) => fetch(String(input).replace('http://service.test', url), init),
        random: () => 0,
      })
      const ids: string[] = []
      const stop = new AbortController()
      const reading = (async () => {
        for await (const event of api.events({ signal: stop.signal, after: '0' })) ids.push(event.type)
      })()
      const job = await api.jobs.start('report', { title: 'Still here', n: 5 })
      const result = job.result()
      await until(() => ids.includes('job.created'))
      await world.quiet()
      const { service, clock, db } = world
      const env = { WEBHOOK_SECRET: 'a-secret-of-the-runtime', RUNTIME_URL: world.runtime.url, PUBLIC_URL: url }
      await overTime(world, service.app.close())
      const next = await under.start({ clock, db, env, jobTypes: service.services.jobContext.types })
      url = next.url
      assert.deepEqual(await overTime(world, result), { title: 'Still here', n: 5 })
      await until(() => ids.includes('job.completed'))
      stop.abort()
      await reading
      assert.equal(ids.filter((type) => type === 'job.created').length, 1)
    })

    test('the service refuses an empty token, which an app returns when the session is over', async () => {
      const api = clientOf(await shared(), undefined, { token: () => '' })
      await assert.rejects(api.jobs.counts(), { code: 'unauthorized' })
      await assert.rejects(api.events().next(), { code: 'unauthorized' })
    })

    test("projects with versions, the caller's profile, devices and usage are read and changed through the client", async () => {
      const world = await shared()
      const sub = `user-${randomUUID()}`
      const token = () => world.service.tokenFor({ sub, scopes: ['read:projects', 'write:projects'] })
      const api = clientOf(world, sub, { token })
      const created = await api.projects.create({ name: 'Plan' })
      const { id } = created
      const project = await api.projects.get(id)
      assert.equal(project.etag, created.etag)
      const changed = await api.projects.update(id, { name: 'Better plan' }, { ifMatch: created.etag })
      assert.equal(changed.name, 'Better plan')
      assert.deepEqual(Object.keys(changed).includes('etag'), false)
      await assert.rejects(api.projects.update(id, { name: 'Late' }, { ifMatch: project.etag }), {
        code: 'precondition_failed',
        status: 412,
      })
      await api.projects.delete(id)
      assert.equal((await api.users.updateMe({ display_name: 'Ada' })).display_name, 'Ada')
      assert.equal((await api.users.me()).sub, sub)
      const device = await api.devices.register({ token: `token-${randomUUID()}`, platform: 'web' })
      assert.equal((await api.devices.list().page()).data[0]?.id, device.id)
      await api.devices.remove(device.id)
      assert.equal((await api.usage.get()).runs, 0)
      assert.equal((await api.request<{ status: string }>('GET', '/healthz')).status, 'ok')
    })
  })
})
