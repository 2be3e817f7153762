import type { Database, Queryable, Transaction } from '../../db/database.ts'
import { forUpdateSkipLocked } from '../../db/locking.ts'
import { isAmong } from '../../db/rows.ts'
import { join, type Sql, sql } from '../../db/sql.ts'
import { ownerOf } from '../check-store.ts'
import { type JobType, type JobTypes, limitedTypeOf } from '../job-types.ts'
import { findOwners } from './lease-in-turn.ts'

/** A type that limits how many of its runs, or of each owner's, are active at once, over all nodes. */
export type LimitedType = Pick<JobType, 'name' | 'maxRunning' | 'maxRunningPerOwner'>

export function limitedTypes(types: JobTypes): LimitedType[] {
  return [...types.values()].filter((type) => limitedTypeOf(type) !== null)
}

/** One statement releases jobs of at most this many owners. */
const MAX_OWNERS = 32
/** One statement releases at most this many jobs of a type that limits only each owner. */
const MAX_GIVEN = 1_000

/** Until the transaction ends, no other transaction can assign places of this type. */
function lockPlaces(tx: Transaction, name: string): Promise<boolean> {
  return tx.tryLock(`places:${name}`)
}

function isActive(name: string): Sql {
  return sql`limited_type = ${name} and limited_type is not null and queued_at is null`
}

async function countFree(tx: Queryable, { name, maxRunning }: LimitedType): Promise<number> {
  if (maxRunning === null) return MAX_GIVEN
  const [row] = await tx.query<{ active: number }>(sql`
    select count(*) as active from (
      select 1 from job_checks where ${isActive(name)} limit ${maxRunning}) as active`)
  return maxRunning - (row?.active ?? 0)
}

/** How many more runs of an owner may be active. */
async function countFreeOf(
  tx: Queryable,
  type: LimitedType,
  owners: readonly string[],
): Promise<(of: string) => number> {
  const { name, maxRunningPerOwner: limit } = type
  if (limit === null) return () => Number.POSITIVE_INFINITY
  const rows = await tx.query<{ owner: string; active: number }>(sql`
    select owner, count(*) as active from job_checks
    where ${isActive(name)} and ${isAmong(tx.engine, sql`owner`, owners)} group by owner`)
  const active = new Map(rows.map((row) => [row.owner, row.active]))
  return (owner) => Math.max(0, limit - (active.get(owner) ?? 0))
}

async function hasQueued(db: Queryable, name: string, among = sql`1 = 1`): Promise<boolean> {
  const [row] = await db.query<{ queued: number }>(sql`
    select 1 as queued from job_checks where limited_type = ${name} and queued_at is not null and ${among} limit 1`)
  return row !== undefined
}

/**
 * Whether a new run of this type and owner may be active. If other jobs already wait for a place, a new job waits behind
 * them; where only each owner is limited, behind those of its owner.
 */
export async function takesPlace(tx: Transaction, type: JobType, createdBy: string | null): Promise<boolean> {
  if (limitedTypeOf(type) === null) return true
  const { name, maxRunning } = type
  const owner = ownerOf(createdBy)
  const inTheWay = maxRunning === null ? sql`owner = ${owner}` : undefined
  if (!(await lockPlaces(tx, name)) || (await hasQueued(tx, name, inTheWay))) return false
  const freeOf = await countFreeOf(tx, type, [owner])
  return freeOf(owner) > 0 && (await countFree(tx, type)) > 0
}

interface GivenPlaces {
  /** Whether jobs still wait. */
  areWanted: boolean
  /** The last owner that had its turn. */
  last: string | null
}

/**
 * Gives free places to waiting jobs, in turn by owner: the owner after the last one is first. Often only one place is free,
 * so that without this the first owner would get every place.
 */
export async function givePlaces(
  db: Database,
  type: LimitedType,
  { nowMs, after }: { nowMs: number; after: string | null },
): Promise<GivenPlaces> {
  const { name, maxRunningPerOwner: limit } = type
  return db.transaction(async (tx) => {
    if (!(await lockPlaces(tx, name))) return { areWanted: true, last: after }
    const free = await countFree(tx, type)
    if (free <= 0) return { areWanted: true, last: after }
    const among = sql`limited_type = ${name} and queued_at is not null`
    const activeOf = (owner: Sql) => sql`(select count(*) from job_checks where ${isActive(name)} and owner = ${owner})`
    const { owners, last } = await findOwners(tx, {
      among,
      having: (owner) => (limit === null ? sql`1 = 1` : sql`${activeOf(owner)} < ${limit}`),
      after,
      limit: Math.min(free, MAX_OWNERS),
    })
    const share = Math.ceil(free / Math.max(owners.length, 1))
    const freeOf = await countFreeOf(tx, type, owners)
    const shares = owners.map(
      (owner) => sql`select job_id from (
        select job_id from job_checks where ${among} and owner = ${owner} order by queued_at
        limit ${Math.min(share, freeOf(owner))}
        ${forUpdateSkipLocked(tx.engine)}) as share`,
    )
    if (shares.length === 0) return { areWanted: limit !== null, last }
    await tx.query(sql`
      update job_checks set queued_at = null, due_at = ${nowMs} where job_id in (
        select job_id from (${join(shares, ' union all ')}) as shares limit ${free})`)
    return { areWanted: await hasQueued(tx, name), last }
  })
}

/**
 * Called at startup: makes jobs due that wait although their type no longer has a limit. Returns whether some are left,
 * because another transaction has locked them.
 */
export async function releaseUnlimited(db: Database, types: readonly LimitedType[], nowMs: number): Promise<boolean> {
  const names = types.map(({ name }) => name)
  const isReleased = sql`queued_at is not null and not (${isAmong(db.engine, sql`limited_type`, names)})`
  const areLeft = async () =>
    (await db.query(sql`select 1 as queued from job_checks where ${isReleased} limit 1`)).length > 0
  if (!(await areLeft())) return false
  await db.query(sql`
    update job_checks set queued_at = null, due_at = ${nowMs} where job_id in (
      select job_id from job_checks where ${isReleased} ${forUpdateSkipLocked(db.engine)})`)
  return await areLeft()
}
