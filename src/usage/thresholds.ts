import type { Transaction } from '../db/database.ts'
import { findLimits, sumUsage, type UsageLimits, writeThresholds } from './limit-store.ts'

/** The percentages of a limit that are announced to its owner, each at most once a month. */
export const THRESHOLDS = [80, 100] as const
export type Threshold = (typeof THRESHOLDS)[number]

/** The limits that apply: those of the caller, else the service's default. */
export function limitsInForce(own: UsageLimits | undefined, defaultRuns: number | null): UsageLimits {
  return { runs: own?.runs ?? defaultRuns, tokens: own?.tokens ?? null }
}

interface Reached {
  subject: string
  threshold: Threshold
  used: { runs: number; tokens: number }
  limits: UsageLimits
}

/**
 * The events of the thresholds that these callers have reached and that were not announced in this period. Call it after
 * the change of their usage or limits, and append the events, all in one transaction. For callers without limits it only
 * reads that there are none.
 */
export async function reachThresholds(
  tx: Transaction,
  wanted: { subjects: readonly string[]; period: string; defaultRuns: number | null; atMs: number },
) {
  const { period, defaultRuns, atMs } = wanted
  const own = await findLimits(tx, wanted.subjects)
  const limited = wanted.subjects
    .map((subject) => ({ subject, limits: limitsInForce(own.get(subject), defaultRuns) }))
    .filter(({ limits }) => limits.runs !== null || limits.tokens !== null)
  if (limited.length === 0) return []
  const subjects = limited.map(({ subject }) => subject)
  const announced = await writeThresholds(
    tx,
    subjects.map((subject) => ({ subject, period, reached: 0 })),
  )
  const usage = await sumUsage(tx, { subjects, period })
  const reached = limited.flatMap(({ subject, limits }): Reached[] => {
    const used = usage.get(subject) ?? { runs: 0, tokens: 0 }
    const isNew = (threshold: number) => threshold > (announced.get(subject) ?? 0)
    const due = THRESHOLDS.filter((threshold) => isNew(threshold) && isReached(threshold, used, limits))
    return due.map((threshold) => ({ subject, threshold, used, limits }))
  })
  if (reached.length === 0) return []
  // Of several thresholds of one caller, the highest is the last.
  const highest = new Map(reached.map(({ subject, threshold }) => [subject, { subject, period, reached: threshold }]))
  await writeThresholds(tx, [...highest.values()])
  return reached.map((one) => toEvent(one, { period, atMs }))
}

/** The first limit that is used up counts: from then on starts are refused. */
function isReached(threshold: number, used: Reached['used'], limits: UsageLimits): boolean {
  const isUsed = (amount: number, limit: number | null) => limit !== null && amount * 100 >= limit * threshold
  return isUsed(used.runs, limits.runs) || isUsed(used.tokens, limits.tokens)
}

function toEvent({ subject, threshold, used, limits }: Reached, { period, atMs }: { period: string; atMs: number }) {
  const data = {
    sub: subject,
    period,
    threshold,
    runs: { used: used.runs, limit: limits.runs },
    tokens: { used: used.tokens, limit: limits.tokens },
  }
  return {
    subject,
    job_id: null,
    type: 'usage.threshold' as const,
    cause: `usage:${period}:${threshold}:${subject}`,
    data: JSON.stringify(data),
    created_at: atMs,
  }
}
