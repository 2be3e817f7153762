import type { ColumnType, Queryable } from '../database.ts'
import { MIGRATIONS } from '../migrate.ts'
import { readMigrations } from '../migration-files.ts'
import { Sql, sql } from '../sql.ts'

/** A table as both engines have it. */
export interface Table {
  name: string
  /** Sorted by name: the engines may have them in another order. */
  columns: Readonly<Record<string, ColumnType>>
}

/** Tables that belong to one database and its nodes; they are not copied. */
const OWN = ['schema_migrations', 'nodes']

/** The tables that hold data. Those that others refer to come first. */
export async function readTables(db: Queryable): Promise<Table[]> {
  const rows = await db.query<{ tbl: string; col: string; type: string }>(
    db.engine === 'postgres'
      ? sql`
        select c.table_name as tbl, c.column_name as col, c.data_type as type
        from information_schema.columns c
        join pg_catalog.pg_tables t on t.schemaname = c.table_schema and t.tablename = c.table_name
        where c.table_schema = current_schema() order by c.table_name, c.column_name`
      : sql`
        select t.name as tbl, c.name as col, c.type as type
        from sqlite_schema t join pragma_table_info(t.name) c
        where t.type = 'table' and t.name not like 'sqlite~_%' escape '~' order by t.name, c.name`,
  )
  const byTable = Map.groupBy(
    rows.filter(({ tbl }) => !OWN.includes(tbl)),
    ({ tbl }) => tbl,
  )
  const tables = Array.from(byTable, ([name, columns]) => ({
    name,
    columns: Object.fromEntries(columns.map(({ col, type }) => [col, typeOf(type)])),
  }))
  return inOrder(tables, await readReferences(db))
}

/** The tables in which migrations put rows: an empty database has those. */
export async function readSeededTables(db: Queryable): Promise<string[]> {
  const migrations = await readMigrations(MIGRATIONS, db.engine)
  return migrations.flatMap(({ script }) =>
    Array.from(script.matchAll(/^insert into (\w+) \([^)]*\)\s+values/gm), ([, table = '']) => table),
  )
}

/** Numbers are whole and text is text on both engines; there are no other types. */
function typeOf(type: string): ColumnType {
  return /int/i.test(type) ? 'bigint' : 'text'
}

async function readReferences(db: Queryable): Promise<{ child: string; parent: string }[]> {
  return db.query<{ child: string; parent: string }>(
    db.engine === 'postgres'
      ? sql`
        select child.relname::text as child, parent.relname::text as parent
        from pg_catalog.pg_constraint k
        join pg_catalog.pg_class child on child.oid = k.conrelid
        join pg_catalog.pg_class parent on parent.oid = k.confrelid
        where k.contype = 'f' and k.connamespace = current_schema()::regnamespace`
      : sql`
        select t.name as child, f."table" as parent from sqlite_schema t join pragma_foreign_key_list(t.name) f
        where t.type = 'table'`,
  )
}

function inOrder(tables: readonly Table[], references: readonly { child: string; parent: string }[]): Table[] {
  const ordered: Table[] = []
  const add = (table: Table) => {
    if (ordered.includes(table)) return
    for (const { child, parent } of references) {
      const before = child === table.name && parent !== child && tables.find(({ name }) => name === parent)
      if (before) add(before)
    }
    ordered.push(table)
  }
  for (const table of tables) add(table)
  return ordered
}

type Sequence = { tbl: string; last: number }

/** The last number given out of each table that counts its rows, also when the rows were deleted. */
export async function readSequences(db: Queryable): Promise<Sequence[]> {
  if (db.engine === 'sqlite') return db.query<Sequence>(sql`select name as tbl, seq as last from sqlite_sequence`)
  const sequences: Sequence[] = []
  for (const { tbl, seq } of await findIdentities(db)) {
    const statement = `select case when is_called then last_value else last_value - 1 end as last from ${seq}`
    const [row] = await db.query<{ last: number }>(new Sql([statement], []))
    if (row && row.last > 0) sequences.push({ tbl, last: row.last })
  }
  return sequences
}

export async function writeSequences(db: Queryable, sequences: readonly Sequence[]): Promise<void> {
  const identities = db.engine === 'postgres' ? await findIdentities(db) : []
  for (const { tbl, last } of sequences) {
    if (db.engine === 'sqlite') {
      await db.query(sql`delete from sqlite_sequence where name = ${tbl}`)
      await db.query(sql`insert into sqlite_sequence (name, seq) values (${tbl}, ${last})`)
      continue
    }
    const seq = identities.find((identity) => identity.tbl === tbl)?.seq
    if (seq === undefined) throw new Error(`The target does not number the rows of ${tbl}`)
    await db.query(sql`select setval(cast(${seq} as regclass), cast(${last} as bigint)) as last`)
  }
}

function findIdentities(db: Queryable): Promise<{ tbl: string; seq: string }[]> {
  return db.query<{ tbl: string; seq: string }>(sql`
    select table_name::text as tbl, pg_get_serial_sequence(table_name::text, column_name::text) as seq
    from information_schema.columns where table_schema = current_schema() and is_identity = 'YES'`)
}
