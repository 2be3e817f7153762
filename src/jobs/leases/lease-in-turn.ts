import type { Database, Queryable } from '../../db/database.ts'
import { forUpdateSkipLocked } from '../../db/locking.ts'
import { join, type Sql, sql } from '../../db/sql.ts'
import { findLeased, isWanted, type Lease, type LeasedJob, leaseDueJobs, leaseFields } from './lease-store.ts'

/** One statement leases jobs of at most this many owners. */
const MAX_OWNERS = 32
/** One statement skips at most this many owners without a due job. */
const MAX_PASSED = 200
/** A search ends after this many statements. The next search continues there. */
const MAX_STATEMENTS = 10

/**
 * Leases due jobs. When there are more than the limit, they are taken in turn by owner: each owner gets an equal share, and
 * the next call continues with the next owner. So the many jobs of one owner do not delay those of another.
 */
export class TurnsByOwner {
  /** The last owner that had its turn. */
  #after: string | null = null

  async lease(db: Database, limit: number, lease: Lease): Promise<LeasedJob[]> {
    // The runtime is not asked about them, so they are quick.
    if (lease.only === 'questions') return leaseDueJobs(db, limit, lease)
    const [due] = await db.query<{ jobs: number }>(sql`
      select count(*) as jobs from (
        select 1 from job_checks where due_at <= ${lease.nowMs} and ${isWanted(lease)} limit ${limit + 1}) as due`)
    const jobs = due?.jobs ?? 0
    if (jobs <= limit) return jobs === 0 ? [] : leaseDueJobs(db, limit, lease)
    const leased = await this.#leaseShares(db, limit, lease)
    const rest = limit - leased.length
    return rest > 0 ? [...leased, ...(await leaseDueJobs(db, rest, lease))] : leased
  }

  async #leaseShares(db: Database, limit: number, lease: Lease): Promise<LeasedJob[]> {
    const isDue = (owner: Sql) => sql`owner = ${owner} and due_at <= ${lease.nowMs}`
    const { owners, last } = await findOwners(db, {
      among: sql`1 = 1`,
      having: (owner) => sql`exists (select 1 from job_checks where ${isDue(owner)})`,
      after: this.#after,
      limit: Math.min(limit, MAX_OWNERS),
    })
    this.#after = last
    if (owners.length === 0) return []
    const share = Math.ceil(limit / owners.length)
    const shares = owners.map(
      (owner) => sql`select job_id from (
        select job_id from job_checks where ${isDue(sql`${owner}`)} and ${isWanted(lease)}
        order by due_at limit ${share} ${forUpdateSkipLocked(db.engine)}) as share`,
    )
    // Materialized: PostgreSQL might otherwise run a select more than once, and lease more than its limit.
    const leased = await db.query<{ job_id: string }>(sql`
      with due as materialized (select job_id from (${join(shares, ' union all ')}) as shares limit ${limit})
      update job_checks set ${leaseFields(lease)} where job_id in (select job_id from due) returning job_id`)
    return findLeased(db, leased, lease)
  }
}

interface OwnerSearch {
  /** A condition that an index (with the owner) can serve. */
  among: Sql
  having: (owner: Sql) => Sql
  after: string | null
  limit: number
}

interface FoundOwners {
  owners: string[]
  /** The owner after which the next search continues. */
  last: string | null
}

/** The next owners after the last one, wrapping around to the first. Each owner costs two index lookups. */
export async function findOwners(db: Queryable, search: OwnerSearch): Promise<FoundOwners> {
  const { after, limit } = search
  const owners: string[] = []
  let last = after
  let isSecondHalf = after === null
  for (let n = 0; n < MAX_STATEMENTS && owners.length < limit; n++) {
    // On SQLite each statement holds the event loop.
    if (n > 0) await new Promise(setImmediate)
    const from = last === null ? sql`owner >= ''` : sql`owner > ${last}`
    const upTo = isSecondHalf && after !== null ? sql`owner <= ${after}` : sql`1 = 1`
    const found = await ownersFrom(db, { ...search, limit: limit - owners.length }, { from, upTo })
    owners.push(...found.owners)
    last = found.last ?? last
    if (found.isEnd && owners.length < limit) {
      if (isSecondHalf) break
      isSecondHalf = true
      last = null
    }
  }
  return { owners, last }
}

async function ownersFrom(
  db: Queryable,
  { among, having, limit }: OwnerSearch,
  { from, upTo }: { from: Sql; upTo: Sql },
): Promise<FoundOwners & { isEnd: boolean }> {
  // With a second lower bound, SQLite would read every row from the first one on.
  const next = (lower: Sql) => sql`(select min(owner) from job_checks where ${among} and ${lower} and ${upTo})`
  const passed = await db.query<{ next_owner: string; wanted: number }>(sql`
    with recursive owners (next_owner, place) as (
      select ${next(from)}, 1
      union all
      select ${next(sql`owner > next_owner`)}, place + 1 from owners
      where next_owner is not null and place < ${MAX_PASSED})
    select next_owner, case when ${having(sql`next_owner`)} then 1 else 0 end as wanted from owners
    where next_owner is not null order by place`)
  const wanted = passed.filter((owner) => owner.wanted === 1).slice(0, limit)
  const last = wanted.length === limit ? wanted.at(-1) : passed.at(-1)
  return {
    owners: wanted.map(({ next_owner }) => next_owner),
    last: last?.next_owner ?? null,
    isEnd: passed.length < MAX_PASSED,
  }
}
