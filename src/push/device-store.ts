import { hash } from 'node:crypto'
import type { Queryable } from '../db/database.ts'
import { join, type Sql, sql } from '../db/sql.ts'
import type { PageRequest } from '../http/paging.ts'
import { PUSH_PROVIDERS } from './provider-registry.ts'
import type { Platform } from './push-provider.ts'

export type DeviceRow = {
  id: string
  subject: string
  token: string
  platform: Platform
  /** The name of the push provider that reaches the device. */
  provider: string
  created_at: number
  last_seen_at: number
  disabled_at: number | null
  disabled_reason: string | null
}

const COLUMNS = sql`id, subject, token, platform, provider, created_at, last_seen_at, disabled_at, disabled_reason`

/**
 * A token belongs to one device. Registering it again refreshes and enables the device. When another user registers it,
 * it becomes that user's device under a new id, so that pending deliveries to the former owner do not reach the new one.
 */
export async function upsertDevice(
  db: Queryable,
  device: Pick<DeviceRow, 'id' | 'subject' | 'token' | 'platform' | 'provider'> & { atMs: number },
): Promise<DeviceRow> {
  const { id, subject, token, platform, provider, atMs } = device
  const [row] = await db.query<DeviceRow>(sql`
    insert into devices (${COLUMNS}, token_hash)
    values (${id}, ${subject}, ${token}, ${platform}, ${provider}, ${atMs}, ${atMs}, null, null, ${hash('sha256', token)})
    on conflict (token_hash) do update set
      id = case when devices.subject = excluded.subject then devices.id else excluded.id end,
      created_at = case when devices.subject = excluded.subject then devices.created_at else excluded.created_at end,
      subject = excluded.subject, platform = excluded.platform, provider = excluded.provider, disabled_at = null,
      disabled_reason = null, called_dead_at = null, last_seen_at = case
        when excluded.last_seen_at > devices.last_seen_at then excluded.last_seen_at else devices.last_seen_at + 1 end
    returning ${COLUMNS}`)
  return row as DeviceRow
}

/** More than a user needs. Every job that ends causes one push for each device. */
export const MAX_DEVICES = 100
/** One registration deletes at most this many. */
const MAX_DROPPED = 500

/** Deletes disabled devices beyond the limit, those not seen for longest first. Returns how many devices are left. */
export async function dropSurplusDevices(
  db: Queryable,
  { id, subject }: { id: string; subject: string },
): Promise<number> {
  await db.query(sql`
    delete from devices where disabled_at is not null and id in (
      select id from devices where subject = ${subject} and id <> ${id}
      order by case when disabled_at is null then 0 else 1 end, last_seen_at desc, id desc
      limit ${MAX_DROPPED} offset ${MAX_DEVICES - 1})`)
  const [row] = await db.query<{ devices: number }>(sql`
    select count(*) as devices from devices where subject = ${subject}`)
  return row?.devices ?? 0
}

/** Whether the device `d` can be reached at that time: not disabled, and not idle for longer than its provider allows. */
export function isReachable(at: Sql): Sql {
  const limits = PUSH_PROVIDERS.flatMap(({ name, limits: { idleDeviceMs } }) =>
    Object.entries(idleDeviceMs).map(
      ([platform, idleMs]) =>
        sql`not (d.provider = ${name} and d.platform = ${platform} and d.last_seen_at + ${idleMs} <= ${at})`,
    ),
  )
  return join([sql`d.disabled_at is null`, ...limits], ' and ')
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
