import type { JsonText } from '../core/json/json-text.ts'
import type { Queryable, Transaction } from '../db/database.ts'
import { forUpdate } from '../db/locking.ts'
import { join, type Sql, sql } from '../db/sql.ts'
import { versionAmong } from '../db/versions.ts'
import type { PageRequest } from '../http/paging.ts'

export type ProjectRow = {
  id: string
  name: string
  description: string | null
  metadata: string
  /** Null once its creator was erased. */
  created_by: string | null
  version: number
  created_at: number
  updated_at: number
}

interface ProjectFields {
  name: string
  description: string | null
  metadata: JsonText
}

const COLUMNS = sql`id, name, description, metadata, created_by, version, created_at, updated_at`

export const FIRST_VERSION = 1

export async function insertProject(
  db: Queryable,
  project: ProjectFields & { id: string; createdBy: string; atMs: number },
): Promise<ProjectRow> {
  const { id, name, description, metadata, createdBy, atMs } = project
  const rows = await db.query<ProjectRow>(sql`
    insert into projects (${COLUMNS})
    values (${id}, ${name}, ${description}, ${metadata.text}, ${createdBy}, ${FIRST_VERSION}, ${atMs}, ${atMs})
    returning ${COLUMNS}`)
  return rows[0] as ProjectRow
}

/** Newest first. Ids sort by creation time, so a cursor stays valid while projects are inserted. */
export function findProjectPage(db: Queryable, page: PageRequest<readonly [string]>): Promise<ProjectRow[]> {
  return page.after
    ? db.query(
        sql`select ${COLUMNS} from projects where id < ${page.after[0]} order by id desc limit ${page.limit + 1}`,
      )
    : db.query(sql`select ${COLUMNS} from projects order by id desc limit ${page.limit + 1}`)
}

/** The projects that a caller created, newest first. */
export function findProjectsOf(
  db: Queryable,
  createdBy: string,
  page: PageRequest<readonly [string]>,
): Promise<ProjectRow[]> {
  const after = page.after === null ? sql`1 = 1` : sql`id < ${page.after[0]}`
  return db.query(sql`
    select ${COLUMNS} from projects where created_by = ${createdBy} and ${after}
    order by id desc limit ${page.limit + 1}`)
}

export async function countProjectsOf(db: Queryable, createdBy: string): Promise<number> {
  const [row] = await db.query<{ projects: number }>(sql`
    select count(*) as projects from projects where created_by = ${createdBy}`)
  return row?.projects ?? 0
}

export async function findProject(db: Queryable, id: string): Promise<ProjectRow | undefined> {
  const [row] = await db.query<ProjectRow>(sql`select ${COLUMNS} from projects where id = ${id}`)
  return row
}

/** Until the transaction ends, no other one changes the project. */
export async function lockProject(tx: Transaction, id: string): Promise<ProjectRow | undefined> {
  const [row] = await tx.query<ProjectRow>(
    sql`select ${COLUMNS} from projects where id = ${id} ${forUpdate(tx.engine)}`,
  )
  return row
}

export async function projectExists(db: Queryable, id: string): Promise<boolean> {
  const rows = await db.query(sql`select 1 as found from projects where id = ${id}`)
  return rows.length > 0
}

export async function updateProject(
  db: Queryable,
  change: Partial<ProjectFields> & { id: string; versions: readonly number[] | null; atMs: number },
): Promise<ProjectRow | undefined> {
  const sets: Sql[] = [sql`version = version + 1`, sql`updated_at = ${change.atMs}`]
  if (change.name !== undefined) sets.push(sql`name = ${change.name}`)
  if (change.description !== undefined) sets.push(sql`description = ${change.description}`)
  if (change.metadata !== undefined) sets.push(sql`metadata = ${change.metadata.text}`)
  const [row] = await db.query<ProjectRow>(sql`
    update projects set ${join(sets, ', ')} where id = ${change.id} and ${versionAmong(change.versions)} returning ${COLUMNS}`)
  return row
}

/** Removes a creator from a bounded number of projects; true if there may be more. */
export async function removeCreator(db: Queryable, createdBy: string, limit: number): Promise<boolean> {
  const changed = await db.query(sql`
    update projects set created_by = null, version = version + 1 where id in (
      select id from projects where created_by = ${createdBy} limit ${limit}) returning id`)
  return changed.length === limit
}

/** Returns the deleted row; undefined when no project has this id and one of these versions. */
export async function deleteProjectRow(
  db: Queryable,
  target: { id: string; versions: readonly number[] | null },
): Promise<ProjectRow | undefined> {
  const [row] = await db.query<ProjectRow>(
    sql`delete from projects where id = ${target.id} and ${versionAmong(target.versions)} returning ${COLUMNS}`,
  )
  return row
}
