import type { Transaction } from '../../db/database.ts'
import { findLimits } from '../../usage/limit-store.ts'
import { limitsInForce } from '../../usage/thresholds.ts'
import { lockUsage, periodOf } from '../../usage/usage-store.ts'
import { countRuns } from '../uncommon-jobs.ts'

interface UsageCheck {
  nowMs: number
  /** The service's default. */
  defaultRuns: number | null
}

/** Before a transaction creates jobs of several owners, one by one: locks the usage of all of them in one order. */
export async function lockLimitedUsage(
  tx: Transaction,
  owners: readonly string[],
  { nowMs, defaultRuns }: UsageCheck,
): Promise<boolean> {
  const subjects = defaultRuns === null ? [...(await findLimits(tx, owners)).keys()] : owners
  if (subjects.length === 0) return false
  await lockUsage(tx, { subjects, period: periodOf(nowMs) })
  return true
}

/**
 * The limit of this month that the owner has used up; null: another job may start. Unfinished jobs count too. Otherwise an
 * owner could start any number of jobs before the first one ends. The tokens of a job are known when it has ended.
 * `counted`: `begun` leaves out the jobs that still wait for their turn or their `run_at`.
 */
export async function findSpentLimit(
  tx: Transaction,
  owner: string,
  { nowMs, defaultRuns, counted = 'accepted' }: UsageCheck & { counted?: 'accepted' | 'begun' },
): Promise<{ unit: 'runs' | 'tokens'; limit: number } | null> {
  if (!(await lockLimitedUsage(tx, [owner], { nowMs, defaultRuns }))) return null
  // Read under the lock: a change of the limits holds it too.
  const limits = limitsInForce((await findLimits(tx, [owner])).get(owner), defaultRuns)
  const used = await countRuns(tx, { createdBy: owner, period: periodOf(nowMs), counted })
  for (const unit of ['runs', 'tokens'] as const) {
    const limit = limits[unit]
    if (limit !== null && used[unit] >= limit) return { unit, limit }
  }
  return null
}
