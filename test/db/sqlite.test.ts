import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface, type Interface } from 'node:readline'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { UnavailableError } from '../../src/core/errors.ts'
import { sql } from '../../src/db/sql.ts'
import { DataFolderInUse, lockDataFolder } from '../../src/db/sqlite/data-folder.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { kindOf } from '../../src/db/sqlite/sqlite-statement.ts'

let folder: string
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'test-sqlite-'))
})
after(() => rm(folder, { recursive: true, force: true }))

function startScript(name: string, argument: string): { child: ChildProcess; lines: Interface } {
  const script = fileURLToPath(new URL(`../support/${name}`, import.meta.url))
  const child = spawn(process.execPath, [script, argument], { stdio: ['pipe', 'pipe', 'inherit'] })
  return { child, lines: createInterface({ input: child.stdout }) }
}

async function killNow(child: ChildProcess): Promise<void> {
  const exited = once(child, 'exit')
  child.kill('SIGKILL')
  await exited
}

describe('the embedded database', () => {
  test('has every acknowledged write after its process was killed', async () => {
    const path = join(folder, 'killed.db')
    const prepared = await openSqlite({ path })
    await prepared.query(sql`create table rows_written (n integer primary key, twice integer)`)
    await prepared.close()

    const { child, lines } = startScript('sqlite-writer.ts', path)
    const acknowledged: number[] = []
    for await (const line of lines) {
      acknowledged.push(Number(line))
      if (acknowledged.length === 500) child.kill('SIGKILL')
    }

    const db = await openSqlite({ path })
    const rows = await db.query<{ n: number; twice: number | null }>(sql`select n, twice from rows_written order by n`)
    assert.ok(acknowledged.length >= 500)
    // One more may have been on its way to us.
    assert.ok(rows.length - acknowledged.length <= 1, `${rows.length} rows, ${acknowledged.length} acknowledged`)
    assert.deepEqual(
      acknowledged,
      rows.slice(0, acknowledged.length).map((row) => row.n),
    )
    for (const { n, twice } of rows) assert.equal(twice, n % 2 === 1 ? n * 2 : null, 'half a transaction')
    await db.close()
  })

  test('runs with a log synced on every commit and with foreign keys held', async () => {
    const db = await openSqlite({ path: join(folder, 'settings.db') })
    assert.deepEqual(await db.query(sql`pragma journal_mode`), [{ journal_mode: 'wal' }])
    assert.deepEqual(await db.query(sql`pragma synchronous`), [{ synchronous: 2 }])
    await db.transaction((tx) =>
      tx.exec('create table a (id integer primary key); create table b (a integer references a)'),
    )
    await assert.rejects(db.query(sql`insert into b values (${1})`), /FOREIGN KEY/)
    await db.close()
  })

  test('serves transactions in order of arrival, and lets others run between them', async () => {
    const db = await openSqlite({ path: join(folder, 'order.db') })
    const order: string[] = []
    const first = db.transaction(async () => order.push('first'))
    setImmediate(() => order.push('somebody else'))
    const second = db.query(sql`create table t (n integer)`).then(() => order.push('second'))
    const third = db.transaction(async () => order.push('third'))
    await Promise.all([first, second, third])
    assert.deepEqual(order, ['first', 'somebody else', 'second', 'third'])
    await db.close()
  })

  test('refuses a caller when too many wait, and serves those who do', async () => {
    const db = await openSqlite({ path: join(folder, 'bound.db'), maxWaiting: 2 })
    const release = Promise.withResolvers<void>()
    const running = db.transaction(() => release.promise)
    const waiting = [db.transaction(async () => 1), db.transaction(async () => 2)]
    await assert.rejects(
      db.transaction(async () => 3),
      UnavailableError,
    )
    release.resolve()
    await running
    assert.deepEqual(await Promise.all(waiting), [1, 2])
    await db.close()
  })

  test('refuses those who wait when it closes', async () => {
    const db = await openSqlite({ path: join(folder, 'close.db') })
    const release = Promise.withResolvers<void>()
    const running = db.transaction(() => release.promise)
    const waiting = assert.rejects(
      db.transaction(async () => 1),
      UnavailableError,
    )
    const closing = db.close()
    await waiting
    release.resolve()
    await Promise.all([running, closing])
  })

  test('is unavailable while the disk is full, and whole again after', async () => {
    const db = await openSqlite({ path: join(folder, 'full.db') })
    await db.query(sql`create table t (n integer, note text)`)
    await db.query(sql`pragma max_page_count = 10`)
    const fill = db.transaction(async (tx) => {
      await tx.query(sql`insert into t values (${1}, ${'small'})`)
      await tx.query(sql`insert into t values (${2}, ${'x'.repeat(100_000)})`)
    })
    await assert.rejects(fill, { name: 'UnavailableError', message: 'The database is unavailable' })
    await db.query(sql`pragma max_page_count = 1000`)
    await db.query(sql`insert into t values (${3}, ${'x'.repeat(100_000)})`)
    assert.deepEqual(await db.query(sql`select n from t`), [{ n: 3 }])
    await db.close()
  })

  test('is unavailable where it cannot be opened, and not taken for a database when it is none', async () => {
    await assert.rejects(openSqlite({ path: join(folder, 'missing', 'main.db') }), UnavailableError)
    await writeFile(join(folder, 'text.db'), 'not a database '.repeat(100))
    await assert.rejects(openSqlite({ path: join(folder, 'text.db') }), /not a database/)
  })

  test('names the columns of a prepared statement anew when the schema changes', async () => {
    const db = await openSqlite({ path: join(folder, 'schema.db') })
    await db.query(sql`create table t (a integer)`)
    await db.query(sql`insert into t values (${1})`)
    const all = sql`select * from t`
    assert.deepEqual(await db.query(all), [{ a: 1 }])
    await db.transaction(async (tx) => {
      await tx.exec('alter table t add column b integer')
      assert.deepEqual(await tx.query(all), [{ a: 1, b: null }])
      assert.deepEqual(await db.query(all), [{ a: 1 }])
    })
    assert.deepEqual(await db.query(all), [{ a: 1, b: null }])
    await db.query(sql`alter table t rename column b to c`)
    assert.deepEqual(await db.query(all), [{ a: 1, c: null }])
    await db.close()
  })

  test('refuses a script that ends its transaction', async () => {
    const db = await openSqlite({ path: join(folder, 'script.db') })
    await assert.rejects(
      db.transaction((tx) => tx.exec('commit; create table t (n integer)')),
      /must not end the transaction/,
    )
    await db.transaction(async (tx) => assert.equal(await tx.tryLock('any'), true))
    await db.close()
  })

  test('takes only what cannot write for a read', () => {
    const read = ['select 1', '\n  SELECT * from t', 'values (1)', 'with a as (select 1) select * from a']
    const write = [
      'insert into t values (1)',
      'UPDATE t set n = 1',
      'with a as (select 1) insert into t select * from a',
    ]
    const schema = ['create table t (n integer)', 'pragma user_version = 1', '/* */ select 1', 'selection']
    for (const text of read) assert.equal(kindOf(text), 'read', text)
    for (const text of write) assert.equal(kindOf(text), 'write', text)
    for (const text of schema) assert.equal(kindOf(text), 'schema', text)
  })
})

describe('the data folder', () => {
  test('is made for its owner alone', async () => {
    const path = join(folder, 'new', 'data')
    const { release } = lockDataFolder(path)
    assert.equal((await stat(path)).mode & 0o777, 0o700)
    release()
  })

  test('is held by one process, named to the next, and free when that one was killed', async () => {
    const path = join(folder, 'held')
    const { child, lines } = startScript('data-folder-holder.ts', path)
    await once(lines, 'line')
    assert.throws(() => lockDataFolder(path), { name: 'DataFolderInUse', message: new RegExp(`process ${child.pid}`) })
    await killNow(child)
    lockDataFolder(path).release()
  })

  test('is free after a release, also for another process, and held twice by nobody', async () => {
    const path = join(folder, 'released')
    const lock = lockDataFolder(path)
    assert.throws(() => lockDataFolder(path), DataFolderInUse)
    lock.release()
    lock.release()
    const { child, lines } = startScript('data-folder-holder.ts', path)
    const exited = once(child, 'exit')
    await once(lines, 'line')
    assert.throws(() => lockDataFolder(path), DataFolderInUse)
    child.stdin?.end()
    await exited
    lockDataFolder(path).release()
  })
})
