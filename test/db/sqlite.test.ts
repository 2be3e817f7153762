import assert from 'node:assert/strict'
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdir, mkdtemp, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface, type Interface } from 'node:readline'
import { DatabaseSync } from 'node:sqlite'
import { after, before, describe, mock, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { UnavailableError } from '../../src/core/errors.ts'
import { UniqueViolation } from '../../src/db/database.ts'
import { kindOf, sql } from '../../src/db/sql.ts'
import { DataFolderInUse, lockDataFolder } from '../../src/db/sqlite/data-folder.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { openWriteAheadLog, type WriteAheadLog } from '../../src/db/sqlite/write-ahead-log.ts'
import { WriteConnection } from '../../src/db/sqlite/write-connection.ts'
import { compileSlowSync, slowSyncMissing } from '../../verify/bench/slow-disk/slow-sync.ts'
import { HeldLog } from '../support/held-log.ts'
import { cutPower } from '../support/power-failure.ts'

let folder: string
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'test-sqlite-'))
})
after(() => rm(folder, { recursive: true, force: true }))

function startScript(
  name: string,
  argument: string,
  env: Record<string, string> = {},
): { child: ChildProcess; lines: Interface } {
  const script = fileURLToPath(new URL(`../support/${name}`, import.meta.url))
  const child = spawn(process.execPath, [script, argument], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, ...env },
  })
  return { child, lines: createInterface({ input: child.stdout }) }
}

async function killNow(child: ChildProcess): Promise<void> {
  const exited = once(child, 'exit')
  child.kill('SIGKILL')
  await exited
}

describe('the embedded database', () => {
  test('the embedded database has every acknowledged write after its process was killed', async () => {
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
    // One more acknowledgement may have been in flight.
    assert.ok(rows.length - acknowledged.length <= 1, `${rows.length} rows, ${acknowledged.length} acknowledged`)
    assert.deepEqual(
      acknowledged,
      rows.slice(0, acknowledged.length).map((row) => row.n),
    )
    for (const { n, twice } of rows) assert.equal(twice, n % 2 === 1 ? n * 2 : null, 'half a transaction')
    await db.close()
  })

  test('the embedded database and its log are readable by their owner only, in any folder and after an update', async () => {
    const shared = join(folder, 'shared')
    await mkdir(shared, { mode: 0o755 })
    const path = join(shared, 'main.db')
    const files = [path, `${path}-wal`, `${path}-shm`]
    const modes = () => Promise.all(files.map(async (file) => (await stat(file)).mode & 0o777))
    const db = await openSqlite({ path })
    await db.query(sql`create table notes (n integer)`)
    assert.deepEqual(await modes(), [0o600, 0o600, 0o600])
    for (const file of files) await chmod(file, 0o644)
    const again = await openSqlite({ path })
    assert.deepEqual(await modes(), [0o600, 0o600, 0o600])
    await again.close()
    await db.close()
  })

  test('the embedded database runs with a log that it syncs and checkpoints itself, and enforces foreign keys', async () => {
    const db = await openSqlite({ path: join(folder, 'settings.db') })
    assert.deepEqual(await db.query(sql`pragma journal_mode`), [{ journal_mode: 'wal' }])
    assert.deepEqual(await db.query(sql`pragma synchronous`), [{ synchronous: 1 }])
    assert.deepEqual(await db.query(sql`pragma wal_autocheckpoint`), [{ wal_autocheckpoint: 0 }])
    await db.transaction((tx) =>
      tx.exec('create table a (id integer primary key); create table b (a integer references a)'),
    )
    await assert.rejects(db.query(sql`insert into b values (${1})`), /FOREIGN KEY/)
    await db.close()
  })

  test('the embedded database serves transactions in order of arrival, and lets others run between them', async () => {
    const db = await openSqlite({ path: join(folder, 'order.db') })
    await db.query(sql`create table before (n integer)`)
    const order: string[] = []
    const first = db.transaction(async () => order.push('first'))
    setImmediate(() => order.push('other work'))
    const second = db.query(sql`create table t (n integer)`).then(() => order.push('second'))
    const third = db.transaction(async () => order.push('third'))
    await Promise.all([first, second, third])
    assert.deepEqual(order, ['first', 'other work', 'second', 'third'])
    await db.close()
  })

  test('the embedded database refuses a caller when too many wait, and serves the waiting callers', async () => {
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

  test('the embedded database refuses waiting callers when it closes', async () => {
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

  test('the embedded database is unavailable while the disk is full, and complete afterwards', async () => {
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

  test('the embedded database is unavailable if it cannot be opened or is not a database', async () => {
    await assert.rejects(openSqlite({ path: join(folder, 'missing', 'main.db') }), UnavailableError)
    await writeFile(join(folder, 'text.db'), 'not a database '.repeat(100))
    await assert.rejects(openSqlite({ path: join(folder, 'text.db') }), /not a database/)
  })

  test('a prepared statement has new column names when the schema changes', async () => {
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

  test('a script that ends its transaction is refused', async () => {
    const db = await openSqlite({ path: join(folder, 'script.db') })
    await assert.rejects(
      db.transaction((tx) => tx.exec('commit; create table t (n integer)')),
      /must not end the transaction/,
    )
    await db.transaction(async (tx) => assert.equal(await tx.tryLock('any'), true))
    await db.close()
  })

  test('a statement is treated as a read only if it cannot write', () => {
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

/** True for the given share of its calls; the same in every run. */
function drawer(share: number): () => boolean {
  let state = 1
  return () => {
    state = (state * 48_271) % 2_147_483_647
    return state / 2_147_483_647 < share
  }
}

describe('a commit of the embedded database', () => {
  async function opened(name: string) {
    const path = join(folder, name)
    const prepared = await openSqlite({ path })
    await prepared.query(sql`create table t (n integer primary key)`)
    await prepared.close()
    const log = new HeldLog()
    const db = await openSqlite({ path, openLog: log.open })
    const seen: string[] = []
    db.listen((topic) => seen.push(`announced ${topic}`))
    const insert = (n: number) =>
      db
        .transaction(async (tx) => {
          await tx.query(sql`insert into t values (${n})`)
          tx.announce('events')
        })
        .then(
          () => seen.push(`${n} resolved`),
          (error: Error) => seen.push(`${n} ${error.name}`),
        )
    const rows = async () => (await db.query<{ n: number }>(sql`select n from t order by n`)).map(({ n }) => n)
    return { db, log, seen, insert, rows }
  }

  test('a commit is on the disk before anything is resolved, refused, announced or read', async () => {
    const { db, log, seen, insert, rows } = await opened('held.db')
    const first = insert(1)
    const one = await log.nextSync()
    const others = [insert(1), insert(2)]
    assert.deepEqual(await rows(), [])
    assert.deepEqual(seen, [])
    one.release()
    await first
    const two = await log.nextSync()
    assert.deepEqual(seen, ['announced events', '1 resolved'])
    assert.deepEqual(await rows(), [1])
    two.release()
    await Promise.all(others)
    assert.deepEqual(seen.slice(2).toSorted(), ['1 UniqueViolation', '2 resolved', 'announced events'])
    assert.deepEqual(await rows(), [1, 2])
    await db.close()
  })

  test('a commit includes all work that arrived during the previous commit, in order of arrival', async () => {
    const { db, log, seen, insert, rows } = await opened('groups.db')
    const first = insert(1)
    const one = await log.nextSync()
    const others = Array.from({ length: 50 }, (_, n) => insert(n + 2))
    const single = db.query(sql`insert into t values (${100})`).then(() => seen.push('100 resolved'))
    one.release()
    await first
    const two = await log.nextSync()
    two.release()
    await Promise.all([...others, single])
    const order = [...Array.from({ length: 51 }, (_, n) => n + 1), 100]
    assert.deepEqual(
      seen.filter((line) => line.endsWith('resolved')),
      order.map((n) => `${n} resolved`),
    )
    assert.deepEqual(await rows(), order)
    await db.close()
  })

  test('a commit contains nothing of a failed transaction, and everything of the others', async () => {
    const { db, log, seen, insert, rows } = await opened('undone.db')
    const first = insert(1)
    const one = await log.nextSync()
    const failing = db
      .transaction(async (tx) => {
        await tx.query(sql`insert into t values (${2})`)
        tx.announce('deliveries')
        throw new Error('on purpose')
      })
      .catch((error: Error) => seen.push(error.message))
    const others = [insert(3), failing, insert(4)]
    one.release()
    ;(await log.nextSync()).release()
    await Promise.all([first, ...others])
    assert.deepEqual(await rows(), [1, 3, 4])
    assert.ok(!seen.includes('announced deliveries'))
    assert.ok(seen.includes('on purpose'))
    await db.close()
  })

  test('a commit that never reached the disk is never shown, and no further commit follows it', async () => {
    const { db, log, seen, insert, rows } = await opened('failed.db')
    const first = insert(1)
    const one = await log.nextSync()
    const others = [insert(2), insert(3)]
    one.release()
    const two = await log.nextSync()
    const last = insert(4)
    two.fail()
    await Promise.all([first, ...others, last])
    const refused = [2, 3, 4].map((n) => `${n} UnavailableError`)
    assert.deepEqual(seen, ['announced events', '1 resolved', ...refused])
    assert.deepEqual(await rows(), [1])
    await assert.rejects(db.ping(), UnavailableError)
    await assert.rejects(db.query(sql`insert into t values (${5})`), UnavailableError)
    await db.close()
  })

  test('a statement whose group was rolled back is never committed', () => {
    const connection = new DatabaseSync(':memory:')
    connection.exec('create table t (n integer); begin')
    const writer = new WriteConnection(connection)
    const insert = sql`insert into t values (${1})`
    const rows = () => writer.queryAlone(sql`select n from t`)
    assert.throws(() => writer.query(insert), /within a transaction/)
    assert.throws(() => writer.query(insert), /within a transaction/)
    assert.throws(() => writer.commit(), /within a transaction/)
    writer.endGroup()
    assert.deepEqual(rows(), [])
    writer.query(insert)
    writer.commit()
    writer.endGroup()
    assert.deepEqual(rows(), [{ n: 1 }])
    writer.close()
  })

  test('a commit includes a statement that the work did not await, and fails with it', async () => {
    const { db, rows, log } = await opened('floating.db')
    const kept = db.transaction(async (tx) => void tx.query(sql`insert into t values (${1})`))
    ;(await log.nextSync()).release()
    await kept
    const failed = db.transaction(async (tx) => {
      void tx.query(sql`insert into t values (${2})`)
      tx.query(sql`insert into t values (${1})`).catch(() => undefined)
    })
    ;(await log.nextSync()).release()
    await assert.rejects(failed, UniqueViolation)
    assert.deepEqual(await rows(), [1])
    await db.close()
  })

  test('a commit waits for the disk while the event loop and reads go on; a disk that fails ends the process', {
    skip: slowSyncMissing(),
  }, async () => {
    const control = join(folder, 'sync-control')
    await mkdir(control)
    const path = join(folder, 'slow.db')
    const script = fileURLToPath(new URL('../support/sqlite-held-sync.ts', import.meta.url))
    const { stdout, stderr, status } = spawnSync(process.execPath, [script, path, control], {
      env: { ...process.env, LD_PRELOAD: compileSlowSync(folder), SYNC_CONTROL: control },
      encoding: 'utf8',
    })
    const seen = ['unseen by 1000 reads', 'announced events', 'resolved', 'rows 1', 'UnavailableError', 'rows 1']
    assert.deepEqual(stdout.trimEnd().split('\n'), seen)
    assert.equal(status, 1)
    assert.match(stderr, /EIO/)
    const db = await openSqlite({ path })
    const [row] = await db.query(sql`select n from t order by n`)
    assert.deepEqual(row, { n: 1 })
    await db.close()
  })

  test('a commit survives a power failure, with any set of sectors written since the last sync', {
    skip: slowSyncMissing(),
  }, async () => {
    const library = compileSlowSync(folder)
    for (const acknowledgedAtLeast of [1, 50, 150, 400]) {
      const root = join(folder, `power-${acknowledgedAtLeast}`)
      const folders = { live: join(root, 'live'), synced: join(root, 'synced'), left: join(root, 'left') }
      for (const path of Object.values(folders)) await mkdir(path, { recursive: true })
      const { child, lines } = startScript('sqlite-busy-writer.ts', join(folders.live, 'main.db'), {
        LD_PRELOAD: library,
        SYNC_KEEP: folders.synced,
      })
      const acknowledged: number[] = []
      for await (const line of lines) {
        acknowledged.push(Number(line))
        if (acknowledged.length === acknowledgedAtLeast) child.kill('SIGKILL')
      }
      for (const share of [0, 0.02, 0.5, 0.98, 1]) {
        cutPower(folders, drawer(share))
        const db = await openSqlite({ path: join(folders.left, 'main.db') })
        assert.deepEqual(await db.query(sql`pragma integrity_check`), [{ integrity_check: 'ok' }])
        const rows = await db.query<{ n: number }>(sql`select n from rows_written`)
        const left = new Set(rows.map(({ n }) => n))
        assert.deepEqual(
          acknowledged.filter((n) => !left.has(n)),
          [],
        )
        await db.close()
      }
    }
  })

  test('a checkpoint moves a commit into the database file; reads go on, and the next write starts a new log', async () => {
    const path = join(folder, 'checkpoint.db')
    const began = Promise.withResolvers<void>()
    const release = Promise.withResolvers<void>()
    const heldLog = (file: string): WriteAheadLog => {
      const log = openWriteAheadLog(file)
      const checkpoint = async () => {
        began.resolve()
        await release.promise
        await log.checkpoint()
      }
      return { ...log, checkpoint }
    }
    const db = await openSqlite({ path, openLog: heldLog })
    await db.query(sql`create table t (n integer primary key, note text)`)
    const insert = (n: number) => db.query(sql`insert into t values (${n}, ${'x'.repeat(20_000_000)})`)
    const rows = async () => (await db.query<{ n: number }>(sql`select n from t`)).map(({ n }) => n)
    await insert(1)
    const writing = insert(2)
    await began.promise
    assert.deepEqual(await rows(), [1])
    release.resolve()
    await writing
    assert.deepEqual(await rows(), [1, 2])
    assert.ok((await stat(path)).size > 20_000_000)
    assert.ok((await stat(`${path}-wal`)).size < 30_000_000)
    await db.close()
  })

  test('a commit runs no checkpoint on the event loop', async (t) => {
    const path = join(folder, 'short-log.db')
    const db = await openSqlite({ path })
    await db.query(sql`create table t (n integer primary key)`)
    const { size } = await stat(path)
    // SQLite before 3.51 does a real checkpoint when it does not know the kind, such as `noop`.
    const prepare = t.mock.method(DatabaseSync.prototype, 'prepare')
    const exec = t.mock.method(DatabaseSync.prototype, 'exec')
    for (let n = 0; n < 20; n++) await db.query(sql`insert into t values (${n})`)
    const texts = [...prepare.mock.calls, ...exec.mock.calls].map((call) => String(call.arguments[0]))
    assert.ok(texts.includes('commit'), 'the statements are seen')
    assert.deepEqual(
      texts.filter((text) => text.includes('checkpoint')),
      [],
    )
    assert.equal((await stat(path)).size, size)
    await db.close()
  })

  test('a commit does not wait for a checkpoint each time while a reader keeps the log from starting anew', async () => {
    const path = join(folder, 'read-log.db')
    const checkpoint = mock.fn<() => void>()
    const openLog = (file: string): WriteAheadLog => {
      const log = openWriteAheadLog(file)
      return { ...log, checkpoint: () => log.checkpoint().then(checkpoint) }
    }
    const db = await openSqlite({ path, openLog, maxLogPages: 30 })
    await db.query(sql`create table t (n integer primary key, note text)`)
    const reader = new DatabaseSync(path)
    reader.exec('begin; select count(*) from t')
    const insert = async (count: number) => {
      for (let n = 0; n < count; n++) await db.query(sql`insert into t (note) values (${'x'.repeat(30_000)})`)
    }
    const sizeOfLog = async () => (await stat(`${path}-wal`)).size
    // Each insert writes about ten pages.
    await insert(15)
    const whileRead = checkpoint.mock.callCount()
    assert.ok(whileRead >= 3 && whileRead <= 8, `${whileRead} checkpoints`)
    const size = await sizeOfLog()
    assert.ok(size > 500_000, 'the reader keeps the log from starting anew')
    reader.close()
    await insert(15)
    assert.ok((await sizeOfLog()) < size + 200_000, 'the next checkpoint starts a new log in the same file')
    assert.ok(checkpoint.mock.callCount() >= whileRead + 2)
    await db.close()
  })
})

describe('the write-ahead log', () => {
  test('the write-ahead log knows how many pages it has, also those of an earlier process, but not those of the log before it', () => {
    const path = join(folder, 'pages.db')
    const writer = new DatabaseSync(path)
    writer.exec('pragma journal_mode = wal; pragma wal_autocheckpoint = 0; create table t (note text)')
    const insert = (bytes: number) => writer.prepare('insert into t values (?)').run('x'.repeat(bytes))
    const pages = () => Number(writer.prepare('pragma wal_checkpoint(passive)').get()?.log)
    insert(100_000)
    const log = openWriteAheadLog(path)
    const long = pages()
    assert.deepEqual([log.hasPage(1), log.hasPage(long), log.hasPage(long + 1)], [true, true, false])
    // The checkpoint above has moved the whole log, so this starts a new one.
    insert(10_000)
    const short = pages()
    assert.ok(short < long)
    assert.deepEqual([log.hasPage(1), log.hasPage(short), log.hasPage(short + 1)], [true, true, false])
    writer.exec('pragma wal_checkpoint(truncate)')
    assert.equal(log.hasPage(1), false)
    writer.close()
    log.close()
  })
})

describe('the data folder', () => {
  test('the data folder is created with access for its owner only', async () => {
    const path = join(folder, 'new', 'data')
    const { release } = lockDataFolder(path)
    assert.equal((await stat(path)).mode & 0o777, 0o700)
    release()
  })

  test('the data folder is locked by one process, whose id the next process reports, and free when that process was killed', async () => {
    const path = join(folder, 'held')
    const { child, lines } = startScript('data-folder-holder.ts', path)
    await once(lines, 'line')
    assert.throws(() => lockDataFolder(path), { name: 'DataFolderInUse', message: new RegExp(`process ${child.pid}`) })
    await killNow(child)
    lockDataFolder(path).release()
  })

  test('the data folder is free after a release, also for another process, and never held twice', async () => {
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
