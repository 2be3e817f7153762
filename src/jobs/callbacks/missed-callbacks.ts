import type { Queryable } from '../../db/database.ts'
import { isAmong } from '../../db/rows.ts'
import { sql } from '../../db/sql.ts'
import { findPositionAt, readEvents } from '../../events/event-store.ts'
import { STATUSES } from '../job.ts'

const WINDOW_MS = 5 * 60_000
/** The callback of a job that a check has just ended may still arrive. */
const GRACE_MS = 10_000
/** The newest events of the window, so that the cost does not depend on the load. */
const MAX_EVENTS = 1_000

const ENDS: readonly string[] = [STATUSES.completed.event, STATUSES.failed.event]

type MissedCallbacks = {
  /** Jobs whose runs ended, were started by this service, and should have sent a callback. */
  ended: number
  /** Those whose callback did not arrive, not even after the end was known. */
  missed: number
}

/** Of jobs that ended in the last five minutes: how many did so without their callback. */
export async function countMissedCallbacks(db: Queryable, nowMs: number): Promise<MissedCallbacks> {
  const upTo = await findPositionAt(db, nowMs - GRACE_MS)
  const events = await readEvents(db, { after: upTo - MAX_EVENTS, upTo, filter: {}, limit: MAX_EVENTS })
  const ids = events.flatMap(({ type, job_id, created_at }) =>
    job_id !== null && ENDS.includes(type) && created_at >= nowMs - WINDOW_MS ? [job_id] : [],
  )
  if (ids.length === 0) return { ended: 0, missed: 0 }
  const [row] = await db.query<MissedCallbacks>(sql`
    select count(*) as ended, count(case when settled_by <> 'callback' and not exists (
      select 1 from callbacks where callbacks.job_id = jobs.id and callbacks.run_id = jobs.run_id) then 1 end) as missed
    from jobs where ${isAmong(db.engine, sql`id`, ids)} and settled_by is not null and input is not null
      and (status = 'completed' or error_code = 'run_failed')`)
  return row ?? { ended: 0, missed: 0 }
}
