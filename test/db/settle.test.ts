import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { Breaker } from '../../src/core/async/breaker.ts'
import { IdGenerator } from '../../src/core/ids.ts'
import { JsonText } from '../../src/core/json/json-text.ts'
import { wantAll } from '../../src/core/json/wanted.ts'
import { silentLog } from '../../src/core/log.ts'
import { silentMeter } from '../../src/core/metrics/meter.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database, Engine } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { sql } from '../../src/db/sql.ts'
import { appendEvents } from '../../src/events/event-store.ts'
import { CallbackIntake } from '../../src/jobs/callbacks/callback-intake.ts'
import type { ReceivedCallback } from '../../src/jobs/callbacks/match-callbacks.ts'
import { isTerminal, type JobStatus } from '../../src/jobs/job.ts'
import type { JobContext } from '../../src/jobs/job-context.ts'
import { type JobRow, newJob } from '../../src/jobs/job-row.ts'
import { findJob, insertJob, insertJobRuns } from '../../src/jobs/job-store.ts'
import { type JobType, toJobTypes } from '../../src/jobs/job-types.ts'
import { jobEvent } from '../../src/jobs/settlement/job-event.ts'
import { settleJobs } from '../../src/jobs/settlement/settle.ts'
import type { JobUpdate } from '../../src/jobs/settlement/settlement.ts'
import { judgeRun } from '../../src/jobs/settlement/verdict.ts'
import { JobWorker } from '../../src/jobs/worker/job-worker.ts'
import { parseCallback } from '../../src/runtime/callback-payload.ts'
import { readTraces, WANTED_TRACES } from '../../src/runtime/read-answers.ts'
import { RuntimeClient } from '../../src/runtime/runtime-client.ts'
import { findRefusal } from '../../src/users/user-state-store.ts'
import { hasPushTurnedOff } from '../../src/users/user-store.ts'
import { forEachEngine } from '../support/engines.ts'
import { addDevice, essenceOf, type JobRows, readJobRows } from '../support/job-rows.ts'
import { partOf } from '../support/json-parts.ts'
import { ManualClock } from '../support/manual-clock.ts'

const TYPES = toJobTypes({
  report: {
    assistant_id: 'report',
    output_key: 'report',
    usage_key: 'usage',
    may_pause: false,
    link: 'https://app.example.com/jobs/{job_id}',
  },
  pausing: { assistant_id: 'pausing', output_key: 'report' },
})

/** One node: its own intake, ids and clock on a database it may share. No sweep runs. */
async function node(db: Database) {
  const clock = new ManualClock(Date.UTC(2026, 0, 15))
  const ids = new IdGenerator(clock, systemRandom)
  const breaker = new Breaker({ clock, threshold: 1, openMs: 1, maxOpenMs: 1 })
  // No runtime listens there. A callback alone is not trusted if a runtime is configured.
  const runtime = new RuntimeClient({ url: 'http://127.0.0.1:9', apiKey: null, timeoutMs: 1, fetch, clock, breaker })
  const context: JobContext = {
    db,
    clock,
    random: systemRandom,
    ids,
    log: silentLog,
    meter: silentMeter,
    types: TYPES,
    pushOptOut: hasPushTurnedOff,
    findRefusal,
    usageLimitRuns: null,
    runtime,
    identify: null,
    callbackUrl: () => null,
  }
  const worker = new JobWorker(context, {
    node: { id: 'node', isAlive: true, holdsLeaseOf: () => true },
    runtimeTimeoutMs: 1,
  })
  await worker.close()
  return { db, clock, ids, context, intake: new CallbackIntake(context, worker) }
}

type Node = Awaited<ReturnType<typeof node>>

function typeNamed(name: string): JobType {
  const type = TYPES.get(name)
  assert.ok(type)
  return type
}

interface NewJobOptions {
  type: string
  /** Whether the answer with the run's id has arrived. */
  runKnown?: boolean
  devices?: number
}

async function createJob({ db, clock, ids }: Node, { type, runKnown = true, devices = 0 }: NewJobOptions) {
  const owner = `owner-${randomUUID()}`
  for (let n = 0; n < devices; n++) await addDevice(db, owner)
  const runId = randomUUID()
  const given = {
    id: ids.next('job'),
    input: '{}',
    project_id: null,
    created_by: owner,
    thread_id: randomUUID(),
    run_id: runKnown ? runId : null,
  }
  const job = newJob(typeNamed(type), given, clock.now())
  await db.transaction(async (tx) => {
    await insertJob(tx, job)
    await appendEvents(tx, [
      jobEvent(job, 'job.created', { cause: `${job.id}:created`, atMs: clock.now(), types: TYPES }),
    ])
    if (runKnown) await insertJobRuns(tx, [{ run_id: runId, job_id: job.id, run_seq: 1, is_extra: 0, created_at: 0 }])
  })
  return { job, runId }
}

interface End {
  type: string
  status: string
  values?: object
  error?: string
  state: { values?: object; next?: string[]; error?: string; interrupts?: JsonText[] }
  becomes: JobStatus
}

const OUTPUT = { title: 'Done', n: 12345678901234567890n.toString() }
const QUESTION = { id: 'q', value: 'Publish it?' }
const USAGE = { input_tokens: 3, output_tokens: 4 }
const ENDS: Record<string, End> = {
  success: {
    type: 'report',
    status: 'success',
    values: { report: OUTPUT, usage: USAGE, trace_id: 'trace-1' },
    state: { values: { report: OUTPUT, usage: USAGE, trace_id: 'trace-1' } },
    becomes: 'completed',
  },
  'an error': {
    type: 'report',
    status: 'error',
    values: { draft: 1 },
    error: 'kaboom',
    state: { values: { draft: 1 }, error: 'kaboom' },
    becomes: 'failed',
  },
  'a missing output': { type: 'report', status: 'success', values: {}, state: {}, becomes: 'failed' },
  'a cancellation': { type: 'report', status: 'interrupted', state: {}, becomes: 'cancelled' },
  'a pause': {
    type: 'pausing',
    status: 'success',
    values: { report: OUTPUT },
    state: { values: { report: OUTPUT }, next: ['ask'], interrupts: [JsonText.of(QUESTION)] },
    becomes: 'awaiting_input',
  },
  'the end of a graph that may pause': {
    type: 'pausing',
    status: 'success',
    values: { report: OUTPUT },
    state: { values: { report: OUTPUT } },
    becomes: 'completed',
  },
}

interface EndedRun {
  job: JobRow
  runId: string
  end: End
}

async function received({ job, runId, end }: EndedRun, more: object = {}): Promise<ReceivedCallback> {
  const body = {
    thread_id: job.thread_id,
    run_id: runId,
    status: end.status,
    ...(end.values ? { values: end.values } : {}),
    ...(end.error ? { error: end.error } : {}),
    metadata: { job_id: job.id },
    ...more,
  }
  const type = typeNamed(end.type)
  return {
    payload: await parseCallback(JSON.stringify(body), type.wantedValues),
    type,
    path: '/webhooks/test',
    jobId: null,
    receivedAtMs: 1,
  }
}

async function check(on: Node, { job, runId, end }: EndedRun, via: 'read' | 'sweep'): Promise<void> {
  const run = { runId, threadId: job.thread_id, status: end.status, metadata: {}, traces: noTraces() }
  const type = typeNamed(end.type)
  const values = partOf(end.state.values ?? {}, wantAll(type.wantedValues, WANTED_TRACES))
  const traces = readTraces(values)
  const none = { next: [], checkpointId: null, error: null, interrupts: [] }
  const state = { ...none, runId, isDone: end.state.next === undefined, ...end.state, values, traces }
  const update = {
    jobId: job.id,
    runId,
    verdict: judgeRun(run, state, { type, isLaterTurn: false, cancelRequested: false, answered: [] }),
    via,
    traces,
  }
  await settleJobs(on.context, (_tx, settlement) => settlement.settle([update]))
}

function noTraces() {
  return { traceId: null, tracerTraceId: null }
}

/** The hints that a run has ended. */
const HINTS = {
  callback: async (on: Node, run: EndedRun) => on.intake.receive(await received(run)),
  duplicate: async (on: Node, run: EndedRun) => on.intake.receive(await received(run)),
  'late callback': async (on: Node, run: EndedRun) =>
    on.intake.receive(
      await received(run, { webhook_sent_at: 'later', error: run.end.error && { message: run.end.error } }),
    ),
  read: (on: Node, run: EndedRun) => check(on, run, 'read'),
  sweep: (on: Node, run: EndedRun) => check(on, run, 'sweep'),
}
type Hint = keyof typeof HINTS

function permutations<T>(items: readonly T[]): T[][] {
  if (items.length <= 1) return [[...items]]
  return items.flatMap((item, at) => permutations(items.toSpliced(at, 1)).map((rest) => [item, ...rest]))
}

const AT_ONCE = 10
const ORDERS = permutations(Object.keys(HINTS) as Hint[])
/** One order for each two hints that can come first. */
const BEGINNINGS = ORDERS.filter((_, n) => n % 6 === 0)
/** The order decides which code runs, not which SQL: on PostgreSQL it is enough that each hint meets each other one. */
const ORDERS_ON: Record<Engine, Hint[][]> = { sqlite: ORDERS, postgres: BEGINNINGS }

function assertOneEffect(rows: JobRows, end: End, devices: number): void {
  const ends = rows.events.filter(({ type }) => type === `job.${end.becomes}`)
  assert.equal(rows.job.status, end.becomes)
  assert.equal(ends.length, 1, 'one event')
  assert.equal(rows.events.length, 2, 'and beside it only that of its creation')
  assert.equal(rows.usage.length, isTerminal(end.becomes) ? 1 : 0, 'one usage row, once it ended')
  assert.equal(rows.runs.length, 1, 'one run')
  const expected = end.becomes === 'cancelled' ? 0 : devices
  assert.equal(rows.deliveries.length, expected, 'one intent for each device')
  assert.equal(rows.notifications.length, expected > 0 ? 1 : 0)
  assert.equal(rows.checks.length, rows.job.finished_at === null ? 1 : 0, 'an ended job has no check')
  assert.deepEqual(rows.counters.length === 0 ? 0 : rows.counters[0]?.runs, rows.usage.length)
}

describe('settling', () => {
  assert.equal(ORDERS.length, 120)
  assert.equal(new Set(BEGINNINGS.map(([first, second]) => `${first} ${second}`)).size, 20)

  forEachEngine((engine) => {
    const alone = once(async () => node(await engine.openDatabase()))
    const pair = once(async () => {
      const store = await engine.createStore()
      const nodes = [await node(await store.connect()), await node(await store.connect())] as const
      await migrate(nodes[0].db)
      return nodes
    })

    for (const [name, end] of Object.entries(ENDS)) {
      test(`every order of the hints that a run ended with ${name} leaves the same rows`, async () => {
        const on = await alone()
        const essences: { order: string; rows: unknown }[] = []
        const play = async (order: readonly Hint[], n: number) => {
          const devices = 2
          const { job, runId } = await createJob(on, { type: end.type, devices, runKnown: n % 2 === 0 })
          const run = { job, runId, end }
          let seen: JobStatus = job.status
          for (const hint of order) {
            await HINTS[hint](on, run)
            // What must be seen twice counts when the second sighting comes this much later.
            await on.clock.advance(10_000)
            const now = await findJob(on.db, job.id)
            assert.ok(now)
            if (isTerminal(seen)) assert.equal(now.status, seen, `${order}: it left ${seen} after the ${hint}`)
            seen = now.status
          }
          const rows = await readJobRows(on.db, job.id)
          assertOneEffect(rows, end, devices)
          essences.push({ order: order.join(', '), rows: essenceOf(rows) })
        }
        // Not all at once: on a busy machine some would wait too long for a connection.
        const orders = ORDERS_ON[engine.name]
        for (let from = 0; from < orders.length; from += AT_ONCE) {
          await Promise.all(orders.slice(from, from + AT_ONCE).map((order, n) => play(order, from + n)))
        }
        const [first] = essences
        for (const { order, rows } of essences) assert.deepEqual(rows, first?.rows, `${order} and ${first?.order}`)
      })
    }

    test('settled_by names the first hint, and never changes', async () => {
      const on = await alone()
      const end = ENDS.success as End
      for (const [first, settledBy] of [
        ['callback', 'callback'],
        ['read', 'read'],
        ['sweep', 'sweep'],
      ] as const) {
        const run = { ...(await createJob(on, { type: end.type })), end }
        await HINTS[first](on, run)
        for (const hint of Object.keys(HINTS) as Hint[]) await HINTS[hint](on, run)
        assert.equal((await findJob(on.db, run.job.id))?.settled_by, settledBy)
      }
    })

    test('a late callback that says something else never reopens or rewrites a finished job', async () => {
      const on = await alone()
      const names = ['success', 'an error', 'a cancellation'] as const
      for (const first of names) {
        for (const second of names.filter((name) => name !== first)) {
          const [end, other] = [ENDS[first] as End, ENDS[second] as End]
          const { job, runId } = await createJob(on, { type: 'report', devices: 1 })
          await check(on, { job, runId, end }, 'read')
          await on.clock.advance(10_000)
          await check(on, { job, runId, end }, 'read')
          const before = await readJobRows(on.db, job.id)
          const { outcome } = await on.intake.receive(await received({ job, runId, end: other }))
          assert.match(outcome, /^(?:stale|duplicate)$/)
          const after = await readJobRows(on.db, job.id)
          assert.deepEqual(
            { ...after, job: { ...after.job, trace_id: null } },
            { ...before, job: { ...before.job, trace_id: null } },
          )
        }
      }
    })

    test('an unconfirmed pause does not cancel a job whose cancellation was requested: its run may have completed', async () => {
      const on = await alone()
      const settleWith = async (jobId: string, verdict: JobUpdate['verdict']) => {
        const update = { jobId, runId: null, verdict, via: 'sweep' as const, traces: null }
        await settleJobs(on.context, (_tx, settlement) => settlement.settle([update]))
        return (await findJob(on.db, jobId))?.status
      }
      const requested = async () => {
        const { job } = await createJob(on, { type: 'pausing' })
        await on.db.query(sql`update jobs set cancel_requested_at = ${on.clock.now()} where id = ${job.id}`)
        return job.id
      }
      const unconfirmed = { kind: 'awaiting_input', interrupts: [], confirm: 'unfinished_step' } as const
      const completed = await requested()
      assert.equal(await settleWith(completed, unconfirmed), 'processing')
      const done = { kind: 'completed', output: JsonText.of(1), tokens: { input: 0, output: 0, total: 0 } } as const
      assert.equal(await settleWith(completed, done), 'completed')
      const paused = await requested()
      assert.equal(await settleWith(paused, unconfirmed), 'processing')
      await on.clock.advance(10_000)
      assert.equal(await settleWith(paused, unconfirmed), 'cancelled')
      assert.equal(await settleWith(await requested(), { kind: 'awaiting_input', interrupts: [] }), 'cancelled')
    })

    test('evidence of one kind does not confirm evidence of another kind, though both would cancel the job', async () => {
      const on = await alone()
      const { job } = await createJob(on, { type: 'report' })
      await on.db.query(sql`update jobs set cancel_requested_at = ${on.clock.now()} where id = ${job.id}`)
      const settleWith = async (verdict: JobUpdate['verdict']) => {
        await on.clock.advance(10_000)
        const update = { jobId: job.id, runId: null, verdict, via: 'sweep' as const, traces: null }
        await settleJobs(on.context, (_tx, settlement) => settlement.settle([update]))
        return (await findJob(on.db, job.id))?.status
      }
      assert.equal(await settleWith({ kind: 'cancelled', confirm: 'run_missing' }), 'processing')
      const pause = { kind: 'awaiting_input', interrupts: [], confirm: 'unfinished_step' } as const
      assert.equal(await settleWith(pause), 'processing')
      assert.equal(await settleWith({ kind: 'unclear', reason: 'the state was not fetched' }), 'processing')
      assert.equal(await settleWith(pause), 'cancelled', 'an unclear answer does not contradict the same state')
    })

    test('one answer of the runtime that is written twice, 10 s apart, is still one sighting', async () => {
      const on = await alone()
      const { job } = await createJob(on, { type: 'report' })
      const lost = { kind: 'failed', code: 'run_lost', message: 'It is gone', confirm: 'run_missing' } as const
      const settleWith = async (askedAtMs: number) => {
        const update = { jobId: job.id, runId: null, verdict: lost, via: 'sweep' as const, traces: null, askedAtMs }
        await settleJobs(on.context, (_tx, settlement) => settlement.settle([update]))
        return (await findJob(on.db, job.id))?.status
      }
      const askedAtMs = on.clock.now()
      assert.equal(await settleWith(askedAtMs), 'processing')
      await on.clock.advance(10_000)
      assert.equal(await settleWith(askedAtMs), 'processing')
      assert.equal(await settleWith(on.clock.now()), 'failed')
    })

    test('a second move to an end counts no usage and no end, even if the table of moves allowed it', async () => {
      const on = await alone()
      const counted: string[] = []
      const context = { ...on.context, meter: { ...silentMeter, count: (name: string) => void counted.push(name) } }
      const { job, runId } = await createJob(on, { type: 'report' })
      const tokens = { input: 3, output: 4, total: 7 }
      const verdict = { kind: 'completed', output: JsonText.of(1), tokens } as const
      const settle = (given: JobUpdate['verdict']) =>
        settleJobs(context, (_tx, settlement) =>
          settlement.settle([{ jobId: job.id, runId, verdict: given, via: 'read', traces: null }]),
        )
      await settle(verdict)
      const { counters, usage } = await readJobRows(on.db, job.id)
      assert.deepEqual(counted, ['jobs_ended_total'])
      for (const again of [verdict, { kind: 'cancelled' } as const]) {
        // An ended job in a status that can move: the settlement sees the same if the table had a move from an end.
        await on.db.query(sql`update jobs set status = 'generating' where id = ${job.id}`)
        await on.clock.advance(40 * 86_400_000)
        const [settled] = await settle(again)
        assert.equal(settled?.outcome, 'applied')
        const rows = await readJobRows(on.db, job.id)
        assert.deepEqual({ counters: rows.counters, usage: rows.usage }, { counters, usage })
      }
      assert.deepEqual(counted, ['jobs_ended_total'])
    })

    test('many updates of one job in one batch are applied in order, and the first end wins', async () => {
      const on = await alone()
      const { job, runId } = await createJob(on, { type: 'report', devices: 1 })
      const update = (verdict: JobUpdate['verdict']) => ({
        jobId: job.id,
        runId,
        verdict,
        via: 'sweep' as const,
        traces: null,
      })
      const settled = await settleJobs(on.context, (_tx, settlement) =>
        settlement.settle([
          update({ kind: 'pending' }),
          update({ kind: 'running' }),
          update({ kind: 'failed', code: 'run_failed', message: 'kaboom' }),
          update({ kind: 'completed', output: JsonText.of(1), tokens: { input: 0, output: 0, total: 0 } }),
          update({ kind: 'failed', code: 'run_failed', message: 'again' }),
        ]),
      )
      assert.deepEqual(
        settled.map(({ outcome }) => outcome),
        ['deferred', 'deferred', 'applied', 'stale', 'duplicate'],
      )
      const { job: row, events, usage } = await readJobRows(on.db, job.id)
      assert.equal(row.error_message, 'kaboom')
      assert.equal(row.output, null)
      assert.deepEqual(
        events.map(({ type }) => type),
        ['job.created', 'job.updated', 'job.failed'],
      )
      assert.equal(usage.length, 1)
    })

    test('a transaction that fails settles nothing at all, and counts no end', async () => {
      const on = await alone()
      const end = ENDS.success as End
      const { job, runId } = await createJob(on, { type: end.type, devices: 2 })
      const before = await readJobRows(on.db, job.id)
      const verdict = { kind: 'completed', output: JsonText.of(1), tokens: { input: 0, output: 0, total: 0 } } as const
      const update = { jobId: job.id, runId, verdict, via: 'read', traces: null } as const
      const counted: string[] = []
      const context = { ...on.context, meter: { ...silentMeter, count: (name: string) => void counted.push(name) } }
      const failing = settleJobs(context, async (_tx, settlement) => {
        await settlement.settle([update])
        throw new Error('power cut')
      })
      await assert.rejects(failing, /power cut/)
      assert.deepEqual(await readJobRows(on.db, job.id), before)
      assert.deepEqual(counted, [])

      await settleJobs(context, (_tx, settlement) => settlement.settle([update, update]))
      assert.deepEqual(counted, ['jobs_ended_total'], 'once, after the commit')
    })

    test('twenty concurrent updates, over two connections, settle a job once', async () => {
      const nodes = await pair()
      const end = ENDS.success as End
      const run = { ...(await createJob(nodes[0], { type: end.type, devices: 3, runKnown: false })), end }
      const hints = Object.keys(HINTS) as Hint[]
      await Promise.all(
        Array.from({ length: 20 }, (_, n) => HINTS[hints[n % hints.length] as Hint](nodes[n % 2] as Node, run)),
      )
      assertOneEffect(await readJobRows(nodes[0].db, run.job.id), end, 3)
      const stored = await nodes[0].db.query(sql`select outcome from callbacks where job_id = ${run.job.id}`)
      assert.equal(stored.length, 12, 'every callback is kept')
      assert.ok(stored.filter(({ outcome }) => outcome === 'applied').length <= 1)
    })

    test('batches of the same jobs in any order, on two nodes at once, do not block each other', async () => {
      const nodes = await pair()
      const end = ENDS.success as End
      const jobs: EndedRun[] = []
      for (let n = 0; n < 8; n++) jobs.push({ ...(await createJob(nodes[0], { type: end.type, devices: 1 })), end })
      const rounds = nodes.flatMap((on, n) => {
        const order = n === 0 ? jobs : jobs.toReversed()
        return [
          ...order.map((run) => HINTS.callback(on, run)),
          ...order.map((run) => HINTS.sweep(on, run)),
          ...order.map((run) => HINTS.duplicate(on, run)),
        ]
      })
      await Promise.all(rounds)
      for (const { job } of jobs) assertOneEffect(await readJobRows(nodes[0].db, job.id), end, 1)
    })

    test('one unknown run, reported to two nodes at once, gets one job', async () => {
      const nodes = await pair()
      const end = ENDS.success as End
      const strangers = Array.from({ length: 15 }, () => ({
        job: { id: 'job_nobody', thread_id: randomUUID() } as JobRow,
        runId: randomUUID(),
        end,
      }))
      const answers = await Promise.all(
        nodes.flatMap((on, n) => {
          const order = n === 0 ? strangers : strangers.toReversed()
          return [...order, ...order].map(async (run) => on.intake.receive(await received(run)))
        }),
      )
      assert.equal(answers.filter(({ outcome }) => outcome === 'adopted').length, 15)
      assert.equal(answers.filter(({ outcome }) => outcome === 'duplicate').length, 45)
      const jobs = new Set(answers.map(({ jobId }) => jobId))
      assert.equal(jobs.size, 15)
      for (const id of jobs) {
        const rows = await readJobRows(nodes[0].db, id)
        assert.equal(rows.job.status, 'completed')
        assert.equal(rows.usage.length, 1)
        assert.equal(rows.events.length, 2)
      }
    })

    test('a callback the database refuses fails alone among fifty of the same instant', async () => {
      const on = await alone()
      const end = ENDS.success as End
      const jobs: EndedRun[] = []
      for (let n = 0; n < 50; n++) jobs.push({ ...(await createJob(on, { type: end.type })), end })
      const poison = { ...(await received(await poisoned(on, end))), receivedAtMs: Number.NaN }
      const answers = await Promise.allSettled([
        ...jobs.slice(0, 25).map(async (run) => on.intake.receive(await received(run))),
        on.intake.receive(poison),
        ...jobs.slice(25).map(async (run) => on.intake.receive(await received(run))),
      ])
      assert.equal(answers.filter(({ status }) => status === 'rejected').length, 1)
      assert.equal(answers[25]?.status, 'rejected')
      for (const { job } of jobs) assertOneEffect(await readJobRows(on.db, job.id), end, 0)
    })

    test('a callback that the database refused settled nothing, and its job can still be settled', async () => {
      const on = await alone()
      const end = ENDS.success as End
      const run = await poisoned(on, end)
      await assert.rejects(on.intake.receive({ ...(await received(run)), receivedAtMs: Number.NaN }))
      assert.equal((await findJob(on.db, run.job.id))?.status, 'processing')
      await HINTS.read(on, run)
      assertOneEffect(await readJobRows(on.db, run.job.id), end, 0)
    })

    test('a credential bound to one job is not accepted for another job', async () => {
      const on = await alone()
      const end = ENDS.success as End
      const [mine, other] = [
        { ...(await createJob(on, { type: end.type, runKnown: false })), end },
        { ...(await createJob(on, { type: end.type })), end },
      ]
      const before = await readJobRows(on.db, other.job.id)
      const forged: ReceivedCallback[] = [
        { ...(await received(other)), jobId: mine.job.id },
        { ...(await received(other, { thread_id: mine.job.thread_id })), jobId: mine.job.id },
        { ...(await received({ ...mine, runId: other.runId })), jobId: mine.job.id },
        { ...(await received(other)), jobId: on.ids.next('job') },
      ]
      for (const callback of forged) {
        const { outcome } = await on.intake.receive(callback)
        assert.equal(outcome, 'stale')
      }
      assert.deepEqual(await readJobRows(on.db, other.job.id), before)
      assert.equal((await findJob(on.db, mine.job.id))?.status, 'processing')
      assert.equal((await findJob(on.db, mine.job.id))?.run_id, null)
    })

    test('several runs that name one unknown job become one job, and the other callbacks are stale', async () => {
      const on = await alone()
      const end = ENDS.success as End
      const thread_id = randomUUID()
      const jobId = on.ids.next('job')
      const answers = await Promise.all(
        [randomUUID(), randomUUID(), randomUUID()].map(async (runId) =>
          on.intake.receive({
            ...(await received({ job: { id: 'x', thread_id } as JobRow, runId, end })),
            jobId,
          }),
        ),
      )
      assert.deepEqual(
        answers.map(({ outcome, jobId }) => [outcome, jobId]),
        [
          ['adopted', jobId],
          ['stale', jobId],
          ['stale', jobId],
        ],
      )
    })

    test('the link of its type is part of the push and of the events of a job', async () => {
      const on = await alone()
      const end = ENDS.success as End
      const linked = { ...(await createJob(on, { type: end.type, devices: 1 })), end }
      await HINTS.callback(on, linked)
      const { notifications, events } = await readJobRows(on.db, linked.job.id)
      const link = `https://app.example.com/jobs/${linked.job.id}`
      assert.deepEqual(
        notifications.map((row) => row.link),
        [link],
      )
      assert.deepEqual(
        events.map(({ data }) => (JSON.parse(String(data)) as { link: string }).link),
        [link, link],
      )
    })

    test('a user who turned push off gets no push, and neither does a disabled device', async () => {
      const on = await alone()
      const end = ENDS.success as End
      const quiet = { ...(await createJob(on, { type: end.type, devices: 2 })), end }
      const sub = String(quiet.job.created_by)
      await on.db.query(sql`
        insert into users (sub, push_enabled, version, created_at, updated_at, last_seen_at) values (${sub}, 0, 1, 0, 0, 0)`)
      await HINTS.callback(on, quiet)
      assert.equal((await readJobRows(on.db, quiet.job.id)).notifications.length, 0)
      const one = { ...(await createJob(on, { type: end.type, devices: 2 })), end }
      await on.db.query(sql`
        update devices set disabled_at = 1 where id = (
          select min(id) from devices where subject = ${String(one.job.created_by)})`)
      await HINTS.callback(on, one)
      assert.equal((await readJobRows(on.db, one.job.id)).deliveries.length, 1)
    })
  })
})

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined
  return () => {
    made ??= make()
    return made
  }
}

async function poisoned(on: Node, end: End): Promise<EndedRun> {
  return { ...(await createJob(on, { type: end.type })), end }
}
