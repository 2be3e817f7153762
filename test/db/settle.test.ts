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
import type { Database } from '../../src/db/database.ts'
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
import { hasPushTurnedOff } from '../../src/users/user-store.ts'
import { forEachEngine } from '../support/engines.ts'
import { addDevice, essenceOf, type JobRows, readJobRows } from '../support/job-rows.ts'
import { partOf } from '../support/json-parts.ts'
import { ManualClock } from '../support/manual-clock.ts'

const TYPES = toJobTypes({
  report: { assistant_id: 'report', output_key: 'report', usage_key: 'usage', may_pause: false },
  pausing: { assistant_id: 'pausing', output_key: 'report' },
})

/** One node: its own intake, ids and clock on a database it may share. Nothing looks after jobs by itself. */
async function node(db: Database) {
  const clock = new ManualClock(Date.UTC(2026, 0, 15))
  const ids = new IdGenerator(clock, systemRandom)
  const breaker = new Breaker({ clock, threshold: 1, openMs: 1, maxOpenMs: 1 })
  // Nobody is there; a callback alone cannot be trusted where somebody could be asked.
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
    runtime,
    callbackUrl: () => null,
  }
  const worker = new JobWorker(context, { runtimeTimeoutMs: 1 })
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
  /** Whether the answer that told us the run's id has arrived. */
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
    await appendEvents(tx, [jobEvent(job, 'job.created', `${job.id}:created`, clock.now())])
    if (runKnown) await insertJobRuns(tx, [{ run_id: runId, job_id: job.id, run_seq: 1, created_at: 0 }])
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

interface Told {
  job: JobRow
  runId: string
  end: End
}

async function received({ job, runId, end }: Told, more: object = {}): Promise<ReceivedCallback> {
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

async function look(on: Node, { job, runId, end }: Told, via: 'read' | 'sweep'): Promise<void> {
  const run = { runId, threadId: job.thread_id, status: end.status, metadata: {}, traces: noTraces() }
  const type = typeNamed(end.type)
  const values = partOf(end.state.values ?? {}, wantAll(type.wantedValues, WANTED_TRACES))
  const traces = readTraces(values)
  const state = { next: [], runId, error: null, interrupts: [], ...end.state, values, traces }
  const update = {
    jobId: job.id,
    runId,
    verdict: judgeRun(run, state, type),
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
  callback: async (on: Node, told: Told) => on.intake.receive(await received(told)),
  duplicate: async (on: Node, told: Told) => on.intake.receive(await received(told)),
  'late callback': async (on: Node, told: Told) =>
    on.intake.receive(
      await received(told, { webhook_sent_at: 'later', error: told.end.error && { message: told.end.error } }),
    ),
  read: (on: Node, told: Told) => look(on, told, 'read'),
  sweep: (on: Node, told: Told) => look(on, told, 'sweep'),
}
type Hint = keyof typeof HINTS

function permutations<T>(items: readonly T[]): T[][] {
  if (items.length <= 1) return [[...items]]
  return items.flatMap((item, at) => permutations(items.toSpliced(at, 1)).map((rest) => [item, ...rest]))
}

const ORDERS = permutations(Object.keys(HINTS) as Hint[])

function assertOneEffect(rows: JobRows, end: End, devices: number): void {
  const ends = rows.events.filter(({ type }) => type === `job.${end.becomes}`)
  assert.equal(rows.job.status, end.becomes)
  assert.equal(ends.length, 1, 'one event')
  assert.equal(rows.events.length, 2, 'and beside it only that of its creation')
  assert.equal(rows.usage.length, isTerminal(end.becomes) ? 1 : 0, 'one usage row, once it ended')
  assert.equal(rows.runs.length, 1, 'one run')
  const told = end.becomes === 'cancelled' ? 0 : devices
  assert.equal(rows.deliveries.length, told, 'one intent for each device')
  assert.equal(rows.notifications.length, told > 0 ? 1 : 0)
  assert.equal(rows.job.next_check_at, null)
  assert.deepEqual(rows.counters.length === 0 ? 0 : rows.counters[0]?.runs, rows.usage.length)
}

describe('settling', () => {
  assert.equal(ORDERS.length, 120)

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
        const work = ORDERS.map(async (order, n) => {
          const devices = 2
          const { job, runId } = await createJob(on, { type: end.type, devices, runKnown: n % 2 === 0 })
          const told = { job, runId, end }
          let seen: JobStatus = job.status
          for (const hint of order) {
            await HINTS[hint](on, told)
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
        })
        await Promise.all(work)
        const [first] = essences
        for (const { order, rows } of essences) assert.deepEqual(rows, first?.rows, `${order} and ${first?.order}`)
      })
    }

    test('who noticed first is who is named, and it is named once', async () => {
      const on = await alone()
      const end = ENDS.success as End
      for (const [first, settledBy] of [
        ['callback', 'callback'],
        ['read', 'read'],
        ['sweep', 'sweep'],
      ] as const) {
        const told = { ...(await createJob(on, { type: end.type })), end }
        await HINTS[first](on, told)
        for (const hint of Object.keys(HINTS) as Hint[]) await HINTS[hint](on, told)
        assert.equal((await findJob(on.db, told.job.id))?.settled_by, settledBy)
      }
    })

    test('a late callback that says something else never reopens or rewrites a finished job', async () => {
      const on = await alone()
      const names = ['success', 'an error', 'a cancellation'] as const
      for (const first of names) {
        for (const second of names.filter((name) => name !== first)) {
          const [end, other] = [ENDS[first] as End, ENDS[second] as End]
          const { job, runId } = await createJob(on, { type: 'report', devices: 1 })
          await look(on, { job, runId, end }, 'read')
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

    test('many updates of one job in one batch are taken in order, and the first end wins', async () => {
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

    test('fifty at once, over two connections, settle a job once', async () => {
      const nodes = await pair()
      const end = ENDS.success as End
      const told = { ...(await createJob(nodes[0], { type: end.type, devices: 3, runKnown: false })), end }
      const hints = Object.keys(HINTS) as Hint[]
      await Promise.all(
        Array.from({ length: 50 }, (_, n) => HINTS[hints[n % hints.length] as Hint](nodes[n % 2] as Node, told)),
      )
      assertOneEffect(await readJobRows(nodes[0].db, told.job.id), end, 3)
      const stored = await nodes[0].db.query(sql`select outcome from callbacks where job_id = ${told.job.id}`)
      assert.equal(stored.length, 30, 'every callback is kept')
      assert.ok(stored.filter(({ outcome }) => outcome === 'applied').length <= 1)
    })

    test('batches of the same jobs in any order, on two nodes at once, get in nobody’s way', async () => {
      const nodes = await pair()
      const end = ENDS.success as End
      const jobs: Told[] = []
      for (let n = 0; n < 20; n++) jobs.push({ ...(await createJob(nodes[0], { type: end.type, devices: 1 })), end })
      const rounds = nodes.flatMap((on, n) => {
        const order = n === 0 ? jobs : jobs.toReversed()
        return [
          ...order.map((told) => HINTS.callback(on, told)),
          ...order.map((told) => HINTS.sweep(on, told)),
          ...order.map((told) => HINTS.duplicate(on, told)),
        ]
      })
      await Promise.all(rounds)
      for (const { job } of jobs) assertOneEffect(await readJobRows(nodes[0].db, job.id), end, 1)
    })

    test('one run nobody knows, heard of on two nodes at once, gets one job', async () => {
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
          return [...order, ...order].map(async (told) => on.intake.receive(await received(told)))
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
      const jobs: Told[] = []
      for (let n = 0; n < 50; n++) jobs.push({ ...(await createJob(on, { type: end.type })), end })
      const poison = { ...(await received(await poisoned(on, end))), receivedAtMs: Number.NaN }
      const answers = await Promise.allSettled([
        ...jobs.slice(0, 25).map(async (told) => on.intake.receive(await received(told))),
        on.intake.receive(poison),
        ...jobs.slice(25).map(async (told) => on.intake.receive(await received(told))),
      ])
      assert.equal(answers.filter(({ status }) => status === 'rejected').length, 1)
      assert.equal(answers[25]?.status, 'rejected')
      for (const { job } of jobs) assertOneEffect(await readJobRows(on.db, job.id), end, 0)
    })

    test('what the database refused settled nothing, and its job can still be settled', async () => {
      const on = await alone()
      const end = ENDS.success as End
      const told = await poisoned(on, end)
      await assert.rejects(on.intake.receive({ ...(await received(told)), receivedAtMs: Number.NaN }))
      assert.equal((await findJob(on.db, told.job.id))?.status, 'processing')
      await HINTS.read(on, told)
      assertOneEffect(await readJobRows(on.db, told.job.id), end, 0)
    })

    test('a credential bound to one job speaks for no other', async () => {
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
        { ...(await received(other)), jobId: 'job_of_nobody' },
      ]
      for (const callback of forged) {
        const { outcome } = await on.intake.receive(callback)
        assert.equal(outcome, 'stale')
      }
      assert.deepEqual(await readJobRows(on.db, other.job.id), before)
      assert.equal((await findJob(on.db, mine.job.id))?.status, 'processing')
      assert.equal((await findJob(on.db, mine.job.id))?.run_id, null)
    })

    test('several runs that claim one job nobody knows become one job, and the rest is known for what it is', async () => {
      const on = await alone()
      const end = ENDS.success as End
      const thread_id = randomUUID()
      const answers = await Promise.all(
        [randomUUID(), randomUUID(), randomUUID()].map(async (runId) =>
          on.intake.receive({
            ...(await received({ job: { id: 'x', thread_id } as JobRow, runId, end })),
            jobId: 'job_restored',
          }),
        ),
      )
      assert.deepEqual(
        answers.map(({ outcome, jobId }) => [outcome, jobId]),
        [
          ['adopted', 'job_restored'],
          ['stale', 'job_restored'],
          ['stale', 'job_restored'],
        ],
      )
    })

    test('somebody who wants no push gets none, and a device that is disabled neither', async () => {
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

async function poisoned(on: Node, end: End): Promise<Told> {
  return { ...(await createJob(on, { type: end.type })), end }
}
