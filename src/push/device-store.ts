import { hash } from 'node:crypto'
import type { Queryable } from '../db/database.ts'
import { type Sql, sql } from '../db/sql.ts'
import type { PageRequest } from '../http/paging.ts'
import type { Platform } from './push-message.ts'

export type DeviceRow = {
  id: string
  subject: string
  token: string
  platform: Platform
  created_at: number
  last_seen_at: number
  disabled_at: number | null
  disabled_reason: string | null
}

const COLUMNS = sql`id, subject, token, platform, created_at, last_seen_at, disabled_at, disabled_reason`

/**
 * A token belongs to one device: registered again it is refreshed and live again. Registered by another user it becomes a
 * device of that user's, with an id of its own, so that nothing still on its way to the former owner reaches the new one.
 */
export async function upsertDevice(
  db: Queryable,
  device: { id: string; subject: string; token: string; platform: Platform; atMs: number },
): Promise<DeviceRow> {
  const { id, subject, token, platform, atMs } = device
  const [row] = await db.query<DeviceRow>(sql`
    insert into devices (${COLUMNS}, token_hash)
    values (${id}, ${subject}, ${token}, ${platform}, ${atMs}, ${atMs}, null, null, ${hash('sha256', token)})
    on conflict (token_hash) do update set
      id = case when devices.subject = excluded.subject then devices.id else excluded.id end,
      created_at = case when devices.subject = excluded.subject then devices.created_at else excluded.created_at end,
      subject = excluded.subject, platform = excluded.platform, disabled_at = null, disabled_reason = null,
      called_dead_at = null, last_seen_at = case
        when excluded.last_seen_at > devices.last_seen_at then excluded.last_seen_at else devices.last_seen_at + 1 end
    returning ${COLUMNS}`)
  return row as DeviceRow
}

/** Far more than anybody has: every one of them is another push for each job that ends. */
const MAX_PER_SUBJECT = 50
/** Whoever has far too many, from before there was a limit, loses them over a few registrations. */
const MAX_DROPPED = 500

/** Room for one that has just registered: those that cannot be reached go first, then those not seen for longest. */
export async function dropSurplusDevices(
  db: Queryable,
  { id, subject }: { id: string; subject: string },
): Promise<void> {
  await db.query(sql`
    delete from devices where id in (
      select id from devices where subject = ${subject} and id <> ${id}
      order by case when disabled_at is null then 0 else 1 end, last_seen_at desc, id desc
      limit ${MAX_DROPPED} offset ${MAX_PER_SUBJECT - 1})`)
}

/** Whether the device `d` is worth sending to at that time: the provider forgets an Android device after 270 idle days. */
export function isLive(at: Sql): Sql {
  return sql`d.disabled_at is null and (d.platform <> 'android' or d.last_seen_at > ${at} - 23328000000)`
}

export function listDevices(
  db: Queryable,
  subject: string,
  page: PageRequest<readonly [string]>,
): Promise<DeviceRow[]> {
  const after = page.after === null ? sql`1 = 1` : sql`id < ${page.after[0]}`
  return db.query<DeviceRow>(sql`
    select ${COLUMNS} from devices where subject = ${subject} and ${after} order by id desc limit ${page.limit + 1}`)
}

export async function findDevice(
  db: Queryable,
  { id, subject }: { id: string; subject: string },
): Promise<DeviceRow | undefined> {
  const [row] = await db.query<DeviceRow>(sql`select ${COLUMNS} from devices where id = ${id} and subject = ${subject}`)
  return row
}

export async function deleteDevice(db: Queryable, { id, subject }: { id: string; subject: string }): Promise<boolean> {
  const rows = await db.query(sql`delete from devices where id = ${id} and subject = ${subject} returning id`)
  return rows.length > 0
}
