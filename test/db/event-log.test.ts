import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Database, Transaction } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { sql } from '../../src/db/sql.ts'
import {
  appendEvents,
  type EventFilter,
  findHead,
  findTrimmed,
  type NewEvent,
  readEvents,
  trimEvents,
} from '../../src/events/event-store.ts'
import { forEachEngine } from '../support/engines.ts'

const WRITERS = 8
/** On SQLite there is only one writer at a time, so few transactions are enough. */
const TRANSACTIONS_EACH = { sqlite: 20, postgres: 200 }

let causes = 0

function event(fields: Partial<NewEvent> = {}): NewEvent {
  causes += 1
  const plain = { subject: 'ada', job_id: null, type: 'job.updated', data: '{}', created_at: 1_000 } as const
  return { ...plain, cause: `${fields.job_id ?? 'cause'}:${causes}`, ...fields }
}

function append(db: Database, ...events: NewEvent[]): Promise<void> {
  return db.transaction((tx) => appendEvents(tx, events))
}

/** The events that a reader at this position gets now. */
async function readAfter(db: Database, after: number, filter: EventFilter = {}, limit = 1_000) {
  const { seq: upTo } = await findHead(db)
  return readEvents(db, { after, upTo, filter, limit })
}

/** A wrong reader that ignores transactions in progress. */
function readNaively(db: Database, after: number): Promise<{ seq: number }[]> {
  return db.query(sql`select seq from events where seq > ${after} order by seq limit 100`)
}

async function committed(db: Database): Promise<number[]> {
  const rows = await db.query<{ seq: number }>(sql`select seq from events order by seq`)
  return rows.map(({ seq }) => seq)
}

/** Reads page by page until `isLast` is true. */
async function follow(isLast: () => boolean, read: (after: number) => Promise<{ seq: number }[]>): Promise<number[]> {
  const seen: number[] = []
  for (;;) {
    const last = isLast()
    const page = await read(seen.at(-1) ?? 0)
    for (const { seq } of page) seen.push(seq)
    if (last && page.length === 0) return seen
    await new Promise(setImmediate)
  }
}

/** A transaction whose steps the test controls. */
function openTransaction(db: Database) {
  const steps: ((tx: Transaction) => Promise<void>)[] = []
  let look = () => {}
  let ending: 'commit' | 'rollback' | undefined
  const over = db.transaction(async (tx) => {
    while (ending === undefined || steps.length > 0) {
      const step = steps.shift()
      if (step) await step(tx)
      else
        await new Promise<void>((resolve) => {
          look = resolve
        })
    }
    if (ending === 'rollback') throw new Error('rolled back')
  })
  const run = (work: (tx: Transaction) => Promise<unknown>) => {
    const { promise, resolve } = Promise.withResolvers<void>()
    steps.push((tx) => work(tx).then(() => resolve()))
    look()
    return Promise.race([promise, over])
  }
  const end = async (how: 'commit' | 'rollback') => {
    ending = how
    look()
    if (how === 'commit') await over
    else await assert.rejects(over, /rolled back/)
  }
  return { run, append: (...events: NewEvent[]) => run((tx) => appendEvents(tx, events)), end }
}

describe('the event log', () => {
  forEachEngine((engine) => {
    let shared: Promise<Database> | undefined
    /** One database for most tests; each begins where the last one left off. */
    const begin = async () => {
      shared ??= engine.openDatabase()
      const db = await shared
      return { db, start: (await findHead(db)).seq }
    }

    test('the event log returns events in the order they were appended, with every field they were appended with', async () => {
      const { db, start } = await begin()
      const first = event({ subject: 'ada', job_id: 'job_1', type: 'job.created', data: '{"a":"é\\u0000"}' })
      const second = event({ subject: null, type: 'project.deleted', created_at: 2_000 })
      const third = event({ subject: 'bob' })
      await append(db, first, second)
      await append(db, third)
      const rows = await readAfter(db, start)
      const seqs = rows.map(({ seq }) => seq)
      assert.deepEqual(
        seqs,
        seqs.toSorted((a, b) => a - b),
      )
      assert.deepEqual(
        rows.map(({ seq, ...rest }) => rest),
        [first, second, third].map(({ cause, ...rest }) => rest),
      )
      const middle = seqs[1] ?? 0
      assert.deepEqual(
        (await readAfter(db, middle)).map(({ subject }) => subject),
        ['bob'],
      )
      assert.equal((await readAfter(db, start, {}, 2)).length, 2)
    })

    test('the event log shows each reader its part: one subject, one job', async () => {
      const { db, start } = await begin()
      await append(
        db,
        event({ subject: 'ada', job_id: 'job_1' }),
        event({ subject: 'bob', job_id: 'job_2' }),
        event({ subject: 'ada' }),
        event({ subject: null, job_id: 'job_1' }),
      )
      const partOf = async (filter: EventFilter) =>
        (await readAfter(db, start, filter)).map(({ subject, job_id }) => `${subject} ${job_id}`)
      assert.deepEqual(await partOf({ subject: 'ada' }), ['ada job_1', 'ada null'])
      assert.deepEqual(await partOf({ jobId: 'job_1' }), ['ada job_1', 'null job_1'])
      assert.deepEqual(await partOf({ subject: 'another-user' }), [])
    })

    test('the event log stores one event per cause, even if it is reported often and concurrently', async () => {
      const { db, start } = await begin()
      const once = event()
      await append(db, once)
      await Promise.all(Array.from({ length: 10 }, () => append(db, once, event({ cause: 'again' }))))
      const rows = await db.query<{ cause: string }>(sql`select cause from events where seq > ${start} order by seq`)
      assert.deepEqual(
        rows.map(({ cause }) => cause),
        [once.cause, 'again'],
      )
      assert.equal((await readAfter(db, start)).length, 2)
    })

    test('the event log has nothing of a transaction that was rolled back, and continues after it', async () => {
      const { db, start } = await begin()
      const failing = db.transaction(async (tx) => {
        await appendEvents(tx, [event(), event()])
        throw new Error('no')
      })
      await assert.rejects(failing, /no/)
      assert.deepEqual(await readAfter(db, start), [])
      await append(db, event({ subject: 'bob' }))
      assert.deepEqual(
        (await readAfter(db, start)).map(({ subject }) => subject),
        ['bob'],
      )
    })

    test('the event log announces committed events to its listeners, and no others', async () => {
      const { db } = await begin()
      const heard: string[] = []
      const unlisten = db.listen((topic) => heard.push(topic))
      await append(db)
      await db.transaction((tx) => appendEvents(tx, [event()]).then(() => Promise.reject(new Error()))).catch(() => {})
      assert.deepEqual(heard, [])
      await append(db, event())
      assert.deepEqual(heard, ['events'])
      unlisten()
      await append(db, event())
      assert.deepEqual(heard, ['events'])
    })

    test('the head of the event log begins at 0, moves with every event and stays when all events are trimmed', async () => {
      const db = await engine.openDatabase()
      assert.deepEqual(await findHead(db), { seq: 0, newest: 0 })
      await append(db, event(), event())
      const head = await findHead(db)
      assert.equal(head.seq, (await committed(db)).at(-1))
      assert.equal(head.newest, head.seq)
      await trimEvents(db, { beforeMs: 5_000, limit: 100 })
      assert.deepEqual(await committed(db), [])
      assert.deepEqual(await findHead(db), head)
      await append(db, event())
      assert.ok((await findHead(db)).seq > head.seq)
    })

    test('the event log is trimmed by age, a bounded number at a time, and remembers how far', async () => {
      const db = await engine.openDatabase()
      const ages = [1, 2, 3, 4, 5, 6, 7]
      await append(db, ...ages.map((created_at) => event({ created_at })))
      const seqs = await committed(db)
      assert.equal(await findTrimmed(db), 0)
      assert.equal(await trimEvents(db, { beforeMs: 6, limit: 3 }), true)
      assert.equal(await findTrimmed(db), seqs[2])
      assert.equal(await trimEvents(db, { beforeMs: 6, limit: 3 }), true)
      assert.equal(await findTrimmed(db), seqs[4])
      assert.deepEqual(await committed(db), seqs.slice(5))
      assert.equal(await trimEvents(db, { beforeMs: 6, limit: 3 }), false)
      assert.equal(await findTrimmed(db), seqs[4])
    })

    test('an old event behind a newer one moves the trimmed place past both, never back', async () => {
      const db = await engine.openDatabase()
      await append(db, event({ created_at: 10 }), event({ created_at: 1 }), event({ created_at: 2 }))
      const [young, ...old] = await committed(db)
      await trimEvents(db, { beforeMs: 5, limit: 10 })
      assert.equal(await findTrimmed(db), old.at(-1))
      await trimEvents(db, { beforeMs: 20, limit: 10 })
      assert.equal(await findTrimmed(db), old.at(-1))
      assert.deepEqual(await committed(db), [])
      assert.ok(young !== undefined)
    })

    test('a reader that follows its cursor while writers commit late, out of order or roll back sees no gap and no repeat', async () => {
      const store = await engine.createStore()
      const db = await store.connect()
      await migrate(db)
      const reader = await store.connect()
      await db.transaction((tx) => tx.exec('create table counters (id integer primary key, n integer not null)'))
      for (let id = 0; id < WRITERS; id++) await db.query(sql`insert into counters values (${id}, 0)`)

      let isDone = false
      const ours = follow(
        () => isDone,
        (after) => readAfter(reader, after, {}, 100),
      )
      const naive = follow(
        () => isDone,
        (after) => readNaively(reader, after),
      )
      await Promise.all(Array.from({ length: WRITERS }, (_, id) => write(db, id)))
      isDone = true
      const [seen, seenNaively, all] = [await ours, await naive, await committed(db)]

      assert.deepEqual(seen, all)
      assert.ok(all.length > (WRITERS * TRANSACTIONS_EACH[engine.name]) / 2)
      // The control: numbers appear late here, and a reader that trusts the numbers misses some events.
      const missed = all.length - new Set(seenNaively).size
      if (engine.name === 'postgres') assert.ok(missed > 0, 'no number appeared late, so the test proves nothing')
      else assert.equal(missed, 0)
    })

    /** Transactions of any length: most change something first, so that their ids are drawn in another order than their numbers. */
    async function write(db: Database, id: number): Promise<void> {
      for (let n = 0; n < TRANSACTIONS_EACH[engine.name]; n++) {
        const transaction = db.transaction(async (tx) => {
          if (Math.random() < 0.7) await tx.query(sql`update counters set n = n + 1 where id = ${id}`)
          await dawdle(tx)
          await appendEvents(tx, Math.random() < 0.2 ? [event(), event()] : [event()])
          await dawdle(tx)
          if (Math.random() < 0.1) throw new Error('changed its mind')
        })
        await transaction.catch((error: Error) => assert.match(error.message, /changed its mind/))
      }
    }

    async function dawdle(tx: Transaction): Promise<void> {
      for (let steps = Math.floor(Math.random() * 4); steps > 0; steps--) await tx.query(sql`select 1 as step`)
    }

    if (engine.name !== 'postgres') return

    test('an event that commits after one with a higher number is not skipped', async () => {
      const { db, start } = await begin()
      const late = openTransaction(db)
      await late.append(event({ subject: 'late' }))
      await append(db, event({ subject: 'early' }))
      const head = await findHead(db)
      assert.ok(head.newest > head.seq, 'it is known that something is held back')
      assert.deepEqual(await readAfter(db, start), [])
      assert.equal(
        (await readNaively(db, start)).length,
        1,
        'the control: read naively, the cursor would be past the late one',
      )
      await late.end('commit')
      assert.deepEqual(
        (await readAfter(db, start)).map(({ subject }) => subject),
        ['late', 'early'],
      )
    })

    test('the order of transaction ids does not matter: the younger transaction may have the lower number', async () => {
      const { db, start } = await begin()
      const xids: number[] = []
      const draw = async (tx: Transaction) => {
        const [row] = await tx.query<{ xid: number }>(sql`select pg_current_xact_id()::text::bigint as xid`)
        xids.push(row?.xid ?? 0)
      }
      const older = openTransaction(db)
      await older.run(draw)
      const younger = openTransaction(db)
      await younger.run(draw)
      await younger.append(event({ subject: 'younger' }))
      await older.append(event({ subject: 'older' }))
      await older.end('commit')
      const [olderXid = 0, youngerXid = 0] = xids
      assert.ok(olderXid < youngerXid, 'the control: all that is under way is younger than what is there to read')
      assert.equal((await readNaively(db, start)).length, 1)
      assert.deepEqual(await readAfter(db, start), [])
      await younger.end('commit')
      assert.deepEqual(
        (await readAfter(db, start)).map(({ subject }) => subject),
        ['younger', 'older'],
      )
    })

    test('events that waited for another transaction come after it, in any order of the starts', async () => {
      const { db, start } = await begin()
      await db.transaction((tx) => tx.exec('create table held (id integer primary key)'))
      await db.query(sql`insert into held values (1), (2)`)
      const holder = openTransaction(db)
      const waiter = openTransaction(db)
      await waiter.run((tx) => tx.query(sql`select id from held where id = 1 for update`))
      await holder.run((tx) => tx.query(sql`select id from held where id = 2 for update`))
      const waiting = waiter.run(async (tx) => {
        await tx.query(sql`select id from held where id = 2 for update`)
        await appendEvents(tx, [event({ subject: 'second' })])
      })
      await holder.append(event({ subject: 'first' }))
      await holder.end('commit')
      await waiting
      await waiter.end('commit')
      assert.deepEqual(
        (await readAfter(db, start)).map(({ subject }) => subject),
        ['first', 'second'],
      )
    })

    test('a writer that rolls back releases the events that waited for it, and its number is skipped', async () => {
      const { db, start } = await begin()
      const doomed = openTransaction(db)
      await doomed.append(event())
      await append(db, event({ subject: 'kept' }))
      assert.deepEqual(await readAfter(db, start), [])
      await doomed.end('rollback')
      assert.deepEqual(
        (await readAfter(db, start)).map(({ subject }) => subject),
        ['kept'],
      )
    })

    test('a long transaction that writes no event holds nothing back, nor does one of another database', async () => {
      const db = await engine.openDatabase()
      const other = await engine.openDatabase()
      const elsewhere = openTransaction(other)
      await elsewhere.append(event())
      const long = openTransaction(db)
      await long.run((tx) => tx.query(sql`select pg_current_xact_id()::text as xid`))
      await append(db, event({ subject: 'prompt' }))
      assert.deepEqual(
        (await readAfter(db, 0)).map(({ subject }) => subject),
        ['prompt'],
      )
      await Promise.all([long.end('commit'), elsewhere.end('commit')])
    })
  })
})
