import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { pathToFileURL } from 'node:url'
import { buildNextIndex, pendingIndexes } from '../../src/db/build-indexes.ts'
import { type Database, LockTimeout } from '../../src/db/database.ts'
import { MigrationError, migrate, pendingMigrations } from '../../src/db/migrate.ts'
import { type Sql, sql } from '../../src/db/sql.ts'
import { forEachEngine } from '../support/engines.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { until } from '../support/until.ts'

const folders: string[] = []
after(() => Promise.all(folders.map((folder) => rm(folder, { recursive: true }))))

async function folderOf(files: Record<string, string>): Promise<URL> {
  const folder = await mkdtemp(join(tmpdir(), 'test-migrations-'))
  folders.push(folder)
  for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text)
  return pathToFileURL(`${folder}/`)
}

const FIRST = { '0001_first.sql': "create table a (id text primary key);\ninsert into a values ('one; two');\n" }
const SECOND = { '0002_second.sql': '-- Adds a column; nothing more.\nalter table a add column n bigint;\n' }

const versions = (db: Database) =>
  db.query(sql`select version, name, applied_at from schema_migrations order by version`)

forEachEngine((engine) => {
  const connect = async () => (await engine.createStore()).connect()

  test('a fresh database gets every migration in order, and the next run has nothing to do', async () => {
    const db = await connect()
    const folder = await folderOf({ ...SECOND, ...FIRST, 'README.md': 'not a migration' })
    const clock = new ManualClock()
    assert.deepEqual(await pendingMigrations(db, folder), ['0001_first', '0002_second'])
    assert.deepEqual(await migrate(db, folder, clock), { applied: ['0001_first', '0002_second'] })
    assert.deepEqual(await db.query(sql`select * from a`), [{ id: 'one; two', n: null }])
    assert.deepEqual(await versions(db), [
      { version: 1, name: '0001_first', applied_at: clock.now() },
      { version: 2, name: '0002_second', applied_at: clock.now() },
    ])
    assert.deepEqual(await migrate(db, folder), { applied: [] })
    assert.deepEqual(await pendingMigrations(db, folder), [])
  })

  test('an empty folder is a schema without tables', async () => {
    const db = await connect()
    assert.deepEqual(await migrate(db, await folderOf({})), { applied: [] })
  })

  test('a later release applies only what is new', async () => {
    const db = await connect()
    await migrate(db, await folderOf(FIRST))
    const later = await folderOf({ ...FIRST, ...SECOND })
    assert.deepEqual(await pendingMigrations(db, later), ['0002_second'])
    assert.deepEqual(await migrate(db, later), { applied: ['0002_second'] })
  })

  test('nodes that start at once apply each migration once between them', async () => {
    const store = await engine.createStore()
    const folder = await folderOf({ ...FIRST, ...SECOND })
    const nodes = await Promise.all(Array.from({ length: 4 }, () => store.connect()))
    const results = await Promise.all(nodes.map((db) => migrate(db, folder)))
    assert.deepEqual(results.flatMap((result) => result.applied).sort(), ['0001_first', '0002_second'])
  })

  test('a migration that was changed after it ran is refused', async () => {
    const db = await connect()
    await migrate(db, await folderOf({ ...FIRST, ...SECOND }))
    const changed = await folderOf({ ...FIRST, '0002_second.sql': 'create table b (id text primary key);' })
    await assert.rejects(migrate(db, changed), { name: 'MigrationError', message: /0002_second was changed/ })
    await assert.rejects(pendingMigrations(db, changed), MigrationError)
  })

  test('a database that began with another baseline is refused in one sentence, and stays as it was', async () => {
    const db = await connect()
    await migrate(db, await folderOf({ ...FIRST, ...SECOND }))
    const before = await versions(db)
    const edited = { '0001_first.sql': `${FIRST['0001_first.sql']}-- edited\n` }
    const other = { '0001_other.sql': 'create table b (id text primary key);' }
    for (const files of [edited, other, { ...edited, ...SECOND }]) {
      const folder = await folderOf(files)
      const refused = { name: 'MigrationError', message: /^An earlier version, from before 1\.0, made this database/ }
      await assert.rejects(migrate(db, folder), refused)
      await assert.rejects(pendingMigrations(db, folder), refused)
    }
    assert.deepEqual(await versions(db), before)
    assert.deepEqual(await db.query(sql`select id from a`), [{ id: 'one; two' }])
  })

  test('a database of a newer release is refused', async () => {
    const db = await connect()
    await migrate(db, await folderOf({ ...FIRST, ...SECOND }))
    const older = await folderOf(FIRST)
    await assert.rejects(migrate(db, older), { name: 'MigrationError', message: /0002_second.*newer/ })
    await assert.rejects(pendingMigrations(db, older), MigrationError)
  })

  test('a migration numbered below one that ran is refused', async () => {
    const db = await connect()
    const third = { '0003_third.sql': 'create table b (id text primary key);' }
    await migrate(db, await folderOf({ ...FIRST, ...third }))
    const folder = await folderOf({ ...FIRST, ...SECOND, ...third })
    await assert.rejects(migrate(db, folder), { name: 'MigrationError', message: /0002_second.*higher number/ })
  })

  test('a failed migration leaves no changes, and runs after it is fixed', async () => {
    const db = await connect()
    const broken = { '0002_second.sql': 'create table b (id text primary key);\ninsert into no_such_table values (1);' }
    await assert.rejects(migrate(db, await folderOf({ ...FIRST, ...broken })), /no_such_table/)
    await assert.rejects(db.query(sql`select * from b`))
    assert.equal((await versions(db)).length, 1)
    assert.deepEqual(await migrate(db, await folderOf({ ...FIRST, ...SECOND })), { applied: ['0002_second'] })
  })

  test('a variant for an engine takes the place of the common file there', async () => {
    const db = await connect()
    const folder = await folderOf({
      '0001_both.sql': "create table a (id text); insert into a values ('common');",
      '0001_both.sqlite.sql': "create table a (id text); insert into a values ('sqlite');",
      '0002_apart.sqlite.sql': "insert into a values ('on sqlite');",
      '0002_apart.postgres.sql': "insert into a values ('on postgres');",
    })
    assert.deepEqual(await migrate(db, folder), { applied: ['0001_both', '0002_apart'] })
    const expected = engine.name === 'sqlite' ? ['on sqlite', 'sqlite'] : ['common', 'on postgres']
    assert.deepEqual(
      await db.query(sql`select id from a order by id`),
      expected.map((id) => ({ id })),
    )
  })

  test('a folder with faults is refused before any migration runs', async () => {
    const db = await connect()
    const other = engine.name === 'sqlite' ? 'postgres' : 'sqlite'
    const folders = [
      [{ 'first.sql': '' }, /NNNN_name/],
      [{ '0001_a.sql': '', '0001_b.sql': '' }, /one number/],
      [{ ...FIRST, [`0002_only.${other}.sql`]: '' }, new RegExp(`no file for ${engine.name}`)],
      [{ ...FIRST, '0002_none.indexes.sql': '' }, /0002_none.indexes.sql belongs to no migration/],
      [{ ...FIRST, '0001_first.indexes.sql': 'drop table a;' }, /0001_first.indexes.sql may only have statements/],
    ] as const
    for (const [files, message] of folders) await assert.rejects(migrate(db, await folderOf(files)), message)
    await assert.rejects(versions(db))
  })

  const INDEXED = {
    ...FIRST,
    ...SECOND,
    '0002_second.indexes.sql': `-- By n; and by both.
      create index if not exists a_by_n on a (n) where n is not null;
      create index if not exists a_by_both on a (n, id);`,
  }
  const indexes = async (db: Database) => {
    const rows = await db.query<{ name: string }>(
      engine.name === 'sqlite'
        ? sql`select name from sqlite_schema where type = 'index' and name like 'a_by%' order by name`
        : sql`select relname as name from pg_class c join pg_index i on i.indexrelid = c.oid
            where relname like 'a_by%' and indisvalid order by relname`,
    )
    return rows.map(({ name }) => name)
  }

  test('the indexes of a migration are built: by SQLite with it, by PostgreSQL after it, one after the other', async () => {
    const db = await connect()
    const folder = await folderOf(INDEXED)
    await migrate(db, folder)
    const later = engine.name === 'sqlite' ? [] : ['a_by_n', 'a_by_both']
    assert.deepEqual(await pendingIndexes(db, folder), later)
    assert.deepEqual(await indexes(db), engine.name === 'sqlite' ? ['a_by_both', 'a_by_n'] : [])
    for (const built of later) assert.deepEqual(await buildNextIndex(db, folder), { built })
    assert.equal(await buildNextIndex(db, folder), 'done')
    assert.deepEqual(await indexes(db), ['a_by_both', 'a_by_n'])
    assert.deepEqual(await migrate(db, folder), { applied: [] })
  })

  test('an index that a later migration drops is not built any more, and dropped where it exists', async () => {
    const db = await connect()
    const dropping = { ...INDEXED, '0003_third.sql': 'drop index if exists a_by_n;' }
    const [indexed, later] = [await folderOf(INDEXED), await folderOf(dropping)]
    await migrate(db, indexed)
    while ((await buildNextIndex(db, indexed)) !== 'done');
    await migrate(db, later)
    assert.deepEqual(await pendingIndexes(db, later), [])
    assert.deepEqual(await indexes(db), ['a_by_both'])
    const fresh = await connect()
    await migrate(fresh, later)
    assert.deepEqual(await pendingIndexes(fresh, later), engine.name === 'sqlite' ? [] : ['a_by_both'])
  })

  test('a variant of the indexes for an engine is built there only', async () => {
    const db = await connect()
    const folder = await folderOf({
      ...FIRST,
      '0001_first.indexes.sqlite.sql': 'create index if not exists a_by_sqlite on a (id);',
      '0001_first.indexes.postgres.sql': 'create index if not exists a_by_postgres on a (id);',
    })
    await migrate(db, folder)
    while ((await buildNextIndex(db, folder)) !== 'done');
    assert.deepEqual(await indexes(db), [`a_by_${engine.name}`])
  })

  test('a migration that gets no lock is tried again after a pause, and not for ever', async () => {
    const db = await connect()
    const folder = await folderOf(FIRST)
    const clock = new ManualClock()
    let attempts = 0
    const locked = {
      engine: db.engine,
      query: (statement: Sql) => db.query(statement),
      transaction: () => {
        attempts += 1
        return Promise.reject(new LockTimeout(undefined))
      },
    } as unknown as Database
    const rejected = assert.rejects(migrate(locked, folder, clock), LockTimeout)
    const [startMs, given] = [clock.now(), { up: false }]
    void rejected.then(() => {
      given.up = true
    })
    await until(async () => {
      await clock.advance(60_000)
      return given.up
    })
    assert.ok(attempts > 10, `${attempts} attempts`)
    assert.ok(clock.now() > startMs)
  })

  if (engine.name === 'sqlite') return

  test('a migration of a table that another session reads lets requests pass, and is made when that session ends', async () => {
    const store = await engine.createStore()
    const [db, other] = [await store.connect(), await store.connect()]
    await migrate(db, await folderOf(FIRST))
    const clock = new ManualClock()
    const later = await folderOf({ ...FIRST, ...SECOND })
    const migrating = await other.transaction(async (tx) => {
      // As pg_dump does, for as long as it runs.
      await tx.query(sql`lock table a in access share mode`)
      const applying = migrate(db, later, clock)
      await until(() => clock.sleeping > 0)
      assert.deepEqual(await other.query(sql`select id from a`), [{ id: 'one; two' }])
      await other.query(sql`insert into a values ('meanwhile')`)
      return { applying }
    })
    await clock.advance(2_000)
    assert.deepEqual(await migrating.applying, { applied: ['0002_second'] })
  })

  test('an index whose build was interrupted is dropped and built again', async () => {
    const db = await connect()
    const folder = await folderOf(INDEXED)
    await migrate(db, folder)
    await buildNextIndex(db, folder)
    await db.query(sql`update pg_index set indisvalid = false where indexrelid = 'a_by_n'::regclass`)
    assert.deepEqual(await pendingIndexes(db, folder), ['a_by_n', 'a_by_both'])
    assert.deepEqual(await buildNextIndex(db, folder), { built: 'a_by_n' })
    assert.deepEqual(await indexes(db), ['a_by_n'])
  })

  test('one node builds at a time, and writes continue during the build', async () => {
    const store = await engine.createStore()
    const [db, other] = [await store.connect(), await store.connect({ waitsLong: true })]
    const folder = await folderOf(INDEXED)
    await migrate(db, folder)
    const locked = Promise.withResolvers<void>()
    const release = Promise.withResolvers<void>()
    const holding = db.transaction(async (tx) => {
      assert.ok(await tx.tryLock('indexes'))
      locked.resolve()
      await release.promise
    })
    await locked.promise
    assert.equal(await buildNextIndex(other, folder), 'busy')
    release.resolve()
    await holding
    // A build waits for the transaction that has written, and does not keep others from writing.
    const writing = Promise.withResolvers<void>()
    const written = db.transaction(async (tx) => {
      await tx.query(sql`insert into a (id) values ('early')`)
      await writing.promise
    })
    const building = buildNextIndex(other, folder)
    await db.query(sql`insert into a (id) values ('meanwhile')`)
    writing.resolve()
    await written
    assert.deepEqual(await building, { built: 'a_by_n' })
  })
})
