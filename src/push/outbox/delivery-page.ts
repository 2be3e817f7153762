import type { Queryable, Transaction } from '../../db/database.ts'
import { forUpdate } from '../../db/locking.ts'
import { isAmong, rowsOf } from '../../db/rows.ts'
import { join, type Sql, sql } from '../../db/sql.ts'
import type { ListKind, PageRequest } from '../../http/paging.ts'
import type { PushOptOut } from '../push-opt-out.ts'
import type { Platform } from '../push-provider.ts'
import type { DeliveryState } from './delivery-store.ts'

/** A delivery as operators see it. The fields of the device are null when the device was deleted. */
export type ListedDelivery = {
  notification_id: string
  device_id: string
  state: DeliveryState
  attempts: number
  last_error: string | null
  created_at: number
  updated_at: number
  subject: string | null
  platform: Platform | null
  job_id: string | null
}

/** Absent fields match every delivery. */
export interface DeliveryFilter {
  state?: DeliveryState
  user?: string
  job?: string
  notification?: string
  device?: string
}

type DeliveryKey = Pick<ListedDelivery, 'notification_id' | 'device_id'>

const ID = /^dlv_([0-9a-z]{26})([0-9a-z]{26})$/

/** A delivery has no id column: its id is made of the ids of its notification and its device, and sorts by time. */
export function deliveryIdOf({ notification_id, device_id }: DeliveryKey): string {
  return `dlv_${notification_id.slice('ntf_'.length)}${device_id.slice('dev_'.length)}`
}

export function readDeliveryId(id: string): DeliveryKey | undefined {
  const [, notification, device] = ID.exec(id) ?? []
  if (notification === undefined || device === undefined) return undefined
  return { notification_id: `ntf_${notification}`, device_id: `dev_${device}` }
}

export const DELIVERY_LIST: ListKind<readonly [string]> = {
  name: 'deliveries',
  isPosition: (value): value is [string] => value.length === 1 && typeof value[0] === 'string' && ID.test(value[0]),
}

const KEY = sql`(notification_id, device_id)`
const keyOf = ({ notification_id, device_id }: DeliveryKey) => sql`(${notification_id}, ${device_id})`
const NEWEST_FIRST = sql`order by notification_id desc, device_id desc`
/** Every delivery passes through these states, so there is no index for them. */
const COMMON_STATES: readonly DeliveryState[] = ['sent', 'pending']
const isCommon = (state: DeliveryState) => COMMON_STATES.includes(state)
/** A page by a state that no index serves reads at most this many deliveries. */
const MAX_READ = 5_000
/** More than a user can have. */
const MAX_DEVICES = 100
/** A job has one notification for each pause and one for its end. The list shows the newest of more than these. */
const MAX_NOTIFICATIONS_OF_JOB = 1_000

const DELIVERY = sql`d.notification_id, d.device_id, d.state, d.attempts, d.last_error, d.created_at, d.updated_at,
  v.subject, v.platform, n.job_id`
const WITH_DEVICE = sql`join notifications n on n.id = d.notification_id left join devices v on v.id = d.device_id`

export interface DeliveryPage {
  rows: ListedDelivery[]
  hasMore: boolean
  lastRead?: readonly [string]
}

interface KeyRange {
  /** Those of the user; undefined: all. */
  devices: readonly string[] | undefined
  isInRange: Sql
  limit: number
}

/**
 * A page of deliveries, newest first. Each filter reads an index; a user's deliveries are merged from the user's devices. A
 * list by a common state, or by a state of a user, may end a page early, and the next page continues after `lastRead`.
 */
export async function findDeliveryPage(
  db: Queryable,
  filter: DeliveryFilter,
  page: PageRequest<readonly [string]>,
): Promise<DeliveryPage> {
  const { state, user, job, notification, device } = filter
  const owned = user === undefined ? undefined : await findDeviceIds(db, user)
  const devices = device === undefined ? owned : [device].filter((id) => owned?.includes(id) ?? true)
  if (devices?.length === 0) return { rows: [], hasMore: false }
  const after = page.after === null ? undefined : readDeliveryId(page.after[0])
  const isAfter = after ? sql`${KEY} < ${keyOf(after)}` : sql`1 = 1`
  // A state of a user is looked for among the deliveries to the user's devices.
  const isOfFew = job !== undefined || notification !== undefined
  const isScanned = !isOfFew && state !== undefined && (devices !== undefined || isCommon(state))
  const isWaitingFew = isScanned && state === 'pending' && (await waitFew(db))
  const bound = isScanned && !isWaitingFew ? await findBound(db, devices, isAfter) : undefined
  const isInRange = bound ? sql`${isAfter} and ${KEY} >= ${keyOf(bound)}` : isAfter
  const range = { devices, isInRange, limit: page.limit + 1 }
  const select = isWaitingFew ? selectWaiting(db, range) : await selectKeys(db, filter, range)
  const keys = select === null ? [] : await db.query<DeliveryKey>(select)
  // The keys are read first: PostgreSQL would plan one statement with all the joins again each time.
  const rows = await findDeliveries(db, keys, state)
  if (keys.length > page.limit) return { rows, hasMore: true }
  return bound ? { rows, hasMore: true, lastRead: [deliveryIdOf(bound)] } : { rows, hasMore: false }
}

/** A delivery that changed its state since its key was read is left out. */
async function findDeliveries(
  db: Queryable,
  keys: readonly DeliveryKey[],
  state: DeliveryState | undefined,
): Promise<ListedDelivery[]> {
  if (keys.length === 0) return []
  const isInState = state === undefined ? sql`1 = 1` : sql`d.state = ${state}`
  const wanted = rowsOf(db.engine, keys, { notification_id: 'text', device_id: 'text' })
  // A cross join: SQLite then begins with the keys. With a plain join it may read every delivery instead.
  return db.query<ListedDelivery>(sql`
    select ${DELIVERY} from ${wanted} as k cross join deliveries d ${WITH_DEVICE}
    where d.notification_id = k.notification_id and d.device_id = k.device_id and ${isInState}
    order by d.notification_id desc, d.device_id desc`)
}

/** Whether so few deliveries wait for an attempt that all of them may be read. If many do, the newest are among them. */
async function waitFew(db: Queryable): Promise<boolean> {
  const [row] = await db.query<{ waiting: number }>(sql`
    select count(*) as waiting from (
      select 1 from deliveries where next_attempt_at is not null limit ${MAX_READ + 1}) as counted`)
  return (row?.waiting ?? 0) <= MAX_READ
}

/** All deliveries that wait for an attempt are read, at most `MAX_READ`. */
function selectWaiting(db: Queryable, { devices, isInRange, limit }: KeyRange): Sql {
  return sql`
    select notification_id, device_id from (
      select notification_id, device_id, state from deliveries where next_attempt_at is not null
      order by next_attempt_at limit ${MAX_READ}) as waiting
    where state = 'pending' and ${isAmongDevices(db, devices)} and ${isInRange} ${NEWEST_FIRST} limit ${limit}`
}

/**
 * The oldest delivery that a page may read by a state that no index serves; undefined if it may read all. The devices share
 * `MAX_READ` equally. The page ends where the first device has used its share, so that it skips no delivery of that device.
 */
async function findBound(
  db: Queryable,
  devices: readonly string[] | undefined,
  isAfter: Sql,
): Promise<DeliveryKey | undefined> {
  const scans = devices?.map((id) => sql`device_id = ${id}`) ?? [sql`1 = 1`]
  const lastOfShare = Math.floor(MAX_READ / scans.length) - 1
  const [bound] = await db.query<DeliveryKey>(
    newestOfAll(
      scans.map(
        (scan) => sql`
          select notification_id, device_id from deliveries where ${scan} and ${isAfter}
          ${NEWEST_FIRST} limit 1 offset ${lastOfShare}`,
      ),
      1,
    ),
  )
  return bound
}

/** Null: no delivery can match. */
async function selectKeys(
  db: Queryable,
  { state, job, notification }: DeliveryFilter,
  { devices, isInRange, limit }: KeyRange,
): Promise<Sql | null> {
  const isInState =
    state === undefined
      ? sql`1 = 1`
      : isCommon(state) || devices !== undefined
        ? sql`state = ${state}`
        : // Repeats the condition of the partial index: without it, neither engine uses the index.
          sql`state = ${state} and state not in ('sent', 'pending')`
  const select = (where: Sql) => sql`
    select notification_id, device_id from deliveries where ${where} and ${isInState} and ${isInRange}
    ${NEWEST_FIRST} limit ${limit}`
  if (job !== undefined || notification !== undefined) {
    const ofJob = job === undefined ? undefined : await findNotificationIds(db, job)
    const notifications =
      notification === undefined ? (ofJob ?? []) : [notification].filter((id) => ofJob?.includes(id) ?? true)
    if (notifications.length === 0) return null
    return select(sql`${isAmong(db.engine, sql`notification_id`, notifications)} and ${isAmongDevices(db, devices)}`)
  }
  if (devices === undefined) return select(sql`1 = 1`)
  return newestOfAll(
    devices.map((id) => select(sql`device_id = ${id}`)),
    limit,
  )
}

function newestOfAll(selects: readonly Sql[], limit: number): Sql {
  const each = selects.map((select) => sql`select notification_id, device_id from (${select}) as one`)
  return sql`
    select notification_id, device_id from (${join(each, ' union all ')}) as merged ${NEWEST_FIRST} limit ${limit}`
}

function isAmongDevices(db: Queryable, devices: readonly string[] | undefined): Sql {
  return devices === undefined ? sql`1 = 1` : isAmong(db.engine, sql`device_id`, devices)
}

async function findDeviceIds(db: Queryable, subject: string): Promise<string[]> {
  const rows = await db.query<{ id: string }>(
    sql`select id from devices where subject = ${subject} order by id desc limit ${MAX_DEVICES}`,
  )
  return rows.map(({ id }) => id)
}

/** The cause of a job's notification begins with the job's id. */
async function findNotificationIds(db: Queryable, jobId: string): Promise<string[]> {
  const rows = await db.query<{ id: string }>(sql`
    select id from notifications where cause > ${jobId} and cause < ${`${jobId}zzzz`} and job_id = ${jobId}
    order by id desc limit ${MAX_NOTIFICATIONS_OF_JOB}`)
  return rows.map(({ id }) => id)
}

/** A delivery, and whether it can still be sent to its device. */
type LockedDelivery = ListedDelivery & { disabled_at: number | null; is_opted_out: number }

export async function lockDelivery(
  tx: Transaction,
  { notification_id, device_id }: DeliveryKey,
  pushOptOut: PushOptOut,
): Promise<LockedDelivery | undefined> {
  const [row] = await tx.query<LockedDelivery>(sql`
    select ${DELIVERY}, v.disabled_at, case when ${pushOptOut(sql`v.subject`)} then 1 else 0 end as is_opted_out
    from deliveries d ${WITH_DEVICE}
    where d.notification_id = ${notification_id} and d.device_id = ${device_id} ${forUpdate(tx.engine, sql`d`)}`)
  return row
}

/** Queues a delivery again. Its time to live begins again too. */
export async function requeueDelivery(
  tx: Transaction,
  { notification_id, device_id }: DeliveryKey,
  atMs: number,
): Promise<void> {
  await tx.query(sql`
    update deliveries set state = 'pending', attempts = 0, next_attempt_at = ${atMs}, retrying_since = null,
      provider_message_id = null, last_error = null, created_at = ${atMs}, updated_at = ${atMs}
    where notification_id = ${notification_id} and device_id = ${device_id}`)
  tx.announce('deliveries')
}
