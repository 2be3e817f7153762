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
  blocked_at: number | null
}

const COLUMNS = sql`sub, email, display_name, avatar_url, locale, time_zone, push_enabled, version,
  created_at, updated_at, last_seen_at`

const SHOWN = sql`${COLUMNS}, (select s.blocked_at from user_states s where s.sub = users.sub) as blocked_at`

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

/** A SQL condition: this user turned push off. False for a subject without a profile. */
export function hasPushTurnedOff(sub: Sql): Sql {
  return sql`exists (select 1 from users where users.sub = ${sub} and users.push_enabled = 0)`
}

export function findUserPage(db: Queryable, page: PageRequest<readonly [number, string]>): Promise<UserRow[]> {
  const end = sql`order by created_at desc, sub desc limit ${page.limit + 1}`
  return page.after
    ? db.query(sql`select ${SHOWN} from users where (created_at, sub) < (${page.after[0]}, ${page.after[1]}) ${end}`)
    : db.query(sql`select ${SHOWN} from users ${end}`)
}

/** A user that a search found, and its place among what it found. */
type FoundUser = UserRow & { place: UserPlace }
/** First the users whose `sub` begins so, then those whose e-mail address does: `['email', address, sub]`. */
export type UserPlace = readonly ['sub' | 'email', string, string]

/** The users whose `sub` or e-mail address begins with a text. Upper and lower case of an address are the same. */
export async function searchUsers(
  db: Queryable,
  { text, limit, after }: PageRequest<UserPlace> & { text: string },
): Promise<FoundUser[]> {
  const sub = inOrder(db, sql`sub`)
  const email = inOrder(db, sql`lower(email)`)
  const bySub = beginsWith(sub, text)
  const found: FoundUser[] = []
  if (after === null || after[0] === 'sub') {
    const rows = await db.query<UserRow>(sql`
      select ${SHOWN} from users where ${bySub} and ${sub} > ${after?.[2] ?? ''} order by ${sub} limit ${limit + 1}`)
    found.push(...rows.map((row) => ({ ...row, place: ['sub', '', row.sub] as const })))
  }
  if (found.length > limit) return found
  const start = after?.[0] === 'email' ? sql`(${email}, ${sub}) > (${after[1]}, ${after[2]})` : sql`1 = 1`
  const rows = await db.query<UserRow & { address: string }>(sql`
    select ${SHOWN}, lower(email) as address from users
    where email is not null and ${beginsWith(email, text.toLowerCase())} and not (${bySub}) and ${start}
    order by ${email}, ${sub} limit ${limit + 1 - found.length}`)
  found.push(...rows.map(({ address, ...row }) => ({ ...row, place: ['email', address, row.sub] as const })))
  return found
}

/** In the order of the search's indexes: by code points. */
function inOrder(db: Queryable, column: Sql): Sql {
  return db.engine === 'postgres' ? sql`(${column} collate "C")` : column
}

function beginsWith(column: Sql, text: string): Sql {
  return sql`${column} >= ${text} and ${column} < ${`${text}\u{10FFFF}`}`
}

export async function findUser(db: Queryable, sub: string): Promise<UserRow | undefined> {
  const [row] = await db.query<UserRow>(sql`select ${SHOWN} from users where sub = ${sub}`)
  return row
}

export async function deleteUser(db: Queryable, sub: string): Promise<void> {
  await db.query(sql`delete from users where sub = ${sub}`)
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
    where sub = ${target.sub} and ${versionAmong(target.versions)} returning ${SHOWN}`)
  return row
}
