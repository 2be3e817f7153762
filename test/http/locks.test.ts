import assert from 'node:assert/strict'
import { after, describe, test } from 'node:test'
import { type Database, LockTimeout } from '../../src/db/database.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { sql } from '../../src/db/sql.ts'
import type { ReceivedCallback } from '../../src/jobs/callbacks/match-callbacks.ts'
import { parseCallback } from '../../src/runtime/callback-payload.ts'
import { type JobWorld, type ShownJob, startJobWorld } from '../support/job-world.ts'
import { PATIENCE_MS } from '../support/patience.ts'
import { forEachService, type ServiceUnderTest } from '../support/service.ts'
import { sharedMigratedDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'

const closing: (() => Promise<void>)[] = []
after(async () => {
  for (const close of closing) await close()
})

/** Two nodes on one database, and a connection of another program. */
async function startNodes(
  under: ServiceUnderTest,
  {
    queryTimeoutMs,
    lockTimeout,
    onGroupTimeout = () => {},
  }: { queryTimeoutMs: number; lockTimeout?: string; onGroupTimeout?: () => void },
) {
  const { url, drop } = await sharedMigratedDatabase()
  const open = async (timeoutMs = queryTimeoutMs) => {
    const address = new URL(url)
    if (lockTimeout !== undefined) address.searchParams.set('lock_timeout', lockTimeout)
    const db = await openPostgres({ url: address.href, queryTimeoutMs: timeoutMs })
    closing.unshift(() => db.close())
    return db
  }
  closing.push(drop)
  const [a, b] = [
    await startJobWorld(under, { db: await open() }),
    await startJobWorld(under, { db: observed(await open(), onGroupTimeout) }),
  ]
  a.runtime.setFaults({ zombie: true })
  // The server ends a transaction that is idle for long, as this one is while the nodes work.
  return { a, b, other: await open(PATIENCE_MS) }
}

/** The same database. Calls back when a group of callbacks gives up waiting for a lock. */
function observed(db: Database, onGroupTimeout: () => void): Database {
  const transaction: Database['transaction'] = (work, options) =>
    db.transaction(work, options).catch((error: unknown) => {
      if (options?.urgent && error instanceof LockTimeout) onGroupTimeout()
      throw error
    })
  return new Proxy(db, {
    get: (target, name) => {
      if (name === 'transaction') return transaction
      const value = Reflect.get(target, name) as unknown
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

/** The callback of this job's run, as the intake of this node gets it. */
async function readCallback({ service, clock }: JobWorld, { thread_id, run_id }: ShownJob): Promise<ReceivedCallback> {
  const type = service.services.jobContext.types.get('report') ?? assert.fail()
  const body = JSON.stringify({ thread_id, run_id, status: 'success', values: { report: 1 } })
  const payload = await parseCallback(body, type.wantedValues)
  return { payload, type, path: '/webhooks/jobs/report', jobId: null, receivedAtMs: clock.now() }
}

async function startMany(world: JobWorld, count: number, sub: string): Promise<ShownJob[]> {
  const jobs: ShownJob[] = []
  for (let n = 0; n < count; n++) jobs.push(await world.stored((await world.start('report', { sub })).id))
  return jobs
}

/** How many statements wait for a lock. Not in a transaction: it would see the same number until its end. */
async function countWaiting(db: Database): Promise<number> {
  const [counted] = await db.query<{ n: number }>(sql`
    select count(*) as n from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
  return counted?.n ?? 0
}

const callBack = (world: JobWorld, { thread_id, run_id }: Pick<ShownJob, 'thread_id' | 'run_id'>) =>
  world.callback('report', { thread_id, run_id, status: 'success', values: { report: 1 } })

describe('locks that several nodes want', () => {
  forEachService((under) => {
    if (under.engine.name !== 'postgres') return

    test('the callbacks of locked jobs wait alone: the others are answered meanwhile, and no run gets a second job', async () => {
      // Without a limit to the wait for a lock: the other callbacks must not wait at all.
      const { a, b, other } = await startNodes(under, { queryTimeoutMs: 40_000, lockTimeout: '0' })
      const jobs = await startMany(a, 8, 'ada')
      const [known, unknown, ...rest] = jobs as [ShownJob, ShownJob, ...ShownJob[]]
      // The answer to its start has not arrived yet: only the thread shows whose run it is.
      await other.query(sql`delete from job_runs where job_id = ${unknown.id}`)
      await other.query(sql`update jobs set run_id = null, started_at = null where id = ${unknown.id}`)
      const waiting = await other.transaction(async (tx) => {
        await tx.query(sql`select id from jobs where id in (${known.id}, ${unknown.id}) for update`)
        const locked = [known, known, unknown].map((job) => callBack(b, job))
        const answers = await Promise.all(rest.map((job) => callBack(b, job)))
        for (const answer of answers) assert.deepEqual([answer.status, answer.body.outcome], [200, 'applied'])
        return locked
      })
      const answers = await Promise.all(waiting)
      assert.deepEqual(
        answers.map(({ status, body }) => [status, body.job_id]),
        [
          [200, known.id],
          [200, known.id],
          [200, unknown.id],
        ],
      )
      assert.deepEqual(answers.map(({ body }) => body.outcome).sort(), ['applied', 'applied', 'duplicate'])
      const [count] = await other.query<{ jobs: number }>(sql`select count(*) as jobs from jobs`)
      assert.equal(count?.jobs, jobs.length)
    })

    test('reads are answered while single changes of other callers wait for locks', async () => {
      // Without a limit to the wait for a lock: the reads must not wait at all.
      const { a, b, other } = await startNodes(under, { queryTimeoutMs: 40_000, lockTimeout: '0' })
      const show = ({ service }: JobWorld, sub: string) =>
        service.request('GET', '/v1/users/me', { token: service.tokenFor({ sub }) })
      const locked = Array.from({ length: 8 }, (_, n) => `locked-${n}`)
      for (const sub of locked) assert.equal((await show(a, sub)).status, 200)
      assert.equal((await show(b, 'ada')).status, 200)
      const waiting = await other.transaction(async (tx) => {
        await tx.query(sql`select sub from users where sub like 'locked-%' for update`)
        // The first request of a user on a node writes the profile.
        const delayed = locked.map((sub) => show(b, sub))
        await until(async () => (await countWaiting(other)) > 1)
        const answers = await Promise.all(Array.from({ length: 8 }, () => show(b, 'ada')))
        for (const answer of answers) assert.equal(answer.status, 200, answer.text)
        return delayed
      })
      for (const answer of await Promise.all(waiting)) assert.equal(answer.status, 200, answer.text)
    })

    test('a lock on the usage of one owner, or its insertion, delays the callbacks of that owner alone', async () => {
      const { a, b, other } = await startNodes(under, { queryTimeoutMs: 50_000 })
      // One job of another owner more: the row of its thresholds is locked instead of its counters.
      const limits = { token: a.admin, body: { runs: 1_000, tokens: null } }
      assert.equal((await a.service.request('PUT', '/v1/users/cleo/limits', limits)).status, 200)
      const [first, ...slow] = await startMany(a, 7, 'ada')
      slow.push(...(await startMany(a, 1, 'cleo')))
      slow.push(...(await startMany(a, 3, 'eve')))
      const fast = await startMany(a, 6, 'bob')
      assert.ok(first)
      assert.equal((await callBack(a, first)).status, 200)
      const waiting = await other.transaction(async (tx) => {
        const locked = await tx.query(sql`select subject from usage_counters where subject = 'ada' for update`)
        assert.equal(locked.length, 1)
        const thresholds = await tx.query(sql`select subject from usage_thresholds where subject = 'cleo' for update`)
        assert.equal(thresholds.length, 1)
        // Other transactions do not see the first counter of this owner yet.
        await tx.query(sql`
          insert into usage_counters (subject, period, type, runs, input_tokens, output_tokens, total_tokens)
          select 'eve', period, type, 1, 0, 0, 0 from usage_counters where subject = 'ada'`)
        const delayed = slow.map((job) => callBack(b, job))
        const answers = await Promise.all(fast.map((job) => callBack(b, job)))
        for (const answer of answers) assert.deepEqual([answer.status, answer.body.outcome], [200, 'applied'])
        return delayed
      })
      for (const answer of await Promise.all(waiting)) {
        assert.deepEqual([answer.status, answer.body.outcome], [200, 'applied'], answer.text)
      }
      const usage = await other.query(sql`
        select subject, runs from usage_counters where runs > 0 order by subject`)
      assert.deepEqual(usage, [
        { subject: 'ada', runs: 7 },
        { subject: 'bob', runs: 6 },
        { subject: 'cleo', runs: 1 },
        { subject: 'eve', runs: 4 },
      ])
    })

    test('no callback of an owner of all jobs is refused while a commit holds the usage of this owner', async () => {
      const { a, b, other } = await startNodes(under, { queryTimeoutMs: 50_000 })
      const [first, next] = await startMany(a, 2, 'ada')
      assert.ok(first && next)
      assert.equal((await callBack(a, first)).status, 200)
      const { intake } = b.service.services
      const receive = async () => intake.receive(await readCallback(b, next))
      const delayed = await other.transaction(async (tx) => {
        const locked = await tx.query(sql`select subject from usage_counters where subject = 'ada' for update`)
        assert.equal(locked.length, 1)
        const waiting = Promise.allSettled(Array.from({ length: 1_000 }, receive))
        // All groups have met the lock.
        await until(() => intake.waiting > 0)
        await until(() => intake.waiting === 0)
        return { waiting }
      })
      const answers = await delayed.waiting
      const outcomes = answers.map((answer) => (answer.status === 'fulfilled' ? answer.value.outcome : 'refused'))
      const count = (wanted: string) => outcomes.filter((outcome) => outcome === wanted).length
      assert.deepEqual([count('refused'), count('applied'), count('duplicate')], [0, 1, 999])
    })

    test('after the first group, the callbacks of an owner whose usage is locked do not delay other owners again', async () => {
      let timeouts = 0
      const onGroupTimeout = () => {
        timeouts += 1
      }
      const { a, b, other } = await startNodes(under, { queryTimeoutMs: 50_000, onGroupTimeout })
      const [first, ...slow] = await startMany(a, 6, 'ada')
      const fast = await startMany(a, 5, 'bob')
      assert.ok(first)
      assert.equal((await callBack(a, first)).status, 200)
      const { intake } = b.service.services
      const delayed = await other.transaction(async (tx) => {
        const locked = await tx.query(sql`select subject from usage_counters where subject = 'ada' for update`)
        assert.equal(locked.length, 1)
        const waiting: Promise<{ outcome: string }>[] = []
        for (const [n, job] of slow.entries()) {
          const [ofAda, ofBob] = [await readCallback(b, job), await readCallback(b, fast[n] as ShownJob)]
          // Received in one turn of the event loop, so in one group.
          waiting.push(intake.receive(ofAda))
          assert.equal((await intake.receive(ofBob)).outcome, 'applied')
          assert.equal(timeouts, 1, 'only the first group waits for the lock')
        }
        return waiting
      })
      for (const { outcome } of await Promise.all(delayed)) assert.equal(outcome, 'applied')
    })

    test('a check that ends a job of an owner whose usage is locked does not hold up the jobs of other owners', async () => {
      // Without a limit to the wait for a lock: a check that waited would fail with the others of its group.
      const { a, other } = await startNodes(under, { queryTimeoutMs: 5_000, lockTimeout: '0' })
      a.runtime.setFaults({ zombie: false, drop_callbacks: 1 })
      const hasEnded = async ({ id }: ShownJob) => (await a.stored(id)).finished_at !== null
      const haveEnded = async (jobs: ShownJob[]) => (await Promise.all(jobs.map(hasEnded))).every(Boolean)
      const first = await startMany(a, 1, 'ada')
      await a.sweepUntil(() => haveEnded(first))
      const slow = await startMany(a, 3, 'ada')
      const fast = await startMany(a, 3, 'bob')
      await other.transaction(async (tx) => {
        const locked = await tx.query(sql`select subject from usage_counters where subject = 'ada' for update`)
        assert.equal(locked.length, 1)
        await until(async () => {
          await a.pass(1_000)
          return haveEnded(fast)
        })
        assert.deepEqual(await Promise.all(slow.map(hasEnded)), [false, false, false])
      })
      await until(async () => {
        await a.pass(1_000)
        return haveEnded(slow)
      })
      const usage = await other.query(sql`select subject, runs from usage_counters where runs > 0 order by subject`)
      assert.deepEqual(usage, [
        { subject: 'ada', runs: 4 },
        { subject: 'bob', runs: 3 },
      ])
    })

    test('a delayed job whose row, thread or check is locked begins later, and delays no other', async () => {
      const { a, other } = await startNodes(under, { queryTimeoutMs: 5_000 })
      const body = { type: 'report', input: {}, run_at: new Date(a.clock.now() + 60_000).toISOString() }
      const delayed: ShownJob[] = []
      for (let n = 0; n < 4; n++) delayed.push((await a.request('POST', '/jobs', 'ada', { body })).body)
      const [ofRow, ofThread, ofCheck, free] = delayed as [ShownJob, ShownJob, ShownJob, ShownJob]
      const hasBegun = async ({ id }: ShownJob) => (await a.stored(id)).run_id !== null
      await a.pass(59_000)
      await other.transaction(async (tx) => {
        await tx.query(sql`select id from jobs where id = ${ofRow.id} for update`)
        await tx.query(sql`select id from threads where id = ${ofThread.thread_id} for update`)
        await tx.query(sql`select job_id from job_checks where job_id = ${ofCheck.id} for update`)
        await a.sweepUntil(() => hasBegun(free))
        assert.deepEqual(await Promise.all([ofRow, ofThread, ofCheck].map(hasBegun)), [false, false, false])
      })
      for (const job of delayed) await a.sweepUntil(() => hasBegun(job))
    })

    test('a bulk cancel on one node neither refuses nor loses the callbacks that the other node receives', async () => {
      // Without a limit to the wait for a lock: only a deadlock can refuse a callback.
      const { a, b, other } = await startNodes(under, { queryTimeoutMs: 40_000, lockTimeout: '0' })
      const jobs = await startMany(a, 20, 'ada')
      const body = { action: 'cancel', ids: jobs.map(({ id }) => id).reverse() }
      const { operation, answering } = await other.transaction(async (tx) => {
        // Both sides lock jobs until they meet this one. If their orders differed, each would then wait for the other.
        await tx.query(sql`select id from jobs where id = ${String(jobs[10]?.id)} for update`)
        const operation = await a.service.request<{ id: string }>('POST', '/v1/operations', { token: a.admin, body })
        await until(async () => (await countWaiting(other)) === 1)
        let answered = 0
        const answering = jobs.map((job) => callBack(b, job).finally(() => answered++))
        // The callbacks wait for the lock, too, or those of other jobs are answered without waiting.
        await until(async () => answered > 0 || (await countWaiting(other)) > 1)
        return { operation, answering }
      })
      assert.equal(operation.status, 202, operation.text)
      const answers = await Promise.all(answering)
      for (const answer of answers) assert.equal(answer.status, 200, answer.text)
      await until(async () => {
        const path = `/v1/operations/${operation.body.id}`
        const { body } = await a.service.request<{ state: string }>('GET', path, { token: a.admin })
        return body.state === 'done'
      })
      for (const [n, { id }] of jobs.entries()) {
        const isApplied = answers[n]?.body.outcome === 'applied'
        assert.equal((await a.stored(id)).status, isApplied ? 'completed' : 'cancelled')
      }
    })
  })
})
