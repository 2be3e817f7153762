import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { JsonObject } from '../../src/core/json.ts'
import { NODE_HEARTBEAT_MS } from '../../src/db/nodes/node.ts'
import { sql } from '../../src/db/sql.ts'
import type { RuntimeClient } from '../../src/runtime/runtime-client.ts'
import { startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import type { Run } from '../../src/sandbox/agent-runtime/records.ts'
import { calmJobWorld, heal, isOver, newUser } from '../support/calm-job-world.ts'
import { type JobWorld, RUN_MS, type ShownJob, START_RUN, startJobWorld } from '../support/job-world.ts'
import { freePort } from '../support/server-process.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

const says = (content: string, sandbox = {}) => ({ messages: [{ role: 'user', content }], sandbox })

describe('a start that the runtime handles late', () => {
  forEachService((under) => {
    const shared = calmJobWorld(under)

    for (const heldMs of [12_000, 50_000]) {
      test(`a start that is held back for ${heldMs} ms runs once, and the next turn has the right history`, async () => {
        const world = await shared()
        const sub = newUser()
        world.runtime.setFaults({ late_starts_ms: heldMs })
        const first = await post(world, sub, { input: says('q1') })
        await advanceUntil(world, async () => (await world.stored(first.id)).run_id !== null)
        world.runtime.setFaults(NO_RUNTIME_FAULTS)
        await ended(world, first)
        const second = await ended(world, await post(world, sub, { input: says('q2'), continues: first.id }))
        assert.equal(second.thread_id, first.thread_id)
        assert.equal(runsOf(world, first).length, 1)
        assert.deepEqual(historyOf(world, second), ['q1', 'q2'])
        await heal(world)
      })
    }

    test('a first turn whose start is handled 40 s late is on a new thread, and its late run changes nothing', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await startBroken(world, sub, { input: says('q1') })
      const done = await ended(world, first)
      assert.equal(done.status, 'completed')
      assert.notEqual(done.thread_id, first.thread_id)
      await world.sweepUntil(() => runsOf(world, first).length === 2)
      const late = runsOf(world, first).find(({ runId }) => runId !== done.run_id)
      assert.equal(late?.threadId, first.thread_id)
      await world.sweepUntil(async () => (await extraRuns(world, first)).length > 0)
      assert.deepEqual(await extraRuns(world, first), [late?.runId])
      assert.deepEqual(await world.stored(first.id), done)
      const second = await ended(world, await post(world, sub, { input: says('q2'), continues: first.id }))
      assert.deepEqual(historyOf(world, second), ['q1', 'q2'])
      const third = await ended(world, await post(world, sub, { input: says('q3'), continues: second.id }))
      assert.deepEqual(historyOf(world, third), ['q1', 'q2', 'q3'])
    })

    test('a conversation that moved to a new thread keeps its turns there, also if the node that noted a run had a slow clock', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await startBroken(world, sub, { input: says('q1') })
      const done = await ended(world, first)
      assert.notEqual(done.thread_id, first.thread_id)
      await world.db.query(sql`update job_runs set created_at = created_at - 300000 where run_id = ${done.run_id}`)
      const second = await ended(world, await startBroken(world, sub, { input: says('q2'), continues: first.id }))
      assert.equal(second.thread_id, done.thread_id)
      assert.deepEqual(historyOf(world, second), ['q1', 'q2'])
      await heal(world)
    })

    for (const kept of ['kept', 'deleted']) {
      test(`each turn of a pinned conversation continues from the one before, also if a node whose clock is ahead noted a run before it, and the turns are ${kept}`, async () => {
        const world = await shared()
        const sub = newUser()
        const first = await ended(world, await post(world, sub, { input: says('q1') }))
        const second = await ended(world, await startBroken(world, sub, { input: says('q2'), continues: first.id }))
        await world.sweepUntil(async () => (await extraRuns(world, second)).length > 0)
        await world.db.query(sql`update job_runs set created_at = created_at + 600000 where run_id = ${second.run_id}`)
        const third = await ended(world, await post(world, sub, { input: says('q3'), continues: second.id }))
        for (const { id } of kept === 'kept' ? [] : [second, third])
          assert.equal((await world.request('DELETE', `/jobs/${id}`, sub)).status, 204)
        const fourth = await ended(world, await post(world, sub, { input: says('q4'), continues: first.id }))
        assert.deepEqual(historyOf(world, fourth), ['q1', 'q2', 'q3', 'q4'])
        await heal(world)
      })
    }

    test('after its job is deleted, the callback of a late run on the thread that the conversation left creates no job', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await startBroken(world, sub, { input: says('q1') })
      const { thread_id } = await ended(world, first)
      assert.notEqual(thread_id, first.thread_id)
      await ended(world, await post(world, sub, { input: says('q2'), continues: first.id }))
      assert.equal((await world.request('DELETE', `/jobs/${first.id}`, sub)).status, 204)
      const late = { thread_id: first.thread_id, run_id: randomUUID(), status: 'success', values: { messages: [] } }
      const { body } = await world.callback(first.type, late)
      assert.deepEqual(body, { received: true, outcome: 'stale', job_id: first.id })
    })

    test('a late run is cancelled while it is active beside the run of its job', async () => {
      const world = await shared()
      const first = await startBroken(world, newUser(), { input: says('q1', { duration_ms: 120_000 }) })
      await world.sweepUntil(() => runsOf(world, first).length === 2)
      await world.sweepUntil(() => runsOf(world, first).some(({ status }) => status === 'interrupted'))
      const { run_id, status } = await ended(world, first)
      assert.equal(status, 'completed')
      const late = runsOf(world, first).find(({ runId }) => runId !== run_id)
      assert.deepEqual([late?.threadId, late?.status], [first.thread_id, 'interrupted'])
      assert.deepEqual(await extraRuns(world, first), [late?.runId])
    })

    test('a late run that appears after the end of its job is cancelled, too', async () => {
      const world = await shared()
      const first = await startBroken(world, newUser(), { input: says('q1') })
      const { run_id, status } = await ended(world, first)
      assert.equal(status, 'completed')
      world.runtime.setFaults({ running_ms: 600_000 })
      await world.sweepUntil(() => runsOf(world, first).length === 2)
      await world.sweepUntil(async () => (await extraRuns(world, first)).length > 0)
      const late = runsOf(world, first).find(({ runId }) => runId !== run_id)
      assert.equal(late?.status, 'interrupted')
      assert.deepEqual(await extraRuns(world, first), [late?.runId])
      await heal(world)
    })

    test('once the job has ended, the late run of any attempt is cancelled as soon as it is found', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await ended(world, await post(world, sub, { input: says('q1') }))
      world.runtime.setFaults({ late_starts_ms: 3_600_000, break_starts: 1 })
      const second = await post(world, sub, { input: says('q2'), continues: first.id })
      await world.quiet()
      world.runtime.setFaults({ late_starts_ms: 40_000, break_starts: 1 })
      const before = world.calls(START_RUN)
      await world.sweepUntil(() => world.calls(START_RUN) > before)
      const repeatedAtMs = world.clock.now()
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      const { run_id, status } = await ended(world, second)
      assert.equal(status, 'completed')
      world.runtime.setFaults({ running_ms: 600_000 })
      await world.sweepUntil(async () => (await extraRuns(world, second)).length > 0)
      const late = runsOf(world, second).find(({ runId }) => runId !== run_id)
      assert.deepEqual([late?.metadata.attempt, late?.status], [2, 'interrupted'])
      assert.ok((late?.endedAtMs ?? 0) < repeatedAtMs + 80_000, 'the search for the first attempt found it')
      await heal(world)
    })

    test('a late run that appears while a later turn waits for an answer is cancelled, too', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await ended(world, await post(world, sub, { input: says('q1') }))
      const second = await startBroken(world, sub, { input: says('q2'), continues: first.id })
      const { run_id } = await ended(world, second)
      const asking = says('q3', { pause: 'Sure?' })
      const third = await ended(world, await post(world, sub, { input: asking, continues: second.id }))
      assert.equal(third.status, 'awaiting_input')
      assert.equal(runsOf(world, second).length, 1, 'the late run has not appeared yet')
      world.runtime.setFaults({ running_ms: 600_000 })
      await world.sweepUntil(async () => (await extraRuns(world, second)).length > 0)
      const late = runsOf(world, second).find(({ runId }) => runId !== run_id)
      assert.equal(late?.status, 'interrupted')
      assert.equal((await world.stored(third.id)).status, 'awaiting_input')
      await heal(world)
    })

    for (const turn of ['first', 'later']) {
      test(`a late run of a ${turn} turn that appears while its own job waits for an answer is cancelled, too`, async () => {
        const world = await shared()
        const sub = newUser()
        const first = turn === 'later' ? await ended(world, await post(world, sub, { input: says('q0') })) : undefined
        const asking = { input: says('q1', { pause: 'Sure?' }), ...(first && { continues: first.id }) }
        const job = await startBroken(world, sub, asking)
        const { status, run_id } = await ended(world, job)
        assert.equal(status, 'awaiting_input')
        assert.equal(runsOf(world, job).length, 1, 'the late run has not appeared yet')
        world.runtime.setFaults({ running_ms: 600_000 })
        await world.sweepUntil(async () => (await extraRuns(world, job)).length > 0)
        const late = runsOf(world, job).find(({ runId }) => runId !== run_id)
        assert.equal(late?.status, 'interrupted')
        assert.deepEqual(await extraRuns(world, job), [late?.runId])
        assert.equal((await world.stored(job.id)).status, 'awaiting_input')
        await heal(world)
      })
    }

    test('a late run that no check of its running job has found is cancelled, too', async () => {
      const world = await shared()
      const first = await startBroken(world, newUser(), { input: says('q1', { duration_ms: 300_000 }) })
      await world.sweepUntil(async () => (await world.stored(first.id)).run_id !== null)
      // As after three minutes: the checks of the job no longer look.
      await world.db.query(sql`update job_checks set last_start_at = 0 where job_id = ${first.id}`)
      await world.sweepUntil(async () => (await extraRuns(world, first)).length > 0)
      const { run_id, status } = await world.stored(first.id)
      assert.equal(status, 'generating')
      const late = runsOf(world, first).find(({ runId }) => runId !== run_id)
      assert.equal(late?.status, 'interrupted')
      assert.deepEqual(await extraRuns(world, first), [late?.runId])
      await heal(world)
    })

    test('after a late run in a conversation, each later turn and each answer continues from the turn before it', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await ended(world, await post(world, sub, { input: says('q1') }))
      const second = await startBroken(world, sub, { input: says('q2'), continues: first.id })
      const done = await ended(world, second)
      assert.deepEqual([done.status, done.thread_id], ['completed', first.thread_id])
      assert.deepEqual(historyOf(world, done), ['q1', 'q2'])
      await world.sweepUntil(() => runsOf(world, second).length === 2)
      await world.sweepUntil(async () => (await extraRuns(world, second)).length > 0)
      const third = await ended(world, await post(world, sub, { input: says('q3'), continues: second.id }))
      assert.deepEqual(historyOf(world, third), ['q1', 'q2', 'q3'])
      const asking = says('q4', { pause: 'Sure?' })
      const fourth = await ended(world, await post(world, sub, { input: asking, continues: third.id }))
      assert.equal(fourth.status, 'awaiting_input')
      assert.equal((await world.resume(fourth, { input: 'yes' })).status, 202)
      const answered = await ended(world, fourth)
      assert.equal(answered.status, 'completed')
      assert.deepEqual(historyOf(world, answered), ['q1', 'q2', 'q3', 'q4'])
      const fifth = await ended(world, await post(world, sub, { input: says('q5'), continues: fourth.id }))
      assert.deepEqual(historyOf(world, fifth), ['q1', 'q2', 'q3', 'q4', 'q5'])
    })

    test('an answer whose start is handled late is given once, and the next turn has it', async () => {
      const world = await shared()
      const sub = newUser()
      const paused = await ended(world, await post(world, sub, { input: says('q1', { pause: 'Sure?' }) }))
      world.runtime.setFaults({ late_starts_ms: 40_000, break_starts: 1 })
      assert.equal((await world.resume(paused, { input: 'yes' })).status, 202)
      await world.quiet()
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      const answered = await ended(world, paused)
      assert.deepEqual([answered.status, answered.thread_id], ['completed', paused.thread_id])
      await world.sweepUntil(() => runsOf(world, paused).length === 3)
      await world.sweepUntil(async () => (await extraRuns(world, paused)).length > 0)
      const next = await ended(world, await post(world, sub, { input: says('q2'), continues: paused.id }))
      assert.deepEqual(historyOf(world, next), ['q1', 'q2'])
    })

    test('a job follows the late run that answered its question, if the graph then asks again in the same step', async () => {
      const world = await shared()
      const { id } = await world.start('asking', { sub: newUser() })
      const paused = await ended(world, await world.stored(id))
      world.runtime.setFaults({ late_starts_ms: 40_000, break_starts: 1 })
      assert.equal((await world.resume(paused, { input: 'yes' })).status, 202)
      await world.quiet()
      // The attempts after it are handled when the test is over.
      world.runtime.setFaults({ late_starts_ms: 3_600_000, break_starts: 1 })
      const pinned = sql`select id from threads where id = ${paused.thread_id} and is_pinned = 1`
      await world.sweepUntil(async () => (await world.db.query(pinned)).length > 0)
      // A check that saw the run while it is active would cancel it.
      world.runtime.setFaults({ lookup_failure: 1 })
      const isAnswer = ({ metadata, status }: Run) => metadata.run_seq === 2 && status === 'success'
      await world.sweepUntil(() => runsOf(world, paused).some(isAnswer))
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      const asking = await ended(world, paused)
      assert.equal(asking.status, 'awaiting_input')
      assert.match(JSON.stringify(asking.interrupts), /Are you sure/)
      assert.deepEqual([asking.run_id], await extraRuns(world, paused))
      await heal(world)
      assert.equal((await world.resume(asking, { input: 'sure' })).status, 202)
      const done = await ended(world, asking)
      assert.deepEqual(done.output, { title: 'Asked twice', answers: ['yes', 'sure'] })
    })

    test('an answer that is handled late, after another client has answered, ends with the graph also on a pinned thread', async () => {
      const world = await shared()
      const paused = await ended(world, await post(world, newUser(), { input: says('q1', { pause: 'Sure?' }) }))
      world.runtime.setFaults({ late_starts_ms: 5_000, break_starts: 1 })
      assert.equal((await world.resume(paused, { input: 'yes' })).status, 202)
      await world.quiet()
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      await world.answerElsewhere(paused, 'yes')
      // What the service writes if it sees no run of the attempt for long enough.
      await world.service.db.query(sql`update threads set is_pinned = 1 where id = ${paused.thread_id}`)
      const done = await ended(world, paused)
      assert.deepEqual([done.status, done.interrupts], ['completed', null])
      assert.deepEqual(historyOf(world, done), ['q1'])
    })

    test('after a late run, a run from elsewhere continues a paused turn only if it begins at its question', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await ended(world, await post(world, sub, { input: says('q1') }))
      const second = await startBroken(world, sub, { input: says('q2', { pause: 'Sure?' }), continues: first.id })
      await ended(world, second)
      await world.sweepUntil(async () => (await extraRuns(world, second)).length > 0)
      const paused = await world.stored(second.id)
      assert.equal(paused.status, 'awaiting_input')
      // It names no checkpoint, so it begins where the turn of the paused job began.
      await world.continueElsewhere(paused, { assistant_id: 'agent', input: says('other') })
      await world.pass(20_000)
      const asking = await world.get(paused.id)
      assert.deepEqual([asking.status, asking.run_id], ['awaiting_input', paused.run_id])
      const checkpoint_id = world.runtime.recentRuns.find(({ runId }) => runId === paused.run_id)?.head?.id
      const answer = { assistant_id: 'agent', checkpoint: { checkpoint_id } }
      const run = await world.answerElsewhere(paused, 'yes', answer)
      await world.pass(20_000)
      await world.get(paused.id)
      const done = await ended(world, paused)
      assert.deepEqual([done.status, done.run_id], ['completed', run])
      assert.deepEqual(historyOf(world, done), ['q1', 'q2'])
    })

    test('after a late run, a paused turn whose state is changed by hand keeps its question, and the answer continues from it', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await ended(world, await post(world, sub, { input: says('q1') }))
      const second = await startBroken(world, sub, { input: says('q2', { pause: 'Sure?' }), continues: first.id })
      await ended(world, second)
      await world.sweepUntil(async () => (await extraRuns(world, second)).length > 0)
      const paused = await world.stored(second.id)
      await world.changeByHand(paused, { draft: 'by hand' }, 'answer')
      await world.pass(20_000)
      assert.deepEqual((await world.get(paused.id)).interrupts, paused.interrupts)
      await world.pass(20_000)
      assert.deepEqual((await world.get(paused.id)).interrupts, paused.interrupts)
      assert.equal((await world.resume(paused, { input: 'yes' })).status, 202)
      const done = await ended(world, paused)
      assert.equal(done.status, 'completed')
      assert.deepEqual(historyOf(world, done), ['q1', 'q2'])
    })

    test('after a late run, an answer does not give way to a newer run from elsewhere on another branch', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await ended(world, await post(world, sub, { input: says('q1') }))
      const second = await startBroken(world, sub, { input: says('q2', { pause: 'Sure?' }), continues: first.id })
      await ended(world, second)
      await world.sweepUntil(async () => (await extraRuns(world, second)).length > 0)
      const paused = await world.stored(second.id)
      // It begins where the turn of the paused job began, so it does not know the question.
      await world.continueElsewhere(paused, { assistant_id: 'agent', input: says('other') })
      await world.pass(RUN_MS)
      world.runtime.setFaults({ lookup_failure: 1, start_failure: 1 })
      assert.equal((await world.resume(paused, { input: 'yes' })).status, 202)
      await world.quiet()
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      const { jobContext } = world.service.services
      const { runtime } = jobContext
      assert.ok(runtime)
      // The runtime shows the newest state of the thread, and not that of the paused run.
      const lagging = { get: (target: RuntimeClient, name: keyof RuntimeClient) => memberOf(target, name) }
      const memberOf = (target: RuntimeClient, name: keyof RuntimeClient) => {
        if (name === 'fetchState') return async () => null
        const member: unknown = target[name]
        return typeof member === 'function' ? member.bind(target) : member
      }
      jobContext.runtime = new Proxy(runtime, lagging as ProxyHandler<RuntimeClient>)
      const done = await ended(world, paused)
      jobContext.runtime = runtime
      assert.deepEqual([done.status, done.error?.code, done.run_id], ['failed', 'answer_not_applied', null])
    })

    test('a late run of the turn before does not hold up the next turn', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await ended(world, await post(world, sub, { input: says('q1') }))
      const second = await startBroken(world, sub, { input: says('q2'), continues: first.id })
      await ended(world, second)
      world.runtime.setFaults({ running_ms: 600_000, drop_callbacks: 1 })
      await world.sweepUntil(() => runsOf(world, second).length === 2)
      await world.pass(1_000)
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      const { run_id } = await world.stored(second.id)
      const late = runsOf(world, second).find(({ runId }) => runId !== run_id)
      assert.equal(late?.status, 'running')
      const third = await ended(world, await post(world, sub, { input: says('q3'), continues: second.id }))
      assert.deepEqual(historyOf(world, third), ['q1', 'q2', 'q3'])
      assert.equal(late?.status, 'interrupted')
      assert.deepEqual(await extraRuns(world, second), [late?.runId])
    })

    test('a late run from before the question does not hold up the answer', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await ended(world, await post(world, sub, { input: says('q1') }))
      const second = await startBroken(world, sub, { input: says('q2', { pause: 'Sure?' }), continues: first.id })
      const { status, run_id } = await ended(world, second)
      assert.equal(status, 'awaiting_input')
      world.runtime.setFaults({ running_ms: 600_000, drop_callbacks: 1 })
      await world.sweepUntil(() => runsOf(world, second).length === 2)
      await world.pass(1_000)
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      const late = runsOf(world, second).find(({ runId }) => runId !== run_id)
      assert.equal(late?.status, 'running')
      assert.equal((await world.resume(second, { input: 'yes' })).status, 202)
      const answered = await ended(world, second)
      assert.equal(answered.status, 'completed')
      assert.deepEqual(historyOf(world, answered), ['q1', 'q2'])
      assert.equal(late?.status, 'interrupted')
      assert.deepEqual(await extraRuns(world, second), [late?.runId])
    })

    test('a late run is stopped while the repeated start is in doubt, too, and its callback changes nothing', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await ended(world, await post(world, sub, { input: says('q1') }))
      const second = await startBroken(world, sub, { input: says('q2'), continues: first.id })
      world.runtime.setFaults({ late_starts_ms: 300_000, break_starts: 1, pending_ms: 0, running_ms: 600_000 })
      await world.sweepUntil(() => runsOf(world, second).some(({ status }) => status === 'interrupted'))
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      const late = runsOf(world, second).find(({ status }) => status === 'interrupted')
      assert.equal(late?.metadata.attempt, undefined)
      const done = await ended(world, second)
      assert.equal(done.status, 'completed')
      assert.deepEqual(historyOf(world, done), ['q1', 'q2'])
      const called = world.runtime.recentCallbacks.filter(({ run_id }) => run_id === late?.runId)
      assert.deepEqual(
        called.map(({ answered }) => answered),
        [200],
      )
    })

    test('a job that is cancelled while its start is in doubt ends, and its late run is not part of the conversation', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await startBroken(world, sub, { input: says('q1') })
      assert.equal((await world.cancel(first)).status, 202)
      const cancelled = await ended(world, first)
      assert.deepEqual([cancelled.status, cancelled.run_id], ['cancelled', null])
      await world.sweepUntil(() => runsOf(world, first).length === 1)
      const next = await ended(world, await post(world, sub, { input: says('q2'), continues: first.id }))
      assert.deepEqual(historyOf(world, next), ['q2'])
      assert.deepEqual(await world.stored(first.id), cancelled)
    })

    test('a hanging start blocks neither reads nor the checks of other jobs', async () => {
      const world = await shared()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const other = await post(world, newUser(), { input: says('q1') })
      await advanceUntil(world, async () => (await world.stored(other.id)).run_id !== null)
      world.runtime.setFaults({ late_starts_ms: 50_000 })
      const started = world.calls(START_RUN)
      const hanging = await post(world, newUser(), { input: says('q1') })
      await until(() => world.calls(START_RUN) === started + 1)
      await advanceUntil(world, async () => isOver(await world.stored(other.id)))
      assert.equal((await world.stored(other.id)).status, 'completed')
      assert.equal((await world.getInTime(hanging.id)).status, 'processing')
      assert.equal((await world.stored(hanging.id)).run_id, null)
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      await advanceUntil(world, async () => isOver(await world.stored(hanging.id)))
      assert.equal(runsOf(world, hanging).length, 1)
      await heal(world)
    })

    test('the answer to a start that another node has repeated meanwhile is not followed', async () => {
      const world = await shared()
      const started = world.calls(START_RUN)
      world.runtime.setFaults({ late_starts_ms: 50_000 })
      const first = await post(world, newUser(), { input: says('q1', { duration_ms: 60_000 }) })
      await until(() => world.calls(START_RUN) === started + 1)
      // What another node writes that has taken the lease.
      await world.service.db.query(sql`update job_checks set starts = 2 where job_id = ${first.id}`)
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      await advanceUntil(world, async () => isOver(await world.stored(first.id)))
      const done = await world.stored(first.id)
      const late = runsOf(world, first).find(({ metadata }) => metadata.attempt === undefined)
      assert.equal(done.status, 'completed')
      assert.notEqual(done.run_id, late?.runId)
      assert.equal(late?.status, 'interrupted')
      assert.deepEqual(await extraRuns(world, first), [late?.runId])
      await heal(world)
    })

    for (const order of ['oldest first', 'newest first']) {
      test(`a deleted turn stays part of a pinned conversation, ${order}: the next turn continues from its run`, async () => {
        const world = await shared()
        const sub = newUser()
        const first = await ended(world, await post(world, sub, { input: says('q1') }))
        const second = await ended(world, await startBroken(world, sub, { input: says('q2'), continues: first.id }))
        await world.sweepUntil(async () => (await extraRuns(world, second)).length > 0)
        const third = await ended(world, await post(world, sub, { input: says('q3'), continues: second.id }))
        // Its run is cancelled before its first step, so that no turn can continue from it.
        world.runtime.setFaults({ pending_ms: 60_000 })
        const fourth = await post(world, sub, { input: says('q4'), continues: third.id })
        await world.quiet()
        await world.cancel(fourth)
        world.runtime.setFaults(NO_RUNTIME_FAULTS)
        const { status, run_id } = await ended(world, fourth)
        assert.deepEqual([status, run_id !== null], ['cancelled', true])
        for (const { id } of order === 'oldest first' ? [third, fourth] : [fourth, third])
          assert.equal((await world.request('DELETE', `/jobs/${id}`, sub)).status, 204)
        const fifth = await ended(world, await post(world, sub, { input: says('q5'), continues: second.id }))
        assert.deepEqual(historyOf(world, fifth), ['q1', 'q2', 'q3', 'q5'])
      })
    }

    test('a turn after turns that all left no checkpoint starts on a new thread, also if one of them was deleted', async () => {
      const world = await shared()
      const sub = newUser()
      world.runtime.setFaults({ pending_ms: 60_000 })
      const first = await post(world, sub, { input: says('q1') })
      await world.quiet()
      await world.cancel(first)
      world.runtime.setFaults(NO_RUNTIME_FAULTS)
      assert.equal((await ended(world, first)).status, 'cancelled')
      const second = await startBroken(world, sub, { input: says('q2'), continues: first.id })
      await world.cancel(second)
      assert.equal((await ended(world, second)).status, 'cancelled')
      assert.equal((await world.request('DELETE', `/jobs/${first.id}`, sub)).status, 204)
      const third = await ended(world, await post(world, sub, { input: says('q3'), continues: second.id }))
      assert.deepEqual([third.status, third.error], ['completed', null])
      assert.notEqual(third.thread_id, first.thread_id)
    })

    for (const [cancelled, outcome] of [
      [11, 'continues from the turn before them'],
      [20, 'fails, because the turns before them are not known'],
    ] as const) {
      test(`a turn after ${cancelled} turns that were cancelled before their first step ${outcome}`, async () => {
        const world = await shared()
        const sub = newUser()
        const first = await ended(world, await post(world, sub, { input: says('q1') }))
        const second = await ended(world, await startBroken(world, sub, { input: says('q2'), continues: first.id }))
        await world.sweepUntil(async () => (await extraRuns(world, second)).length > 0)
        world.runtime.setFaults({ pending_ms: 60_000 })
        const third = await post(world, sub, { input: says('q3'), continues: second.id })
        await world.quiet()
        await world.cancel(third)
        world.runtime.setFaults(NO_RUNTIME_FAULTS)
        const { status, run_id } = await ended(world, third)
        assert.deepEqual([status, run_id !== null], ['cancelled', true])
        for (let n = 1; n < cancelled; n++) {
          await world.db.query(sql`
            insert into job_runs (run_id, job_id, run_seq, is_extra, created_at)
            values (${randomUUID()}, ${third.id}, ${1 + n}, 0, ${world.clock.now() + n})`)
        }
        const fourth = await ended(world, await post(world, sub, { input: says('q4'), continues: third.id }))
        if (cancelled === 11) assert.deepEqual(historyOf(world, fourth), ['q1', 'q2', 'q4'])
        else assert.deepEqual([fourth.status, fourth.error?.code], ['failed', 'run_lost'])
        assert.equal(fourth.thread_id, first.thread_id)
      })
    }

    test('a start that is given up a day after its deadline leaves no run in the conversation', async () => {
      const world = await shared()
      const sub = newUser()
      const first = await ended(world, await post(world, sub, { input: says('q1') }))
      const given = [
        await startBroken(world, sub, { input: says('q2'), continues: first.id }),
        await startBroken(world, sub, { input: says('alone') }),
      ]
      world.runtime.setFaults({ lookup_failure: 1, drop_callbacks: 1 })
      for (const { id } of given) await world.leapUntil(async () => isOver(await world.stored(id)), 6 * 3_600_000)
      await heal(world)
      const histories: unknown[] = []
      for (const job of given) {
        const { status, error } = await world.stored(job.id)
        assert.deepEqual([status, error?.code], ['failed', 'deadline_exceeded'])
        assert.equal(runsOf(world, job).length, 1, 'the runtime has handled the start')
        const next = await ended(world, await post(world, sub, { input: says('next'), continues: job.id }))
        histories.push(historyOf(world, next))
      }
      assert.deepEqual(histories, [['q1', 'next'], ['next']])
    })

    for (const status of [401, 403, 429]) {
      test(`a start that the runtime answers with ${status} was certainly not made, so it is repeated on its thread`, async () => {
        const world = await shared()
        const sub = newUser()
        const refused = async (body: object) => {
          world.runtime.setFaults({ start_failure: 1, start_failure_status: status })
          const job = await post(world, sub, body)
          await world.sweepUntil(async () => (await world.stored(job.id)).reconcile.attempts > 2)
          await heal(world)
          const done = await ended(world, job)
          assert.deepEqual([done.status, done.thread_id], ['completed', job.thread_id])
          assert.deepEqual(
            runsOf(world, job).map(({ checkpointId, metadata }) => [checkpointId, metadata.attempt]),
            [[null, undefined]],
          )
          return done
        }
        const first = await refused({ input: says('q1') })
        await refused({ input: says('q2'), continues: first.id })
        assert.deepEqual(await world.db.query(sql`select is_pinned from threads where id = ${first.thread_id}`), [
          { is_pinned: 0 },
        ])
      })
    }

    test('a start that never reached the runtime is repeated on its thread', async () => {
      const port = await freePort()
      const world = await startJobWorld(under, { env: { RUNTIME_URL: `http://127.0.0.1:${port}` } })
      const first = await post(world, 'ada', { input: says('q1') })
      // The connection is refused, then the circuit opens.
      await world.sweepUntil(async () => (await world.stored(first.id)).reconcile.attempts > 8, 5_000)
      const runtime = await startAgentRuntime({ port, clock: world.clock })
      try {
        await world.sweepUntil(async () => isOver(await world.stored(first.id)), 5_000)
        assert.deepEqual(
          runtime.runs.map(({ threadId, checkpointId, metadata }) => [threadId, checkpointId, metadata.attempt]),
          [[first.thread_id, null, undefined]],
        )
      } finally {
        await world.service.close()
        await runtime.close()
      }
    })
  })
})

async function post(world: JobWorld, sub: string, body: object): Promise<ShownJob> {
  const answer = await world.request('POST', '/jobs', sub, { body: { type: 'agent', ...body } })
  assert.equal(answer.status, 202, answer.text)
  return answer.body
}

/** The connection of its start breaks at once, and the runtime handles the start 40 s later. */
async function startBroken(world: JobWorld, sub: string, body: object): Promise<ShownJob> {
  world.runtime.setFaults({ late_starts_ms: 40_000, break_starts: 1 })
  const job = await post(world, sub, body)
  await world.quiet()
  world.runtime.setFaults(NO_RUNTIME_FAULTS)
  return job
}

/** The job once its run has ended. */
async function ended(world: JobWorld, { id }: ShownJob): Promise<ShownJob> {
  await world.sweepUntil(async () => isOver(await world.stored(id)))
  return world.stored(id)
}

/**
 * For a start that is being held back, on which `pass` would wait without end. The clock waits for a late heartbeat, and so
 * for the database: otherwise a minute would pass while the disk is slow, and the node would lose its leases.
 */
async function advanceUntil(world: JobWorld, holds: () => Promise<boolean>): Promise<void> {
  const { node } = world.service.services
  await until(async () => {
    if (node.lastWriteAgeMs > 2 * NODE_HEARTBEAT_MS) return false
    await world.clock.advance(500)
    return holds()
  })
}

/** All runs that were started for the job, newest first. */
function runsOf(world: JobWorld, { id }: ShownJob): Run[] {
  return world.runtime.recentRuns.filter(({ metadata }) => metadata.job_id === id)
}

/** The questions in the history of the job's own run. */
function historyOf(world: JobWorld, { run_id }: ShownJob): unknown[] {
  const run = world.runtime.recentRuns.find(({ runId }) => runId === run_id)
  const messages = (run?.values?.messages ?? []) as JsonObject[]
  return messages.filter(({ type }) => type === 'human').map(({ content }) => content)
}

async function extraRuns(world: JobWorld, { id }: ShownJob): Promise<unknown[]> {
  type Timeline = { data: { kind: string; detail: { run_id: string } }[] }
  const path = `/jobs/${id}/timeline?limit=100`
  const { body } = await world.service.request<Timeline>('GET', path, { token: world.admin })
  return body.data.filter(({ kind }) => kind === 'extra_run').map(({ detail }) => detail.run_id)
}
