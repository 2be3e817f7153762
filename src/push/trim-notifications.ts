import { firstIdAt } from '../core/ids.ts'
import type { Database, Transaction } from '../db/database.ts'
import { forUpdate } from '../db/locking.ts'
import { isAmong, rowsOf } from '../db/rows.ts'
import { type Sql, sql } from '../db/sql.ts'
import { type TrimmedPage, type TrimRange, trimPage } from '../db/trim-page.ts'
import { deleteAnswersAt } from '../http/idempotency-store.ts'

/** Which of these jobs ended before this time. */
type EndedBefore = (tx: Transaction, jobIds: readonly string[], beforeMs: number) => Promise<ReadonlySet<string>>

/**
 * Deletes one page of old notifications with their deliveries. A notification stays if its job ended too recently, or if
 * one of its deliveries may still be sent.
 */
export function trimNotifications(
  db: Database,
  range: TrimRange,
  endedBefore: EndedBefore,
): Promise<TrimmedPage | null> {
  return trimPage(db, range, {
    lock: 'history:notifications',
    find: (tx) => findOldNotifications(tx, range, endedBefore),
    remove: deleteWithDeliveries,
  })
}

async function findOldNotifications(
  tx: Transaction,
  { after, beforeMs, nowMs, limit }: TrimRange,
  endedBefore: EndedBefore,
): Promise<{ id: string; deletable: boolean }[]> {
  // A delivery may still be sent when it has a next attempt, or is parked and has not expired. Cast, because the product
  // would overflow 32 bits.
  const rows = await tx.query<{ id: string; job_id: string | null; unsent: number }>(sql`
    select n.id, n.job_id, case when exists (
        select 1 from deliveries d where d.notification_id = n.id and (d.next_attempt_at is not null
          or (d.state = 'no_credentials' and n.created_at + n.ttl_seconds * cast(1000 as bigint) > ${nowMs})))
      then 1 else 0 end as unsent
    from notifications n
    where n.id > ${after} and n.id < ${firstIdAt('ntf', beforeMs)} order by n.id limit ${limit}`)
  const jobIds = new Set(rows.flatMap(({ job_id }) => (job_id === null ? [] : [job_id])))
  const ended = await endedBefore(tx, [...jobIds], beforeMs)
  return rows.map(({ id, job_id, unsent }) => ({
    id,
    deletable: unsent === 0 && (job_id === null || ended.has(job_id)),
  }))
}

async function deleteWithDeliveries(tx: Transaction, ids: readonly { id: string }[]): Promise<number> {
  const wanted = sql`(select id from ${rowsOf(tx.engine, ids, { id: 'text' })} as r)`
  // An erasure locks the notifications before their deliveries, too.
  await tx.query(sql`select id from notifications where id in ${wanted} order by id ${forUpdate(tx.engine)}`)
  // A parked delivery that another node has just made due again will be sent: it stays, and its notification too.
  await tx.query(sql`delete from deliveries where notification_id in ${wanted} and next_attempt_at is null`)
  const deleted = await tx.query(sql`
    delete from notifications where id in ${wanted}
      and not exists (select 1 from deliveries d where d.notification_id = notifications.id)
    returning id`)
  return deleted.length
}

/** A deleted delivery that was sent, or given up. */
export type DeletedMark = { state: string; updated_at: number }

/** Deletes a bounded number of notifications about these jobs, also unsent ones. */
export async function deleteNotificationsOf(
  tx: Transaction,
  jobIds: readonly string[],
  limit: number,
): Promise<{ hasMore: boolean; marks?: DeletedMark[] }> {
  // The cause of a job's notification begins with the job's id, in every collation before this end: digits sort first.
  const jobs = rowsOf(
    tx.engine,
    jobIds.map((id) => ({ id })),
    { id: 'text' },
  )
  const rows = await tx.query<{ id: string }>(sql`
    select n.id from ${jobs} as r
    join notifications n on n.job_id = r.id and n.cause > r.id and n.cause < r.id || 'zzzz' limit ${limit}`)
  const ids = rows.map(({ id }) => id)
  if (ids.length === 0) return { hasMore: false }
  const deliveries = await tx.query<DeletedMark>(sql`
    delete from deliveries where ${isAmong(tx.engine, sql`notification_id`, ids)} returning state, updated_at`)
  await tx.query(sql`delete from notifications where ${isAmong(tx.engine, sql`id`, ids)}`)
  return { hasMore: ids.length === limit, marks: deliveries.filter(({ state }) => state !== 'pending') }
}

/**
 * Deletes a bounded number of a user's devices, of the deliveries to them, and of the notifications that are for no other
 * user. What the user sent as an admin stays without its sender. True if it erased anything: there may be more, and this
 * transaction must lock no job any more, because the deletion of a job locks the job before its notifications.
 */
export async function eraseDevicesAndNotifications(tx: Transaction, subject: string, limit: number): Promise<boolean> {
  const sent = await tx.query(sql`
    update notifications set created_by = null where id in (
      select id from notifications where created_by = ${subject} limit ${limit}) returning id`)
  if (await eraseAddressed(tx, subject, limit)) return true
  const devices = sql`select id from devices where subject = ${subject} order by id limit ${limit}`
  const deliveries = await deleteSomeDeliveries(tx, sql`device_id in (${devices})`, limit)
  await deleteUnlessForOthers(tx, deliveries, subject)
  if (deliveries.length === limit) return true
  const deleted = await tx.query(sql`delete from devices where id in (${devices}) returning id`)
  return deleted.length > 0 || sent.length > 0
}

/** The same for the notifications addressed to the user, whose devices may have been deleted since. */
async function eraseAddressed(tx: Transaction, subject: string, limit: number): Promise<boolean> {
  // Locked: of two recipients who are erased at the same time, the second one must see that the first one is gone.
  const addressed = await tx.query<{ id: string }>(sql`
    select id from notifications where id in (
      select notification_id from notification_recipients where subject = ${subject} order by notification_id limit ${limit})
    order by id ${forUpdate(tx.engine)}`)
  if (addressed.length === 0) return false
  const among = isAmong(tx.engine, sql`id`, idsOf(addressed))
  const own = await tx.query<{ id: string }>(
    sql`select id from notifications where ${among} and ${isForNoOther(subject)}`,
  )
  const isOfOwn = isAmong(tx.engine, sql`notification_id`, idsOf(own))
  if ((await deleteSomeDeliveries(tx, isOfOwn, limit)).length === limit) return true
  await deleteUnlessForOthers(tx, idsOf(own), subject)
  await tx.query(sql`
    delete from notification_recipients
    where subject = ${subject} and ${isAmong(tx.engine, sql`notification_id`, idsOf(addressed))}`)
  return true
}

function idsOf(rows: readonly { id: string }[]): string[] {
  return rows.map(({ id }) => id)
}

/** Answers with the notification of each deleted delivery. */
async function deleteSomeDeliveries(tx: Transaction, which: Sql, limit: number): Promise<string[]> {
  const deleted = await tx.query<{ id: string }>(sql`
    delete from deliveries where (notification_id, device_id) in (
      select notification_id, device_id from deliveries where ${which} limit ${limit})
    returning notification_id as id`)
  return idsOf(deleted)
}

/** A condition on a notification: no user but this one is its recipient. */
function isForNoOther(subject: string): Sql {
  return sql`not exists (
    select 1 from notification_recipients r where r.notification_id = notifications.id and r.subject <> ${subject})`
}

/** Deletes the notifications that have no other recipient and no delivery left, with the answers kept for their senders. */
async function deleteUnlessForOthers(tx: Transaction, ids: readonly string[], subject: string): Promise<void> {
  const deleted = await tx.query<{ id: string }>(sql`
    delete from notifications where ${isAmong(tx.engine, sql`id`, ids)} and ${isForNoOther(subject)}
      and not exists (select 1 from deliveries d where d.notification_id = notifications.id)
    returning id`)
  await deleteAnswersAt(
    tx,
    deleted.map(({ id }) => `/v1/notifications/${id}`),
  )
}
