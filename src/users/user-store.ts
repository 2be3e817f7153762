import type { Queryable } from '../db/database.ts'
import { isAmong } from '../db/rows.ts'
import { join, type Sql, sql } from '../db/sql.ts'
import { versionAmong } from '../db/versions.ts'
import type { PageRequest } from '../http/paging.ts'
import type { UserChange } from './user-schema.ts'

export type UserRow = {
  sub: string
  email: string | null
  display_name: string | null
  avatar_url: string | null
  locale: string | null
  time_zone: string | null
  push_enabled: number
  version: number
  created_at: number
  updated_at: number
  last_seen_at: number
}

const COLUMNS = sql`sub, email, display_name, avatar_url, locale, time_zone, push_enabled, version,
  created_at, updated_at, last_seen_at`

/** Creates the profile, or updates its email and `last_seen_at`. A token without an email keeps the stored one. */
export async function upsertUser(
  db: Queryable,
  user: { sub: string; email: string | null; atMs: number },
): Promise<void> {
  await db.query(sql`
    insert into users (${COLUMNS})
    values (${user.sub}, ${user.email}, null, null, null, null, 1, 1, ${user.atMs}, ${user.atMs}, ${user.atMs})
    on conflict (sub) do update set email = coalesce(excluded.email, users.email), last_seen_at = excluded.last_seen_at`)
}

export async function updateLastSeen(db: Queryable, subs: readonly string[], atMs: number): Promise<void> {
  await db.query(sql`update users set last_seen_at = ${atMs} where ${isAmong(db.engine, sql`sub`, subs)}`)
}

/** A SQL condition: this user turned push off. A subject without a profile did not. */
export function hasPushTurnedOff(sub: Sql): Sql {
  return sql`exists (select 1 from users where users.sub = ${sub} and users.push_enabled = 0)`
}

export function findUserPage(db: Queryable, page: PageRequest<readonly [number, string]>): Promise<UserRow[]> {
  const end = sql`order by created_at desc, sub desc limit ${page.limit + 1}`
  return page.after
    ? db.query(sql`select ${COLUMNS} from users where (created_at, sub) < (${page.after[0]}, ${page.after[1]}) ${end}`)
    : db.query(sql`select ${COLUMNS} from users ${end}`)
}

export async function findUser(db: Queryable, sub: string): Promise<UserRow | undefined> {
  const [row] = await db.query<UserRow>(sql`select ${COLUMNS} from users where sub = ${sub}`)
  return row
}

export async function updateUser(
  db: Queryable,
  target: { sub: string; versions: readonly number[] | null; atMs: number },
  change: UserChange,
): Promise<UserRow | undefined> {
  const sets: Sql[] = [sql`version = version + 1`, sql`updated_at = ${target.atMs}`]
  if (change.display_name !== undefined) sets.push(sql`display_name = ${change.display_name}`)
  if (change.avatar_url !== undefined) sets.push(sql`avatar_url = ${change.avatar_url}`)
  if (change.locale !== undefined) sets.push(sql`locale = ${change.locale}`)
  if (change.time_zone !== undefined) sets.push(sql`time_zone = ${change.time_zone}`)
  if (change.push_enabled !== undefined) sets.push(sql`push_enabled = ${change.push_enabled ? 1 : 0}`)
  const [row] = await db.query<UserRow>(sql`
    update users set ${join(sets, ', ')}
    where sub = ${target.sub} and ${versionAmong(target.versions)} returning ${COLUMNS}`)
  return row
}
