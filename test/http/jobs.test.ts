import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { TimelineEntry } from '../../src/jobs/api/job-schema.ts'
import { assertError } from '../support/assert-error.ts'
import { readJobRows } from '../support/job-rows.ts'
import {
  GET_RUN,
  type JobWorld,
  RUN_MS,
  type ShownJob,
  START_RUN,
  sharedJobWorld,
  startJobWorld,
} from '../support/job-world.ts'
import { overTime } from '../support/over-time.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'
import { WatchedDatabase } from '../support/watched-database.ts'

interface Page<Item> {
  data: Item[]
  has_more: boolean
  next_cursor: string | null
}

const GONE = { status: 404, code: 'not_found', message: 'No such job' } as const
const invalid = (message: string | RegExp) => ({ status: 400, code: 'invalid_request', message }) as const
const conflict = (message: string | RegExp) => ({ status: 409, code: 'conflict', message }) as const

/** A statement that reads the documents of jobs. */
const READS_OUTPUT = /^\s*select\b[\s\S]*\boutput\b/

/** A name of its own for each test, so that they can share a service. */
const newUser = () => `user-${randomUUID()}`

async function timelineOf(world: JobWorld, { id }: ShownJob): Promise<TimelineEntry[]> {
  const { body } = await world.service.request<Page<TimelineEntry>>('GET', `/jobs/${id}/timeline?limit=100`, {
    token: world.admin,
  })
  return body.data
}

/** `kind via detail`, in short. */
function inShort({ kind, via, detail }: TimelineEntry): string {
  const { found, from, to, outcome, error } = detail as Record<string, string | undefined>
  const what = to ? `${from}>${to}` : (found ?? outcome ?? (error ? 'trouble' : ''))
  return [kind, via, what].filter(Boolean).join(' ')
}

describe('jobs', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under)
    const watchedWorld = async () => {
      const watched = new WatchedDatabase(await under.engine.openDatabase())
      return { watched, world: await startJobWorld(under, { db: watched.db }) }
    }

    test('a job is accepted with every field, and its run has the thread, the metadata and the callback URL', async () => {
      const world = await shared()
      const sub = newUser()
      const input = { title: 'Done', n: 42 }
      const answer = await world.request('POST', '/jobs', sub, { body: { type: 'report', input } })
      const at = new Date(world.clock.now()).toISOString()
      assert.equal(answer.status, 202, answer.text)
      const job = answer.body
      assert.match(job.id, /^job_[0-9a-hjkmnp-tv-z]{26}$/)
      assert.equal(answer.headers.location, `/jobs/${job.id}`)
      assert.deepEqual(job, {
        id: job.id,
        retry_of: null,
        retried_as: null,
        continues: null,
        queued_behind: null,
        run_at: null,
        answer_by: null,
        type: 'report',
        status: 'processing',
        input,
        output: null,
        error: null,
        interrupts: null,
        configurable: null,
        project_id: null,
        created_by: sub,
        actor: null,
        thread_id: job.thread_id,
        run_id: null,
        trace_id: null,
        tracer_trace_id: null,
        settled_by: null,
        reconcile: { checked_at: null, next_at: at, attempts: 0, last_error: null },
        created_at: at,
        started_at: null,
        finished_at: null,
        updated_at: at,
      })
      await world.quiet()
      const run = world.runtime.recentRuns.find(({ threadId }) => threadId === job.thread_id)
      assert.ok(run)
      assert.equal(run.metadata.job_id, job.id)
      assert.equal(run.multitaskStrategy, 'reject')
      const webhook = new URL(String(run.webhook))
      assert.equal(webhook.pathname, '/webhooks/jobs/report')
      assert.equal(webhook.searchParams.get('job_id'), job.id)
      assert.equal(webhook.searchParams.get('token'), world.service.services.callbackAuthenticity.tokenFor(job.id))
      assert.equal((await world.stored(job.id)).run_id, run.runId)
    })

    test('a job runs, ends, and shows its output, its times and the first hint', async () => {
      const world = await shared()
      const started = await world.start('report')
      const startedAt = new Date(world.clock.now()).toISOString()
      await world.pass(RUN_MS)
      const job = await world.get(started.id)
      assert.equal(job.status, 'completed')
      assert.deepEqual(job.output, { title: 'Done', n: 42 })
      assert.equal(job.settled_by, 'callback')
      assert.equal(job.started_at, startedAt)
      assert.equal(job.finished_at, new Date(world.clock.now()).toISOString())
      assert.equal(job.updated_at, job.finished_at)
      assert.equal(job.reconcile.next_at, null)
      assert.equal(job.error, null)
    })

    test('every kind of job ends with its output or its reason', async () => {
      const world = await shared()
      const message = { messages: [{ role: 'user', content: 'Hello' }] }
      const cases: [type: string, input: object, expected: Partial<ShownJob>][] = [
        ['agent', message, { status: 'completed', output: 'You said: Hello' }],
        ['summary', { prompt: 'a text' }, { status: 'completed', output: 'In short: a text' }],
        ['throwing', {}, { status: 'failed', error: { code: 'run_failed', message: 'kaboom: upstream 500' } }],
        [
          'keyless',
          {},
          {
            status: 'failed',
            error: { code: 'output_missing', message: 'The run ended without the output "nowhere"' },
          },
        ],
        ['pausing', {}, { status: 'awaiting_input', output: null }],
        ['tricky', {}, { status: 'awaiting_input', output: null }],
      ]
      const jobs: ShownJob[] = []
      for (const [type, input] of cases) jobs.push(await world.start(type, { input }))
      await world.pass(RUN_MS)
      const isOver = ({ status }: ShownJob) => status !== 'processing' && status !== 'generating'
      await world.sweepUntil(async () => (await Promise.all(jobs.map(({ id }) => world.stored(id)))).every(isOver))
      for (const [n, [type, , expected]] of cases.entries()) {
        const job = await world.stored((jobs[n] as ShownJob).id)
        for (const [field, value] of Object.entries(expected)) {
          assert.deepEqual(job[field as keyof ShownJob], value, `${field} of ${type}`)
        }
      }
    })

    test('an unknown graph fails the job, with the runtime’s message', async () => {
      const world = await shared()
      const job = await world.stored((await world.start('graphless')).id)
      assert.equal(job.status, 'failed')
      assert.equal(job.error?.code, 'start_rejected')
      assert.equal(job.error?.message, 'The runtime refused to start the run (404)')
      assert.equal(job.settled_by, null, 'no callback, read or sweep settled it: the service did')
      assert.equal((await readJobRows(world.db, job.id)).usage.length, 1)
    })

    test('a run started elsewhere is followed, not started, and ends like any other', async () => {
      const world = await shared()
      const sub = newUser()
      const { thread_id, run_id } = await world.startElsewhere({ user_id: sub })
      const before = world.calls(START_RUN)
      const answer = await world.request('POST', '/jobs', sub, { body: { type: 'report', thread_id, run_id } })
      assert.equal(answer.status, 202, answer.text)
      assert.equal(answer.body.thread_id, thread_id)
      assert.equal(answer.body.run_id, run_id)
      assert.equal(answer.body.input, null)
      const { body } = await world.callback('report', { thread_id, run_id, status: 'success', values: { report: 1 } })
      assert.equal(body.job_id, answer.body.id)
      await world.quiet()
      assert.equal(world.calls(START_RUN), before)
      const job = await world.stored(answer.body.id)
      assert.equal(job.created_by, sub)
      assert.match(job.status, /completed|failed/)
    })

    test('a run whose callback was faster than its follower is claimed, with its usage', async () => {
      const world = await shared()
      const [sub, other] = [newUser(), newUser()]
      const { thread_id, run_id } = await world.startElsewhere({ user_id: sub })
      const usage_metadata = { input_tokens: 1, output_tokens: 2, total_tokens: 3 }
      const values = { report: 7, messages: [{ type: 'ai', content: '', usage_metadata }] }
      const { body: adopted } = await world.callback('report', { thread_id, run_id, status: 'success', values })
      assert.equal(adopted.outcome, 'adopted')
      assert.equal((await world.stored(adopted.job_id)).created_by, null)
      const follow = (who: string, type = 'report') =>
        world.request('POST', '/jobs', who, { body: { type, thread_id, run_id } })
      assertError(world.service, await follow(sub, 'summary'), conflict('The run is not of the type summary'))
      assertError(world.service, await follow(sub, 'hasty'), conflict('Another job follows that run'))
      const noRun = { status: 404, code: 'not_found', message: 'No such run' } as const
      assertError(world.service, await follow(other), noRun)
      assert.equal((await world.stored(adopted.job_id)).created_by, null, 'knowing the ids is not enough')
      const claimed = await follow(sub)
      assert.equal(claimed.status, 202)
      assert.equal(claimed.body.id, adopted.job_id)
      assert.equal(claimed.body.created_by, sub)
      assert.equal(claimed.body.output, 7)
      assert.equal((await follow(sub)).body.id, adopted.job_id, 'again is the same')
      assertError(world.service, await follow(other), noRun)
      const admin = { token: world.admin, body: { type: 'report', thread_id, run_id } }
      const taken = await world.service.request('POST', '/jobs', admin)
      assertError(world.service, taken, conflict('Another job follows that run'))
      const rows = await readJobRows(world.db, adopted.job_id)
      assert.equal(rows.usage[0]?.subject, sub)
      assert.deepEqual([rows.counters[0]?.runs, rows.counters[0]?.total_tokens], [1, 3])
      assert.ok((await timelineOf(world, claimed.body)).some(({ kind }) => kind === 'claimed'))
    })

    test('ten concurrent requests to follow one run, and its callback, get one job', async () => {
      const world = await startJobWorld(under, { db: await under.engine.openDatabase({ waitsLong: true }) })
      const sub = newUser()
      const { thread_id, run_id } = await world.startElsewhere({ owner: sub })
      const body = { type: 'report', thread_id, run_id }
      const [callback, ...follows] = await Promise.all([
        world.callback('report', { thread_id, run_id, status: 'success', values: { report: 1 } }),
        ...Array.from({ length: 10 }, () => world.request('POST', '/jobs', sub, { body })),
      ])
      assert.equal(callback.status, 200, callback.text)
      for (const follow of follows) {
        assert.equal(follow.status, 202, follow.text)
        assert.equal(follow.body.id, callback.body.job_id)
      }
      await world.quiet()
      const { runs, usage } = await readJobRows(world.db, callback.body.job_id)
      assert.deepEqual([runs.length, usage.length], [1, 1])
    })

    test('only an admin, or a caller that the run or its thread names, may follow it', async () => {
      const world = await shared()
      const sub = newUser()
      const account = await world.service.request<{ id: string; key: string }>('POST', '/v1/service-accounts', {
        token: world.admin,
        body: { name: 'Follower', scopes: [] },
      })
      const runs = [
        await world.startElsewhere({ user_id: sub }),
        await world.startElsewhere({ owner: sub }),
        await world.startElsewhere({ created_by: sub }),
        await world.startElsewhere({}, { threadMetadata: { user_id: sub } }),
      ]
      for (const { thread_id, run_id } of runs) {
        // The ids compare without regard to case, and are stored in lower case.
        const body = { type: 'report', thread_id: thread_id.toUpperCase(), run_id: run_id.toUpperCase() }
        const followed = await world.request('POST', '/jobs', sub, { body })
        assert.equal(followed.status, 202, followed.text)
        assert.deepEqual([followed.body.thread_id, followed.body.run_id], [thread_id, run_id])
      }
      const ofAccount = await world.startElsewhere({ owner: account.body.id })
      const { key } = account.body
      const byKey = await world.service.request('POST', '/jobs', { key, body: { type: 'report', ...ofAccount } })
      assert.equal(byKey.status, 202, byKey.text)

      const noRun = { status: 404, code: 'not_found', message: 'No such run' } as const
      const [ofOther, ofNone] = [await world.startElsewhere({ user_id: newUser() }), await world.startElsewhere()]
      const unknown = { thread_id: randomUUID(), run_id: randomUUID() }
      const swapped = { thread_id: ofOther.thread_id, run_id: ofNone.run_id }
      for (const run of [ofOther, ofNone, unknown, swapped]) {
        // A replica may lag, so the runtime is asked again before a run counts as unknown.
        const following = world.request('POST', '/jobs', sub, { body: { type: 'report', ...run } })
        assertError(world.service, await overTime(world, following), noRun)
      }
      const asSystem = (run: object) => world.request('POST', '/jobs', 'system', { body: { type: 'report', ...run } })
      assertError(world.service, await asSystem(ofNone), noRun)
      assert.equal((await asSystem(await world.startElsewhere({ user_id: 'system' }))).status, 202)
      const asAdmin = (run: object, type = 'report') =>
        world.service.request('POST', '/jobs', { token: world.admin, body: { type, ...run } })
      assert.equal((await asAdmin(ofOther)).status, 202)
      assertError(world.service, await asAdmin(ofNone, 'summary'), conflict('The run is not of the type summary'))
      assertError(world.service, await overTime(world, asAdmin(unknown)), noRun)
      await world.quiet()

      world.runtime.setFaults({ lookup_failure: 1 })
      const down = await world.request('POST', '/jobs', sub, { body: { type: 'report', ...(runs[0] ?? {}) } })
      const message = 'The agent runtime cannot be asked about this run now'
      assertError(world.service, down, { status: 503, code: 'service_unavailable', message })
      assert.ok(down.headers['retry-after'])
      world.runtime.setFaults({ lookup_failure: 0 })
    })

    test('a run that a lagging replica does not show yet can be followed', async () => {
      const world = await shared()
      const sub = newUser()
      const run = await world.startElsewhere({ owner: sub })
      world.runtime.setFaults({ lose_runs: true })
      const before = world.calls(GET_RUN)
      const following = world.request('POST', '/jobs', sub, { body: { type: 'report', ...run } })
      await until(() => world.calls(GET_RUN) > before)
      await world.quiet()
      world.runtime.setFaults({ lose_runs: false })
      const followed = await overTime(world, following)
      assert.equal(followed.status, 202, followed.text)
      assert.equal(followed.body.run_id, run.run_id)
      await world.sweepUntil(async () => (await world.stored(followed.body.id)).status === 'completed')
    })

    test('ids of runs and threads are UUIDs, and anything else is refused before the runtime is called', async () => {
      const world = await shared()
      const before = world.allCalls
      for (const id of ['..', '../threads', '%2e%2e', 'no uuid', '', `${randomUUID()}/state`, 'a\u0000b']) {
        const good = randomUUID()
        for (const [name, ids] of Object.entries({
          thread_id: { thread_id: id, run_id: good },
          run_id: { thread_id: good, run_id: id },
        })) {
          const fault = invalid(`body/${name} must be a UUID`)
          const answer = await world.request('POST', '/jobs', newUser(), { body: { type: 'report', ...ids } })
          assertError(world.service, answer, fault)
          assertError(world.service, await world.callback('report', { ...ids, status: 'success' }), fault)
        }
      }
      assert.equal(world.allCalls, before)
    })

    test('an admin starts a job for a user, who then owns it; other callers may not', async () => {
      const world = await shared()
      const sub = newUser()
      const body = { type: 'report', input: {}, created_by: sub }
      const created = await world.service.request<ShownJob>('POST', '/jobs', { token: world.admin, body })
      assert.equal(created.status, 202, created.text)
      assert.equal(created.body.created_by, sub)
      await world.quiet()
      assert.equal((await world.request('GET', `/jobs/${created.body.id}`, sub)).status, 200)
      const refused = await world.request('POST', '/jobs', sub, { body })
      assertError(world.service, refused, { status: 403, code: 'forbidden', message: 'Insufficient scope' })
    })

    test('a service account owns what it starts', async () => {
      const world = await shared()
      const account = await world.service.request<{ id: string; key: string }>('POST', '/v1/service-accounts', {
        token: world.admin,
        body: { name: 'Backend', scopes: [] },
      })
      const { key, id } = account.body
      const created = await world.service.request<ShownJob>('POST', '/jobs', {
        key,
        body: { type: 'report', input: {} },
      })
      assert.equal(created.body.created_by, id)
      await world.quiet()
      assert.equal((await world.service.request('GET', `/jobs/${created.body.id}`, { key })).status, 200)
    })

    test('a job belongs to a project only if there is one', async () => {
      const world = await shared()
      const sub = newUser()
      const project = await world.service.request<{ id: string }>('POST', '/v1/projects', {
        token: world.admin,
        body: { name: 'x' },
      })
      const create = (project_id: unknown) =>
        world.request('POST', '/jobs', sub, { body: { type: 'report', input: {}, project_id } })
      assert.equal((await create(project.body.id)).body.project_id, project.body.id)
      assert.equal((await create(null)).body.project_id, null)
      for (const name of ['project', 'project_id']) {
        const list = (id: string) => world.request<Page<ShownJob>>('GET', `/jobs?${name}=${id}`, sub)
        const [job, ...more] = (await list(project.body.id)).body.data
        assert.deepEqual([job?.project_id, more], [project.body.id, []], name)
        assert.deepEqual((await list('prj_none')).body.data, [], name)
      }
      const both = await world.request('GET', '/jobs?project=a&project_id=a', sub)
      assertError(world.service, both, invalid('querystring must have either "project" or "project_id", not both'))
      const missing = invalid('body/project_id names no project')
      for (const id of ['prj_none', '']) assertError(world.service, await create(id), missing)
      await world.quiet()
    })

    test('each fault of a request is named', async () => {
      const world = await shared()
      const sub = newUser()
      const before = world.allCalls
      const either = 'body must have either "input" or "thread_id" and "run_id", not both'
      const neither = 'body must have the field "input", or "thread_id" and "run_id"'
      const faults: [body: unknown, message: string | RegExp][] = [
        [{}, 'body must have the field "type"'],
        [{ type: 'report' }, neither],
        [{ type: 'report', thread_id: randomUUID() }, neither],
        [{ type: 'report', run_id: randomUUID() }, neither],
        [{ type: 'report', input: {}, thread_id: randomUUID(), run_id: randomUUID() }, either],
        [{ type: 'report', input: {}, run_id: randomUUID() }, either],
        [{ type: 7, input: {} }, 'body/type must be string'],
        [{ type: '', input: {} }, 'body/type must not be empty'],
        [{ type: 'report', input: {}, created_by: '' }, 'body/created_by must not be empty'],
        [{ type: 'report', input: {}, more: 1 }, 'body must not have the field "more"'],
        [[], 'body must be object'],
      ]
      for (const [body, message] of faults) {
        assertError(world.service, await world.request('POST', '/jobs', sub, { body }), invalid(message))
      }
      const unknown = await world.request('POST', '/jobs', sub, { body: { type: 'no-such', input: {} } })
      assertError(world.service, unknown, { status: 404, code: 'not_found', message: /^No such job type: there are / })
      const big = await world.request('POST', '/jobs', sub, { body: { type: 'report', input: 'x'.repeat(1_100_000) } })
      assertError(world.service, big, { status: 413, code: 'payload_too_large' })
      assert.deepEqual((await world.request<Page<ShownJob>>('GET', '/jobs', sub)).body.data, [])
      assert.equal(world.allCalls, before, 'the runtime heard of none of them')
    })

    test('a job does not exist for callers other than its owner and admins, in every operation', async () => {
      const world = await shared()
      const { id } = await world.start('pausing', { sub: newUser() })
      await world.pass(RUN_MS)
      const attempts: [method: string, path: string, body?: object][] = [
        ['GET', ''],
        ['GET', '/timeline'],
        ['POST', '/cancel'],
        ['POST', '/resume', { input: 1 }],
      ]
      for (const [method, path, body] of attempts) {
        const request = body === undefined ? {} : { body }
        for (const unknown of [id, 'job_none', `${id}x`, 'JOB', '%20']) {
          assertError(
            world.service,
            await world.request(method, `/jobs/${unknown}${path}`, 'a stranger', request),
            GONE,
          )
        }
      }
      assert.equal((await world.stored(id)).status, 'awaiting_input', 'and nothing happened to it')
      assert.equal((await world.get(id, world.admin)).id, id)
    })

    test('operations that do not answer with the output of a job do not read it from the database', async () => {
      const { world, watched } = await watchedWorld()
      const sub = newUser()
      const { id } = await world.start('report', { sub })
      await world.pass(RUN_MS)
      assert.equal((await world.stored(id)).status, 'completed')
      const readsOf = async (method: string, path: string, status: number) => {
        watched.forget()
        const answer = await world.request(method, `/jobs/${id}${path}`, sub)
        await world.quiet()
        assert.equal(answer.status, status, answer.text)
        return watched.count(READS_OUTPUT)
      }
      assert.equal(await readsOf('GET', '', 200), 1)
      assert.equal(await readsOf('POST', '/check', 200), 1)
      assert.equal(await readsOf('GET', '/timeline', 200), 0)
      assert.equal(await readsOf('HEAD', '/events', 200), 0)
      assert.equal(await readsOf('GET', '/live', 200), 0, 'the run is over, so the stream ends at once')
      assert.equal(await readsOf('POST', '/retry', 202), 0)
      assert.ok((await readsOf('POST', '/cancel', 409)) <= 1, 'the access check adds none')
    })

    test('a reader that waits for another holder of the lease reads the documents once more, at the end', async () => {
      const { world, watched } = await watchedWorld()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const { id } = await world.start('report')
      await world.pass(RUN_MS)
      await world.leaseElsewhere(id)
      watched.forget()
      assert.equal((await world.getInTime(id)).status, 'processing')
      assert.equal(watched.count(READS_OUTPUT), 2)
    })

    test('a finished job cannot be cancelled, and one that asks nothing cannot be answered', async () => {
      const world = await shared()
      const sub = newUser()
      const job = await world.start('report', { sub })
      const resumed = await world.request('POST', `/jobs/${job.id}/resume`, sub, { body: { input: 1 } })
      assertError(world.service, resumed, conflict('The job is processing: it awaits no input'))
      await world.pass(RUN_MS)
      const cancelled = await world.request('POST', `/jobs/${job.id}/cancel`, sub)
      assertError(world.service, cancelled, conflict('The job is completed already'))
      const again = await world.request('POST', `/jobs/${job.id}/resume`, sub, { body: { input: 1 } })
      assertError(world.service, again, conflict('The job is completed: it awaits no input'))
      const unanswered = await world.request('POST', `/jobs/${job.id}/resume`, sub, { body: {} })
      assertError(world.service, unanswered, invalid('body must have the field "input", or "answers"'))
    })

    test('one Idempotency-Key makes one job and one run, however often it is sent', async () => {
      const world = await shared()
      const sub = newUser()
      const before = world.calls(START_RUN)
      const send = () =>
        world.request('POST', '/jobs', sub, {
          body: { type: 'report', input: { title: 'Once' } },
          headers: { 'idempotency-key': 'one' },
        })
      const race = await Promise.all(Array.from({ length: 20 }, send))
      const made = race.filter(({ status }) => status === 202)
      assert.ok(made.length >= 1)
      for (const answer of race.filter(({ status }) => status !== 202)) {
        assertError(world.service, answer, conflict(/still in flight/))
      }
      await world.quiet()
      const again = await send()
      assert.equal(again.headers['idempotency-replayed'], 'true')
      assert.equal(again.headers.location, `/jobs/${again.body.id}`)
      for (const { body } of made) assert.equal(body.id, again.body.id)
      await world.quiet()
      assert.equal(world.calls(START_RUN), before + 1)
      assert.equal((await world.request<Page<ShownJob>>('GET', '/jobs', sub)).body.data.length, 1)
    })

    test('a repeat with the same Idempotency-Key is answered, though its project and the retried job are gone', async () => {
      const world = await shared()
      const sub = newUser()
      const options = { token: world.admin, body: { name: 'Short-lived' } }
      const project = (await world.service.request<{ id: string }>('POST', '/v1/projects', options)).body
      const body = { type: 'report', input: {}, project_id: project.id }
      const start = () => world.request('POST', '/jobs', sub, { body, headers: { 'idempotency-key': 'start' } })
      const first = await start()
      assert.equal(first.status, 202, first.text)
      await world.quiet()
      await world.pass(RUN_MS)
      const repeat = () =>
        world.request('POST', `/jobs/${first.body.id}/retry`, sub, { headers: { 'idempotency-key': 'retry' } })
      const retried = await repeat()
      assert.equal(retried.status, 202, retried.text)
      await world.quiet()
      const gone = await world.service.request('DELETE', `/v1/projects/${project.id}`, { token: world.admin })
      assert.equal(gone.status, 204, gone.text)
      const startedAgain = await start()
      assert.deepEqual([startedAgain.status, startedAgain.body], [202, first.body])
      assert.equal((await world.request('DELETE', `/jobs/${first.body.id}`, sub)).status, 204)
      const retriedAgain = await repeat()
      assert.deepEqual([retriedAgain.status, retriedAgain.body], [202, retried.body])
      assert.equal(retriedAgain.headers['idempotency-replayed'], 'true')
    })

    test('a list shows one’s own, newest first, page by page and filtered, and asks the runtime nothing', async () => {
      const world = await shared()
      const sub = newUser()
      const started = []
      for (let n = 0; n < 5; n++) started.push(await world.start(n % 2 ? 'throwing' : 'report', { sub }))
      await world.start('report', { sub: newUser() })
      const before = world.allCalls
      const list = (query: string, token = world.token(sub)) =>
        world.service.request<Page<ShownJob>>('GET', `/jobs${query}`, { token })
      const ids = started.map(({ id }) => id).reverse()
      assert.deepEqual(
        (await list('')).body.data.map(({ id }) => id),
        ids,
      )
      const paged: string[] = []
      for (let cursor: string | null = ''; cursor !== null; ) {
        const { body }: { body: Page<ShownJob> } = await list(`?limit=2${cursor && `&cursor=${cursor}`}`)
        paged.push(...body.data.map(({ id }) => id))
        cursor = body.next_cursor
      }
      assert.deepEqual(paged, ids)
      assert.equal((await list('?type=throwing')).body.data.length, 2)
      assert.equal((await list('?status=processing')).body.data.length, 5)
      assert.equal((await list('?status=completed')).body.data.length, 0)
      assert.equal((await list('?project_id=prj_none')).body.data.length, 0)
      assertError(world.service, await list('?status=done'), invalid(/^querystring\/status must be one of processing/))
      assertError(world.service, await list('?owner=me'), invalid('querystring must not have the field "owner"'))
      assertError(world.service, await list('?cursor=x'), invalid('querystring/cursor is not a cursor of this list'))
      assert.equal(world.allCalls, before, 'the jobs were checked a moment ago, at their start')
      // Those of other tests may be due for a check.
      const all = await list('?limit=100&type=report', world.admin)
      assert.ok(all.body.data.some(({ created_by }) => created_by !== sub))
    })

    test('the timeline lists what happened, in order, with the first hint', async () => {
      const world = await shared()
      const sub = newUser()
      const job = await world.start('report', { sub })
      await world.clock.advance(100)
      for (let n = 0; n < 3; n++) await world.get(job.id)
      await world.pass(RUN_MS)
      const entries = await timelineOf(world, job)
      assert.deepEqual(entries.map(inShort), [
        'created',
        'start pending',
        'check read running',
        'transition read processing>generating',
        'check read running',
        'callback applied',
        'transition callback generating>completed',
      ])
      assert.equal(entries[4]?.times, 2, 'the same found twice in a row is one entry')
      assert.deepEqual(
        entries,
        entries.toSorted((a, b) => (a.id < b.id ? -1 : 1)),
      )
      for (const limit of [1, 2]) {
        const paged: TimelineEntry[] = []
        for (let cursor: string | null = ''; cursor !== null; ) {
          const path: string = `/jobs/${job.id}/timeline?limit=${limit}${cursor && `&cursor=${cursor}`}`
          const { body }: { body: Page<TimelineEntry> } = await world.request<Page<TimelineEntry>>('GET', path, sub)
          paged.push(...body.data)
          cursor = body.next_cursor
        }
        assert.deepEqual(paged, entries)
      }
      assert.equal(entries[6]?.at, (await world.get(job.id)).finished_at, 'the transition has the time of the end')
    })

    test('an input is sent to the runtime and returned unchanged, with any content', async () => {
      const world = await shared()
      const deep = JSON.parse(`${'{"a":'.repeat(98)}1${'}'.repeat(98)}`)
      const inputs = [{ title: 'nul \u0000 \ud800 日本 🧮', 'a.b': { '': [null, true, 1.5] } }, deep]
      for (const input of inputs) {
        const { id } = await world.start('report', { input })
        await world.pass(RUN_MS)
        const job = await world.get(id)
        assert.deepEqual(job.input, input)
        assert.equal(job.status, 'completed', JSON.stringify(job.error))
      }
    })

    test('the job types are listed with what their output holds', async () => {
      const world = await shared()
      const { body } = await world.request<{ data: { name: string }[] }>('GET', '/v1/job-types', newUser())
      assert.deepEqual(
        body.data.find(({ name }) => name === 'report'),
        {
          name: 'report',
          description: null,
          assistant_id: 'report',
          output_key: 'report',
          may_pause: false,
          deadline_seconds: 600,
          max_running: null,
          max_running_per_owner: null,
          answer_within_seconds: null,
          remind_after_seconds: null,
          live: [],
          output_fields: {},
          input_schema: null,
          output_schema: null,
          resume_schema: null,
          configurable_schema: null,
        },
      )
      assert.ok(body.data.some(({ name }) => name === 'agent'))
    })
  })
})

describe('jobs without a runtime', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under, { runtime: false })

    test('a job cannot be started or followed: the answer is 503, and nothing is written', async () => {
      const world = await shared()
      const sub = newUser()
      for (const body of [
        { type: 'report', input: {} },
        { type: 'report', thread_id: randomUUID(), run_id: randomUUID() },
      ]) {
        const answer = await world.request('POST', '/jobs', sub, { body })
        const message = 'No agent runtime is configured'
        assertError(world.service, answer, { status: 503, code: 'service_unavailable', message })
        assert.equal(answer.headers['retry-after'], '60')
      }
      assert.deepEqual((await world.request<Page<ShownJob>>('GET', '/jobs', sub)).body.data, [])
      const unknown = await world.request('POST', '/jobs', sub, { body: { type: 'no-such', input: {} } })
      assertError(world.service, unknown, { status: 404, code: 'not_found' })
    })

    test('jobs without a runtime still end by callback, with the more likely end because no runtime can be asked', async () => {
      const world = await shared()
      const ends: [type: string, payload: object, status: string, code?: string][] = [
        ['report', { status: 'success', values: { report: 1 } }, 'completed'],
        ['report', { status: 'success', values: {} }, 'failed', 'output_missing'],
        ['report', { status: 'success' }, 'failed', 'output_missing'],
        ['pausing', { status: 'success', values: { report: 1 } }, 'completed'],
        ['report', { status: 'interrupted' }, 'cancelled'],
        ['report', { status: 'rollback' }, 'cancelled'],
        ['report', { status: 'error', error: 'kaboom' }, 'failed', 'run_failed'],
        ['report', { status: 'timeout' }, 'failed', 'run_timeout'],
        ['report', { status: 'thinking' }, 'processing'],
      ]
      for (const [type, payload, status, code] of ends) {
        const ids = { thread_id: randomUUID(), run_id: randomUUID() }
        const { body } = await world.callback(type, { ...ids, ...payload })
        assert.equal(body.outcome, 'adopted')
        await world.quiet()
        const job = await world.get(body.job_id)
        assert.equal(job.status, status, JSON.stringify(payload))
        assert.equal(job.error?.code, code)
        assert.equal(job.settled_by, status === 'processing' ? null : 'callback')
      }
    })

    test('readiness without a runtime says what is missing, and is ready', async () => {
      const world = await shared()
      const ready = await world.service.request('GET', '/readyz')
      assert.equal(ready.status, 200)
      assert.match(ready.text, /not configured: jobs cannot be started/)
    })
  })
})
