import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe } from 'node:test'
import type { Database, Engine } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { PATIENCE_MS } from './patience.ts'
import { isDist } from './program-file.ts'
import { needsPostgres, sharedMigratedDatabase, sharedPostgresDatabase } from './services.ts'

export interface EngineUnderTest {
  name: Engine
  /** A fresh database with this code's schema; closed and removed after the tests. */
  openDatabase(options?: ConnectOptions): Promise<Database>
  /** A fresh, empty place for one database. */
  createStore(): Promise<Store>
}

export interface Store {
  /** On PostgreSQL each call is another node; on SQLite, which only one process may use, all calls share one handle. */
  connect(options?: ConnectOptions): Promise<Database>
}

export interface ConnectOptions {
  /**
   * On PostgreSQL, a statement waits 8 s for a lock, as long as it may take at all, and not half a second or two. For
   * statements that wait for each other: this process may be too busy to commit in that time. Also for those that wait for
   * autovacuum.
   */
  waitsLong?: boolean
}

/** Registers the same tests for each real engine. The tests of the build need one engine: both have run on the sources. */
export function forEachEngine(register: (engine: EngineUnderTest) => void): void {
  onSqlite(register)
  if (isDist()) return
  describe('on postgres', needsPostgres(), () => register(engineUnderTest('postgres', createPostgresStore)))
}

/** Once, with both engines at hand. */
export function onBothEngines(register: (engines: Record<Engine, EngineUnderTest>) => void): void {
  describe('on both engines', needsPostgres(), () =>
    register({
      sqlite: engineUnderTest('sqlite', createSqliteStore),
      postgres: engineUnderTest('postgres', createPostgresStore),
    }),
  )
}

/** Only on the embedded engine, for tests in which the engine does not matter. */
export function onSqlite(register: (engine: EngineUnderTest) => void): void {
  describe('on sqlite', () => register(engineUnderTest('sqlite', createSqliteStore)))
}

interface OwnedStore extends Store {
  remove(): Promise<void>
}

type Content = 'empty' | 'migrated'

function engineUnderTest(name: Engine, create: (content: Content) => Promise<OwnedStore>): EngineUnderTest {
  const stores: OwnedStore[] = []
  after(async () => {
    await Promise.all(stores.map((store) => store.remove()))
  })
  const createdStore = async (content: Content) => {
    const store = await create(content)
    stores.push(store)
    return store
  }
  return {
    name,
    createStore: () => createdStore('empty'),
    openDatabase: async (options) => (await createdStore('migrated')).connect(options),
  }
}

async function createSqliteStore(content: Content): Promise<OwnedStore> {
  const folder = await mkdtemp(join(tmpdir(), 'test-sqlite-'))
  const path = join(folder, 'main.db')
  if (content === 'migrated') {
    migratedFile ??= migrateFile()
    await writeFile(path, await migratedFile)
  }
  const db = await openSqlite({ path })
  return {
    connect: async () => db,
    remove: async () => {
      await db.close()
      await rm(folder, { recursive: true, force: true })
    },
  }
}

let migratedFile: Promise<Buffer> | undefined

/** The file of a database with this code's schema: migrating takes longer than copying. */
async function migrateFile(): Promise<Buffer> {
  const folder = await mkdtemp(join(tmpdir(), 'test-sqlite-'))
  const path = join(folder, 'main.db')
  const db = await openSqlite({ path })
  await migrate(db)
  await db.close()
  const bytes = await readFile(path)
  await rm(folder, { recursive: true })
  return bytes
}

async function createPostgresStore(content: Content): Promise<OwnedStore> {
  const { url, drop } = await (content === 'migrated' ? sharedMigratedDatabase() : sharedPostgresDatabase())
  const opened: Database[] = []
  return {
    connect: async ({ waitsLong = false } = {}) => {
      // On a busy machine a transaction may wait long for a free connection.
      const address = new URL(url)
      if (waitsLong) address.searchParams.set('lock_timeout', '8000')
      const db = await openPostgres({ url: address.href, connectTimeoutMs: PATIENCE_MS })
      opened.push(db)
      return db
    },
    remove: async () => {
      await Promise.all(opened.map((db) => db.close()))
      await drop()
    },
  }
}
