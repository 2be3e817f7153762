import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { UnavailableError } from '../../src/core/errors.ts'
import { type Database, LockTimeout, type Transaction, UniqueViolation } from '../../src/db/database.ts'
import { isAmong, rowsOf } from '../../src/db/rows.ts'
import { EMPTY, join, sql } from '../../src/db/sql.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { forEachEngine } from '../support/engines.ts'
import { PATIENCE_MS } from '../support/patience.ts'
import { needsPostgres, sharedPostgresDatabase } from '../support/services.ts'

const SCHEMA = `
  create table items (id text primary key, n bigint, ratio double precision, note text, tag text unique);
  insert into items (id, note) values ('seed', 'a; b -- not a comment''s end');
`

type Item = { id: string; n: number | null; ratio: number | null; note: string | null }

const selectItem = (id: string) => sql`select id, n, ratio, note from items where id = ${id}`

/** The tests that every engine must pass. */
function databaseContract(connect: () => Promise<Database>): void {
  let db: Database
  before(async () => {
    db = await connect()
    await db.transaction((tx) => tx.exec(SCHEMA))
  })
  after(() => db.close())

  const insert = (id: string, n: number) => db.query(sql`insert into items (id, n) values (${id}, ${n})`)
  const readN = async (id: string) => (await db.query<Item>(selectItem(id))).map((item) => item.n)

  test('a script of several statements runs completely, with any characters in its strings', async () => {
    const [seed] = await db.query<Item>(selectItem('seed'))
    assert.equal(seed?.note, "a; b -- not a comment's end")
  })

  test('every value is read back unchanged', async () => {
    const values: Omit<Item, 'id'>[] = [
      { n: 0, ratio: 0, note: '' },
      { n: -1, ratio: -0.5, note: `' " \\ ; -- ? $1 :a @b %s` },
      { n: Number.MAX_SAFE_INTEGER, ratio: 1e300, note: 'Zürich 東京 👩‍👩‍👧 ‮rtl\n\t' },
      { n: Number.MIN_SAFE_INTEGER, ratio: 5e-324, note: 'x'.repeat(100_000) },
      { n: Date.UTC(2026, 0, 1), ratio: 0.1, note: '{"a":[1,{"b":null}]}' },
      { n: null, ratio: null, note: null },
    ]
    for (const [index, value] of values.entries()) {
      const item: Item = { id: `value-${index}`, ...value }
      await db.query(sql`
        insert into items (id, n, ratio, note) values (${item.id}, ${item.n}, ${item.ratio}, ${item.note})`)
      assert.deepEqual(await db.query<Item>(selectItem(item.id)), [item])
    }
  })

  test('many rows are written by one statement, with any characters, lengths and numbers, also none', async () => {
    const columns = { id: 'text', n: 'bigint', note: 'text' } as const
    const write = (rows: readonly { id: string; n: number | null; note: string | null }[]) =>
      db.query(sql`
        insert into items (id, n, note) select id, n, note from ${rowsOf(db.engine, rows, columns)} as r where true`)
    const notes = [
      '',
      '{"a":"\\u0000"}',
      `' " \\ , {} NULL`,
      'Zürich 東京 👩‍👩‍👧',
      'ü'.repeat(100_000),
      'x'.repeat(70_000),
      null,
    ]
    const numbers = [0, -1, 2 ** 32, -(2 ** 32) - 1, Number.MAX_SAFE_INTEGER, Number.MIN_SAFE_INTEGER, null]
    const rows = notes.map((note, at) => ({ id: `rows-${at}`, n: numbers[at] ?? null, note }))
    await write(rows)
    await write([])
    for (const row of rows) assert.deepEqual(await db.query<Item>(selectItem(row.id)), [{ ...row, ratio: null }])
  })

  test('rows are found by a list of texts with any characters', async () => {
    const odd = ['plain', '', ',', '"', '\\', '\\"', '{}', 'NULL', 'null', "'", 'a b', 'Zürich 東京 👩‍👩‍👧', '$1', '?']
    for (const id of odd) await insert(`among-${id}`, 1)
    const among = (ids: readonly string[]) =>
      db.query<Item>(sql`select id from items where ${isAmong(db.engine, sql`id`, ids)}`)
    const found = await among([...odd.map((id) => `among-${id}`), 'among-unknown', 'among-plain'])
    assert.deepEqual(found.map(({ id }) => id).sort(), odd.map((id) => `among-${id}`).sort())
    assert.deepEqual(await among([]), [])
  })

  test('whole numbers are bound as whole numbers', async () => {
    await insert('division', 7)
    await db.query(sql`update items set n = n / ${2} where id = ${'division'}`)
    assert.deepEqual(await readN('division'), [3])
  })

  test('NaN is refused, not stored as null', async () => {
    await assert.rejects(insert('nan', Number.NaN))
    assert.deepEqual(await readN('nan'), [])
  })

  test('a count is a number', async () => {
    assert.deepEqual(await db.query(sql`select count(*) as found from items where id = ${'seed'}`), [{ found: 1 }])
  })

  test('nested fragments keep their values in order', async () => {
    await Promise.all([insert('nested-1', 1), insert('nested-2', 2), insert('nested-3', 3)])
    const ids = ['nested-1', 'nested-3'].map((id) => sql`${id}`)
    const rows = await db.query(sql`
      select n from items where id in (${join(ids, ', ')}) and n > ${1} ${EMPTY} order by n limit ${5}`)
    assert.deepEqual(rows, [{ n: 3 }])
  })

  test('a write with returning gives the changed rows, without it none', async () => {
    assert.deepEqual(await insert('returning', 1), [])
    const changed = sql`update items set n = n + 1 where id = ${'returning'} returning id, n`
    assert.deepEqual(await db.query(changed), [{ id: 'returning', n: 2 }])
    const again = sql`insert into items (id, n) values (${'returning'}, ${9}) on conflict do nothing returning id`
    assert.deepEqual(await db.query(again), [])
    const upsert = sql`
      insert into items (id, n) values (${'returning'}, ${9})
      on conflict (id) do update set n = excluded.n returning n`
    assert.deepEqual(await db.query(upsert), [{ n: 9 }])
    assert.deepEqual(await db.query(sql`delete from items where id = ${'returning'} returning id`), [
      { id: 'returning' },
    ])
  })

  test('a transaction commits as a whole and gives its result', async () => {
    const result = await db.transaction(async (tx) => {
      await tx.query(sql`insert into items (id, n) values (${'commit-1'}, ${1})`)
      await tx.query(sql`insert into items (id, n) values (${'commit-2'}, ${2})`)
      const [seen] = await tx.query<Item>(selectItem('commit-1'))
      return seen?.n
    })
    assert.equal(result, 1)
    assert.deepEqual([...(await readN('commit-1')), ...(await readN('commit-2'))], [1, 2])
  })

  test('an error in the work undoes all of it, reaches the caller as it was, and does not affect later work', async () => {
    const failure = new Error('on purpose')
    await assert.rejects(
      db.transaction(async (tx) => {
        await tx.query(sql`insert into items (id, n) values (${'undone'}, ${1})`)
        throw failure
      }),
      failure,
    )
    assert.deepEqual(await readN('undone'), [])
    await insert('after-undone', 1)
    assert.deepEqual(await readN('after-undone'), [1])
  })

  test('a violated key is a UniqueViolation, primary or not, alone or in a transaction', async () => {
    await db.query(sql`insert into items (id, tag) values (${'unique'}, ${'tag'})`)
    const samePrimary = sql`insert into items (id) values (${'unique'})`
    const sameTag = sql`insert into items (id, tag) values (${'unique-2'}, ${'tag'})`
    await assert.rejects(db.query(samePrimary), UniqueViolation)
    await assert.rejects(db.query(sameTag), UniqueViolation)
    await assert.rejects(
      db.transaction((tx) => tx.query(sameTag)),
      UniqueViolation,
    )
  })

  test('a failed statement aborts its transaction, even if the work catches the error', async () => {
    const doomed = db.transaction(async (tx) => {
      await tx.query(sql`insert into items (id, n) values (${'doomed'}, ${1})`)
      await tx.query(sql`insert into items (id, n) values (${'seed'}, ${1})`).catch(() => {})
    })
    await assert.rejects(doomed, UniqueViolation)
    assert.deepEqual(await readN('doomed'), [])
  })

  test('a broken statement rejects and leaves the database usable', async () => {
    await assert.rejects(db.query(sql`select no_such_column from items`))
    await assert.rejects(db.query(sql`insert into no_such_table values (${1})`))
    await assert.rejects(db.transaction((tx) => tx.exec('update items set n = 99; nonsense')))
    assert.deepEqual(await db.query(sql`select id from items where n = ${99}`), [])
    await db.ping()
  })

  test('a transaction cannot be used after its end, committed or not', async () => {
    const kept: Transaction[] = []
    await db.transaction(async (tx) => kept.push(tx))
    const undone = db.transaction(async (tx) => {
      kept.push(tx)
      throw new Error('on purpose')
    })
    await assert.rejects(undone, /on purpose/)
    for (const tx of kept) {
      await assert.rejects(tx.query(sql`insert into items (id) values (${'kept'})`), /transaction has ended/i)
    }
    assert.deepEqual([kept.length, await readN('kept')], [2, []])
  })

  test('concurrent increments of one row are all counted', async () => {
    await insert('counter', 0)
    const increment = sql`update items set n = n + 1 where id = ${'counter'}`
    await Promise.all([
      ...Array.from({ length: 30 }, () => db.transaction((tx) => tx.query(increment))),
      ...Array.from({ length: 30 }, () => db.query(increment)),
    ])
    assert.deepEqual(await readN('counter'), [60])
  })

  test('more transactions at once than there are connections all finish, and none mixes with another', async () => {
    await Promise.all(
      Array.from({ length: 40 }, (_, at) =>
        db
          .transaction(async (tx) => {
            const id = `crowd-${at}`
            await tx.query(sql`insert into items (id, n) values (${id}, ${at})`)
            if (at % 2 === 1) throw new Error('on purpose')
            await tx.query(sql`update items set n = n + 1000 where id = ${id}`)
          })
          .catch((error: Error) => assert.equal(error.message, 'on purpose')),
      ),
    )
    const rows = await db.query<{ n: number }>(sql`select n from items where id like ${'crowd-%'} order by n`)
    assert.deepEqual(
      rows.map((row) => row.n),
      Array.from({ length: 20 }, (_, at) => 1000 + at * 2),
    )
  })

  test('a listener that throws affects neither the commit nor other listeners', async () => {
    const heard: string[] = []
    const unlisten = [
      db.listen(() => {
        throw new Error('a bug of the listener')
      }),
      db.listen((topic) => heard.push(topic)),
    ]
    try {
      const result = await db.transaction(async (tx) => {
        await tx.query(sql`insert into items (id, n) values ('announced', 1)`)
        tx.announce('events')
        return 'committed'
      })
      assert.equal(result, 'committed')
    } finally {
      for (const stop of unlisten) stop()
    }
    assert.deepEqual(await readN('announced'), [1])
    assert.deepEqual(heard, ['events'])
  })

  test('a name is locked for a transaction and free after it', async () => {
    const lock = () => db.transaction((tx) => tx.tryLock('sweep'))
    assert.equal(await lock(), true)
    assert.equal(await lock(), true)
  })
}

forEachEngine((engine) => {
  databaseContract(async () => (await engine.createStore()).connect({ waitsLong: true }))

  test('the shipped migrations give a database that answers', async () => {
    const db = await engine.openDatabase()
    assert.equal(db.engine, engine.name)
    await db.ping()
  })

  test('a reader neither sees uncommitted data nor waits for it', async () => {
    const db = await (await engine.createStore()).connect()
    await db.transaction((tx) => tx.exec(SCHEMA))
    const written = Promise.withResolvers<void>()
    const release = Promise.withResolvers<void>()
    const writing = db.transaction(async (tx) => {
      await tx.query(sql`insert into items (id, n) values (${'hidden'}, ${1})`)
      written.resolve()
      await release.promise
    })
    await written.promise
    assert.deepEqual(await db.query(selectItem('hidden')), [])
    release.resolve()
    await writing
    assert.equal((await db.query(selectItem('hidden'))).length, 1)
  })

  test('a database that closes lets the running transaction commit and refuses everything else, for good', async () => {
    const db = await (await engine.createStore()).connect()
    await db.transaction((tx) => tx.exec(SCHEMA))
    const started = Promise.withResolvers<void>()
    const release = Promise.withResolvers<void>()
    const running = db.transaction(async (tx) => {
      started.resolve()
      await release.promise
      return await tx.query(sql`insert into items (id) values (${'last'}) returning id`)
    })
    await started.promise
    const closing = db.close()
    await assert.rejects(db.query(selectItem('seed')), UnavailableError)
    await assert.rejects(db.query(sql`insert into items (id) values (${'late'})`), UnavailableError)
    release.resolve()
    assert.deepEqual(await running, [{ id: 'last' }])
    await closing
    await assert.rejects(
      db.transaction(async () => {}),
      UnavailableError,
    )
    await assert.rejects(db.ping(), UnavailableError)
    await db.close()
  })

  if (engine.name === 'postgres') {
    test('a name locked on one node is refused on another until the transaction ends', async () => {
      const store = await engine.createStore()
      const [one, other] = [await store.connect(), await store.connect()]
      await one.transaction(async (tx) => {
        assert.equal(await tx.tryLock('sweep'), true)
        assert.equal(await other.transaction((tx2) => tx2.tryLock('sweep')), false)
        assert.equal(await other.transaction((tx2) => tx2.tryLock('another')), true)
      })
      assert.equal(await other.transaction((tx) => tx.tryLock('sweep')), true)
    })

    test('a statement that must not wait fails alone: the transaction goes on, and its next statements wait as before', async () => {
      const store = await engine.createStore()
      const [one, other] = [await store.connect(), await store.connect()]
      await one.transaction((tx) => tx.exec('create table tried (id text primary key)'))
      const insert = (id: string) => sql`insert into tried (id) values (${id})`
      const timeout = sql`select current_setting('lock_timeout') as ms`
      const usual = await other.transaction((tx) => tx.query(timeout))
      await one.transaction(async (tx) => {
        await tx.query(insert('a'))
        await other.transaction(async (tx2) => {
          await tx2.query(insert('b'))
          assert.equal(await tx2.tryQuery(insert('a')), false)
          assert.deepEqual(await tx2.query(timeout), usual)
          assert.equal(await tx2.tryQuery(insert('c')), true)
          assert.deepEqual(await tx2.query(timeout), usual)
        })
      })
      assert.deepEqual(await one.query(sql`select id from tried order by id`), [{ id: 'a' }, { id: 'b' }, { id: 'c' }])
      await assert.rejects(
        one.transaction((tx) => tx.tryQuery(insert('a')).catch(() => {})),
        UniqueViolation,
      )
    })

    test('a row that stays locked elsewhere is a LockTimeout, in a transaction and alone, and both nodes go on', async () => {
      const store = await engine.createStore()
      const [one, other] = [await store.connect(), await store.connect()]
      await one.transaction((tx) =>
        tx.exec(`create table locked (id text primary key); insert into locked values ('a')`),
      )
      const change = sql`update locked set id = id where id = ${'a'} returning id`
      await one.transaction(async (tx) => {
        await tx.query(change)
        await Promise.all([
          assert.rejects(
            other.transaction((tx2) => tx2.query(change)),
            LockTimeout,
          ),
          assert.rejects(other.query(change), LockTimeout),
        ])
      })
      assert.deepEqual(await other.transaction((tx) => tx.query(change)), [{ id: 'a' }])
      assert.deepEqual(await other.query(change), [{ id: 'a' }])
    })
  }
})

describe('on sqlite in memory', () => {
  databaseContract(() => openSqlite({ path: ':memory:' }))
})

test('a database without prepared statements gives no statement a name on the server', needsPostgres(), async () => {
  const { url, drop } = await sharedPostgresDatabase()
  const { openPostgres } = await import('../../src/db/postgres/postgres.ts')
  try {
    for (const prepared of [true, false]) {
      const db = await openPostgres({ url, readConnections: 1, prepared, connectTimeoutMs: PATIENCE_MS })
      const count = () => db.query<{ named: number }>(sql`select count(*) as named from pg_prepared_statements`)
      await count()
      const inside = await db.transaction(async (tx) => {
        await tx.query(sql`select 1 as one`)
        return tx.query<{ named: number }>(sql`select count(*) as named from pg_prepared_statements`)
      })
      const named = [(await count())[0]?.named, inside[0]?.named].map((found) => (found ?? 0) > 0)
      assert.deepEqual(named, [prepared, prepared])
      await db.close()
    }
  } finally {
    await drop()
  }
})
