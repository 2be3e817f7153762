import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { describe, test } from 'node:test'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import type { Run } from '../../src/sandbox/agent-runtime/records.ts'
import { assertError } from '../support/assert-error.ts'
import { type JobWorld, RUN_MS, type ShownJob, START_RUN, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { overTime } from '../support/over-time.ts'
import { forEachService } from '../support/service.ts'

const CONFIGURABLE_SCHEMA = {
  type: 'object',
  properties: { language: { enum: ['de', 'en'] }, seed: { type: 'number' }, note: { type: 'string' } },
  additionalProperties: false,
}
const jobTypes = toJobTypes({
  whoami: { assistant_id: 'whoami', output_key: 'report', configurable_schema: CONFIGURABLE_SCHEMA },
  asked: { assistant_id: 'whoami_asked', output_key: 'report', configurable_schema: CONFIGURABLE_SCHEMA },
  plain: { assistant_id: 'whoami', output_key: 'report' },
})
const SECRET = 'a-secret-of-at-least-24-bytes'
const BAD_REQUEST = { status: 400, code: 'invalid_request' } as const

const pseudonymOf = (sub: string) => createHmac('sha256', SECRET).update(sub).digest('hex')
const lastRun = (world: JobWorld) => world.runtime.recentRuns[0] as Run
const configOf = ({ configurable: { caller, user_id, language } }: Run) => ({ caller, user_id, language })
const callerOf = (job: ShownJob, more: object = {}) => ({
  user_id: 'ada',
  kind: 'user',
  scopes: [],
  actor: null,
  job_id: job.id,
  type: job.type,
  project_id: null,
  ...more,
})

describe('the caller of a run', () => {
  forEachService((under) => {
    const started = sharedJobWorld(under, { jobTypes })
    const scopes = ['read:projects', 'custom:orders']

    const send = (world: JobWorld, path: string, { body, token }: { body?: object; token: string }) =>
      world.service.request<ShownJob>('POST', path, { token, ...(body && { body }) })
    const begin = async (world: JobWorld, body: object, token = world.service.tokenFor({ sub: 'ada', scopes })) => {
      const answer = await send(world, '/jobs', { token, body: { input: { prompt: 'my orders' }, ...body } })
      assert.equal(answer.status, 202, answer.text)
      await world.quiet()
      return answer.body
    }
    const finish = async (world: JobWorld, job: ShownJob) => {
      await world.pass(RUN_MS)
      return world.get(job.id)
    }
    const change = async (world: JobWorld, job: ShownJob, action: string, { body = {}, token = world.admin } = {}) => {
      const answer = await send(world, `/jobs/${job.id}/${action}`, { token, body })
      assert.equal(answer.status, 202, answer.text)
      await world.quiet()
      return answer.body
    }

    test('a graph sees the owner with the scopes of the token, and run and thread name the owner', async () => {
      const world = await started()
      const project = await world.service.request<{ id: string }>('POST', '/v1/projects', {
        token: world.admin,
        body: { name: 'Orders' },
      })
      const job = await begin(world, { type: 'whoami', project_id: project.body.id })
      const caller = callerOf(job, { scopes, project_id: project.body.id })
      assert.deepEqual((await finish(world, job)).output, { caller, user_id: 'ada', language: null })
      assert.equal(lastRun(world).metadata.owner, 'ada')
      const thread = await fetch(`${world.runtime.url}/threads/${job.thread_id}`)
      assert.equal(((await thread.json()) as Run).metadata.owner, 'ada')
      assert.equal(job.actor, null)
      assert.doesNotMatch(JSON.stringify(lastRun(world).configurable), /@|eyJ/)
    })

    test('scopes reach the graph exactly, also those that a database cannot store as text', async () => {
      const world = await started()
      const odd = ['read:projects', 'nul\u0000', '\ud800', 'ü']
      const token = world.service.tokenFor({ sub: 'ada', scopes: odd })
      const job = await begin(world, { type: 'whoami' }, token)
      assert.deepEqual(configOf(lastRun(world)).caller, callerOf(job, { scopes: odd }))
      await finish(world, job)
    })

    test('a service account is a caller of its own kind, with the scopes of its key', async () => {
      const world = await started()
      const { body: account } = await world.service.request<{ id: string; key: string }>(
        'POST',
        '/v1/service-accounts',
        { token: world.admin, body: { name: 'Backend', scopes: ['read:projects'] } },
      )
      const answer = await world.service.request<ShownJob>('POST', '/jobs', {
        headers: { 'x-api-key': account.key },
        body: { type: 'whoami', input: {} },
      })
      await world.quiet()
      const caller = { user_id: account.id, kind: 'service_account', scopes: ['read:projects'] }
      assert.deepEqual(configOf(lastRun(world)).caller, callerOf(answer.body, caller))
      assert.equal(lastRun(world).metadata.owner, account.id)
    })

    test('a job for another user names its actor and has no scopes, also after a resume by its owner and by an admin', async () => {
      const world = await started()
      const job = await begin(world, { type: 'asked', created_by: 'ada' }, world.admin)
      assert.deepEqual(configOf(lastRun(world)).caller, callerOf(job, { actor: 'root' }))
      assert.equal(job.actor, 'root')
      await finish(world, job)
      const token = world.service.tokenFor({ sub: 'ada', scopes })
      const resumed = await change(world, job, 'resume', { token, body: { input: 'yes' } })
      assert.equal(resumed.actor, null)
      assert.deepEqual(configOf(lastRun(world)), {
        caller: callerOf(job, { scopes }),
        user_id: 'ada',
        language: undefined,
      })

      const other = await begin(world, { type: 'asked' })
      assert.deepEqual(configOf(lastRun(world)).caller, callerOf(other, { scopes }))
      await finish(world, other)
      assert.equal((await change(world, other, 'resume', { body: { input: 'yes' } })).actor, 'root')
      const output = { caller: callerOf(other, { actor: 'root' }), user_id: 'ada', language: null }
      assert.deepEqual((await finish(world, other)).output, output)
    })

    test('a retry has the actor that asked for it, and a bulk retry by an admin too', async () => {
      const world = await started()
      const job = await begin(world, { type: 'whoami', configurable: { language: 'de' } })
      await finish(world, job)
      const again = await change(world, job, 'retry')
      assert.deepEqual(configOf(lastRun(world)), {
        caller: callerOf(again, { actor: 'root' }),
        user_id: 'ada',
        language: 'de',
      })
      await finish(world, again)
      const token = world.service.tokenFor({ sub: 'ada', scopes: ['x'] })
      const own = await change(world, job, 'retry', { token, body: { again: true } })
      assert.deepEqual(configOf(lastRun(world)).caller, callerOf(own, { scopes: ['x'] }))
      await finish(world, own)
      const body = { action: 'retry', ids: [job.id], again: true }
      await world.service.request('POST', '/v1/operations', { token: world.admin, body })
      await world.sweepUntil(() => lastRun(world).metadata.job_id !== own.id)
      const { metadata, configurable } = lastRun(world)
      assert.deepEqual(configurable.caller, callerOf({ ...own, id: String(metadata.job_id) }, { actor: 'root' }))
    })

    test('a repeated start and a later turn each have the caller of their own request', async () => {
      const world = await started()
      world.runtime.setFaults({ break_starts: 1, start_failure: 1 })
      const job = await begin(world, { type: 'whoami', configurable: { seed: 20 } })
      world.runtime.setFaults({ break_starts: 0, start_failure: 0 })
      await world.sweepUntil(async () => (await world.stored(job.id)).status === 'completed')
      assert.deepEqual(configOf(lastRun(world)).caller, callerOf(job, { scopes }))
      assert.equal(lastRun(world).configurable.seed, 20)

      const next = await begin(world, { type: 'whoami', continues: job.id, created_by: 'ada' }, world.admin)
      assert.deepEqual(configOf(lastRun(world)).caller, callerOf(next, { actor: 'root' }))
      await finish(world, next)
    })

    test('an admin who replaces the input of a waiting turn is its actor', async () => {
      const world = await started()
      const first = await begin(world, { type: 'whoami' })
      const waiting = await begin(world, { type: 'whoami', continues: first.id, on_busy: 'enqueue' })
      const body = { input: { prompt: 'orders of ada' } }
      const changed = await world.service.request<ShownJob>('PATCH', `/jobs/${waiting.id}`, {
        token: world.admin,
        body,
      })
      assert.deepEqual([changed.status, changed.body.actor], [200, 'root'])
      await finish(world, first)
      await world.sweepUntil(() => lastRun(world).metadata.job_id === waiting.id)
      assert.deepEqual(configOf(lastRun(world)).caller, callerOf(waiting, { actor: 'root' }))
    })

    test('a followed run carries nothing, and its resume carries the caller, whatever its thread held before', async () => {
      const world = await started()
      const forged = { caller: { user_id: 'eve', scopes: ['admin:*'] }, user_id: 'eve' }
      const { thread_id, run_id } = await world.startElsewhere(
        { user_id: 'ada' },
        { assistant: 'whoami_asked', config: { configurable: forged } },
      )
      assert.deepEqual(lastRun(world).configurable.caller, forged.caller)
      await world.pass(RUN_MS)
      const token = world.service.tokenFor({ sub: 'ada', scopes })
      const answer = await send(world, '/jobs', { token, body: { type: 'asked', thread_id, run_id } })
      assert.equal(answer.status, 202, answer.text)
      await world.sweepUntil(async () => (await world.stored(answer.body.id)).status === 'awaiting_input')
      const job = await change(world, answer.body, 'resume', { token, body: { input: 'yes' } })
      const output = { caller: callerOf(job, { scopes }), user_id: 'ada', language: null }
      assert.deepEqual((await finish(world, job)).output, output)
    })

    test('a job without an owner has no user: an admin who answers it is only the actor', async () => {
      const world = await started()
      const run = await world.startElsewhere({}, { assistant: 'whoami_asked', threadMetadata: { owner: 'eve' } })
      await world.pass(RUN_MS)
      const { body } = await world.callback('asked', { ...run, status: 'success', values: {} })
      assert.equal(body.outcome, 'adopted')
      await world.sweepUntil(async () => (await world.stored(body.job_id)).status === 'awaiting_input')
      const job = await change(world, await world.stored(body.job_id), 'resume', { body: { input: 'yes' } })
      const caller = callerOf(job, { user_id: null, kind: null, actor: 'root' })
      assert.deepEqual((await finish(world, job)).output, { caller, user_id: null, language: null })
      assert.equal(lastRun(world).metadata.owner, null)
    })

    test('a caller cannot be forged: not in the input, nor in the configuration, nor in other fields', async () => {
      const world = await started()
      const caller = { user_id: 'bob', kind: 'user', scopes: ['admin:*'] }
      const input = { caller, user_id: 'bob', config: { configurable: { caller } }, configurable: { caller } }
      const job = await begin(world, { type: 'whoami', input })
      const output = { caller: callerOf(job, { scopes }), user_id: 'ada', language: null }
      assert.deepEqual((await finish(world, job)).output, output)
      const before = world.calls(START_RUN)
      const token = world.token('ada')
      for (const more of [
        { configurable: { caller } },
        { configurable: { user_id: 'bob' } },
        { configurable: { language: 'de', thread_id: job.thread_id } },
        { configurable: { __caller: caller } },
        { metadata: { owner: 'bob' } },
        { config: { configurable: { caller } } },
        { context: { caller } },
      ]) {
        const refused = await send(world, '/jobs', { token, body: { type: 'whoami', input: {}, ...more } })
        assertError(under, refused, BAD_REQUEST)
      }
      assert.equal(world.calls(START_RUN), before)
    })

    test('the configuration of a client reaches the graph exactly, and must match the schema of the type', async () => {
      const world = await started()
      const raw = '{"type":"whoami","input":{},"configurable":{ "language":"de", "seed":12345678901234567890 }}'
      const token = world.token('ada')
      const headers = { 'content-type': 'application/json', 'idempotency-key': 'exact' }
      const post = () => world.service.request<ShownJob>('POST', '/jobs', { token, raw, headers })
      const answer = await post()
      assert.match(answer.text, /"configurable":\{ "language":"de", "seed":12345678901234567890 \}/)
      await world.quiet()
      assert.equal((await post()).text, answer.text)
      assert.match(JSON.stringify(lastRun(world).configurable), /"language":"de","seed":12345678901234567890,"caller":/)

      const refusals: [body: object, message: string][] = [
        [{ type: 'whoami', configurable: { language: 'fr' } }, 'body/configurable/language'],
        [{ type: 'whoami', configurable: { model: 'x' } }, 'body/configurable'],
        [{ type: 'whoami', configurable: null }, 'body/configurable must be object'],
        [
          { type: 'whoami', configurable: { note: 'n'.repeat(16_400) } },
          'body/configurable must not be larger than 16 KB',
        ],
        [
          { type: 'plain', configurable: {} },
          'body/configurable is not allowed: the type plain has no configurable_schema',
        ],
      ]
      for (const [body, message] of refusals) {
        const refused = await send(world, '/jobs', { token, body: { input: {}, ...body } })
        assertError(under, refused, BAD_REQUEST)
        assert.ok(refused.text.includes(message), refused.text)
      }
      const run = { thread_id: answer.body.thread_id, run_id: answer.body.thread_id }
      const followed = await send(world, '/jobs', { token, body: { type: 'whoami', ...run, configurable: {} } })
      assertError(under, followed, BAD_REQUEST)
    })

    test('a resume repeats the configuration of its job, or replaces it', async () => {
      const world = await started()
      const token = world.token('ada')
      for (const [more, language] of [
        [{}, 'de'],
        [{ configurable: { language: 'en' } }, 'en'],
      ] as const) {
        const job = await begin(world, { type: 'asked', configurable: { language: 'de' } }, token)
        await finish(world, job)
        const wrong = { input: 'yes', configurable: { language: 'fr' } }
        assertError(under, await send(world, `/jobs/${job.id}/resume`, { token, body: wrong }), BAD_REQUEST)
        const resumed = await change(world, job, 'resume', { token, body: { input: 'yes', ...more } })
        assert.deepEqual(resumed.configurable, { language })
        const output = { caller: callerOf(job), user_id: 'ada', language }
        assert.deepEqual((await finish(world, job)).output, output)
      }
    })

    test('the owner in the metadata opens no run to another user, and no run of a repeated start to its owner', async () => {
      const world = await started()
      const job = await begin(world, { type: 'whoami' })
      const { run_id } = await finish(world, job)
      const follow = (sub: string, run: object) =>
        send(world, '/jobs', { token: world.token(sub), body: { type: 'whoami', thread_id: job.thread_id, ...run } })
      assert.deepEqual([(await follow('ada', { run_id })).body.id, job.id], [job.id, job.id])
      const ofOther = await overTime(world, follow('bob', { run_id }))
      assertError(under, ofOther, { status: 404, code: 'not_found' })
      const extra = await world.continueElsewhere(job, {
        assistant_id: 'whoami',
        input: {},
        metadata: { job_id: job.id, run_seq: 1, attempt: 2 },
      })
      const refused = await overTime(world, follow('ada', { run_id: extra }))
      assertError(under, refused, { status: 404, code: 'not_found' })
    })

    test('with pseudonyms the runtime learns the HMAC of each sub, and no sub', async () => {
      const env = { RUNTIME_IDENTITY: 'pseudonym', RUNTIME_IDENTITY_SECRET: SECRET }
      const world = await startJobWorld(under, { jobTypes, env })
      const job = await begin(world, { type: 'whoami', created_by: 'ada' }, world.admin)
      const user_id = pseudonymOf('ada')
      const caller = callerOf(job, { user_id, actor: pseudonymOf('root') })
      assert.deepEqual((await finish(world, job)).output, { caller, user_id, language: null })
      assert.equal(lastRun(world).metadata.owner, user_id)
      const { configurable, metadata } = lastRun(world)
      assert.doesNotMatch(JSON.stringify({ configurable, metadata }), /"ada"|"root"/)
    })

    test('without an identity the runtime learns no caller, and the keys of an earlier run are replaced', async () => {
      const world = await startJobWorld(under, { jobTypes, env: { RUNTIME_IDENTITY: 'none' } })
      const forged = { caller: { user_id: 'eve' }, user_id: 'eve' }
      const { thread_id, run_id } = await world.startElsewhere(
        { user_id: 'ada' },
        { assistant: 'whoami', threadMetadata: { owner: 'eve' }, config: { configurable: forged } },
      )
      await world.pass(RUN_MS)
      const token = world.token('ada')
      const first = await send(world, '/jobs', { token, body: { type: 'whoami', thread_id, run_id } })
      await world.sweepUntil(async () => (await world.stored(first.body.id)).status === 'completed')
      const next = await begin(world, { type: 'whoami', continues: first.body.id }, token)
      assert.deepEqual((await finish(world, next)).output, { caller: null, user_id: null, language: null })
      assert.equal(lastRun(world).metadata.owner, null)
      const job = await begin(world, { type: 'whoami' }, token)
      const { configurable, metadata } = lastRun(world)
      assert.doesNotMatch(JSON.stringify({ configurable, metadata }), /"ada"/)
      const thread = await fetch(`${world.runtime.url}/threads/${job.thread_id}`)
      assert.ok(!('owner' in ((await thread.json()) as Run).metadata))
    })
  })
})
