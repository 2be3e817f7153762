import { type Clock, systemClock } from '../core/clock.ts'
import { shippedFile } from '../shipped-files.ts'
import { type Database, LockTimeout, type Queryable, type Transaction } from './database.ts'
import { type Migration, readMigrations } from './migration-files.ts'
import { sql } from './sql.ts'

export const MIGRATIONS = shippedFile('src/db/migrations/')

/** All requests for a table wait behind a migration that waits for the table, so it waits only shortly for each. */
const LOCK_WAIT_MS = 300
/** Until the next attempt, requests run as usual. */
const PAUSE_MS = 2_000
/** Ends before an orchestrator that waits two minutes for a start gives up, so that the operator sees the reason. */
const MAX_ATTEMPTS = 40

/**
 * Brings the database to the schema of this release, forward only. Each migration commits together with its version, so a
 * crash leaves no half step. If several nodes start at once, each step still runs once, and the other nodes wait. So the
 * statement timeout must be longer than the longest step. A step that gets no lock, because a session such as that of
 * `pg_dump` keeps a table in use, is tried again for a minute and a half; then `migrate` rejects with `LockTimeout`.
 */
export async function migrate(
  db: Database,
  folder: URL = MIGRATIONS,
  clock: Clock = systemClock,
): Promise<{ applied: string[] }> {
  const known = await readMigrations(folder, db.engine)
  const applied: string[] = []
  // Check first without a lock: if the schema is up to date, the start does not wait for writers or other nodes.
  for (let attempt = 1; (await pendingIn(db, known)).length > 0; attempt++) {
    try {
      const name = await db.transaction((tx) => applyNext(tx, known, clock.now()))
      if (name !== undefined) applied.push(name)
      attempt = 0
    } catch (error) {
      if (!(error instanceof LockTimeout) || attempt === MAX_ATTEMPTS) throw error
      await clock.sleep(PAUSE_MS)
    }
  }
  return { applied }
}

/** The names of the migrations that `migrate` would run; rejects when `migrate` would refuse the database. */
export async function pendingMigrations(db: Queryable, folder: URL = MIGRATIONS): Promise<string[]> {
  const pending = await pendingIn(db, await readMigrations(folder, db.engine))
  return pending.map((migration) => migration.name)
}

/** This release cannot use the database. Nothing of it was changed. */
export class MigrationError extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'MigrationError'
  }
}

async function applyNext(tx: Transaction, known: Migration[], now: number): Promise<string | undefined> {
  // Waits for a node that is migrating, however long. The transaction's end releases the lock; the number is arbitrary.
  if (tx.engine === 'postgres') {
    await tx.exec('set local lock_timeout = 0')
    await tx.query(sql`select pg_advisory_xact_lock(5207110316428)`)
    await tx.exec(`set local lock_timeout = ${LOCK_WAIT_MS}`)
  }
  if (!(await hasVersionTable(tx))) {
    await tx.exec(
      'create table schema_migrations (version integer primary key, name text not null, checksum text not null, applied_at bigint not null)',
    )
  }
  const [next] = pendingOf(known, await readVersions(tx))
  if (!next) return undefined
  await tx.exec(next.script)
  await tx.query(sql`
    insert into schema_migrations (version, name, checksum, applied_at)
    values (${next.version}, ${next.name}, ${next.checksum}, ${now})`)
  return next.name
}

async function pendingIn(db: Queryable, known: Migration[]): Promise<Migration[]> {
  return pendingOf(known, (await hasVersionTable(db)) ? await readVersions(db) : [])
}

type Version = { version: number; name: string; checksum: string }

/** Before version 1.0 the baseline changed, so a database with another baseline has another schema. */
const OTHER_BASELINE =
  'An earlier version, from before 1.0, made this database, and it cannot be updated: use an empty database, or that version'

function pendingOf(known: Migration[], recorded: Version[]): Migration[] {
  const [baseline] = known
  const [first] = recorded
  if (first && first.checksum !== baseline?.checksum) throw new MigrationError(OTHER_BASELINE)
  const byVersion = new Map(known.map((migration) => [migration.version, migration]))
  for (const { version, name, checksum } of recorded) {
    const migration = byVersion.get(version)
    if (!migration) {
      throw new MigrationError(`The database has migration ${name}, unknown to this release: it belongs to a newer one`)
    }
    if (migration.checksum !== checksum) {
      throw new MigrationError(`Migration ${name} was changed after it ran here: restore it, and add a new one instead`)
    }
  }
  const last = recorded.at(-1)?.version ?? 0
  const pending = known.filter(({ version }) => !recorded.some((row) => row.version === version))
  const late = pending.find(({ version }) => version < last)
  if (late) throw new MigrationError(`Migration ${late.name} came after ${last} had run here: give it a higher number`)
  return pending
}

function readVersions(db: Queryable): Promise<Version[]> {
  return db.query<Version>(sql`select version, name, checksum from schema_migrations order by version`)
}

/** Checked first: on PostgreSQL a statement on a missing table would abort the transaction. */
async function hasVersionTable(db: Queryable): Promise<boolean> {
  const found =
    db.engine === 'sqlite'
      ? await db.query(sql`select 1 as found from sqlite_schema where type = 'table' and name = 'schema_migrations'`)
      : await db.query(sql`
          select 1 as found from pg_catalog.pg_tables
          where schemaname = current_schema() and tablename = 'schema_migrations'`)
  return found.length > 0
}
