import type { Database } from '../../../src/db/database.ts'
import { sql } from '../../../src/db/sql.ts'
import type { EventFollower } from '../workload/event-follower.ts'
import { ViolationCount } from './violation-count.ts'

/** Checks that each follower saw all events of its user, once and in order. */
export async function auditStreams(followers: readonly EventFollower[], db: Database): Promise<ViolationCount[]> {
  const gaps = new ViolationCount('stream gaps')
  const repeats = new ViolationCount('stream repeats')
  for (const { subject, seen, resets } of followers) {
    const rows = await db.query<{ seq: number }>(sql`select seq from events where subject = ${subject} order by seq`)
    const got = new Set(seen)
    for (const { seq } of rows) if (!got.has(seq)) gaps.add(`${subject} never saw event ${seq}`)
    for (let n = 0; n < resets; n++) gaps.add(`${subject} got a reset: some events are missing`)
    seen.forEach((seq, n) => {
      if (n > 0 && seq <= (seen[n - 1] ?? 0)) repeats.add(`${subject} saw event ${seq} after ${seen[n - 1]}`)
    })
  }
  return [gaps, repeats]
}

/** Whether every follower has seen the last event of its user. */
export async function areCaughtUp(followers: readonly EventFollower[], db: Database): Promise<boolean> {
  const rows = await db.query<{ subject: string; last: number }>(
    sql`select subject, max(seq) as last from events where subject is not null group by subject`,
  )
  const lastOf = new Map(rows.map(({ subject, last }) => [subject, last]))
  return followers.every(({ subject, seen }) => (seen.at(-1) ?? 0) >= (lastOf.get(subject) ?? 0))
}
