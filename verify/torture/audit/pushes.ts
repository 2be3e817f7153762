import type { Database } from '../../../src/db/database.ts'
import { sql } from '../../../src/db/sql.ts'
import type { World } from '../cluster/cluster.ts'
import type { Fault, SentPush } from './observed-traffic.ts'
import { Tally } from './violation-count.ts'

/** How long a send may wait for its mark on a machine that has far too much to do. */
const UNMARKED_MS = 15_000
/** A database that is back has yet to be found again. */
const FOUND_AGAIN_MS = 5_000

export interface PushesAudit {
  tallies: Tally[]
  sent: number
  /** Sent again because a node died between sending and marking, or because the database was away for the mark. */
  repeated: { afterNode: number; afterDatabase: number }
}

type Delivery = { job_id: string; device: string; cause: string; state: string }

/** Holds what the provider took against what was to be sent: all of it, to each device under one tag. */
export async function auditPushes({ records }: World, db: Database): Promise<PushesAudit> {
  const lost = new Tally('pushes lost')
  const unasked = new Tally('pushes nobody asked for')
  const otherTags = new Tally('pushes under another tag')
  const unexplained = new Tally('pushes repeated without a kill')
  const twice = new Tally('duplicate deliveries')

  const deliveries = await db.query<Delivery>(sql`
    select n.job_id, d.token as device, n.cause, y.state from deliveries y
    join notifications n on n.id = y.notification_id join devices d on d.id = y.device_id`)
  const expected = await db.query<Delivery>(sql`
    select j.id as job_id, d.token as device, j.status as cause, '' as state
    from jobs j join devices d on d.subject = j.created_by where j.status in ('completed', 'failed')`)
  const sends = new Map<string, SentPush[]>()
  for (const push of records.pushes) {
    const name = nameOf({ jobId: push.jobId, device: push.device, status: push.status })
    sends.set(name, [...(sends.get(name) ?? []), push])
    if (push.tag !== push.jobId) otherTags.add(`${name} under the tag ${push.tag}`)
  }

  const known = new Set<string>()
  for (const { job_id, device, cause, state } of deliveries) {
    const name = nameOf({ jobId: job_id, device, status: cause.split(':').at(-1) ?? '' })
    if (known.has(name)) twice.add(name)
    known.add(name)
    if (state !== 'sent' || !sends.has(name)) lost.add(`${name} is ${state}`)
  }
  for (const { job_id, device, cause } of expected) {
    const name = nameOf({ jobId: job_id, device, status: cause })
    if (!known.has(name)) lost.add(`${name} was never to be sent`)
  }
  for (const name of sends.keys()) if (!known.has(name)) unasked.add(name)

  const repeated = { afterNode: 0, afterDatabase: 0 }
  for (const [name, pushes] of sends) {
    for (const [n, push] of pushes.slice(0, -1).entries()) {
      const causes = records.faults.filter((fault) => explains(fault, push) && fault.atMs <= (pushes[n + 1]?.atMs ?? 0))
      if (causes.length === 0) unexplained.add(name)
      else if (causes.some(({ whom }) => whom.includes(push.node))) repeated.afterNode += 1
      else repeated.afterDatabase += 1
    }
  }
  return { tallies: [lost, twice, unasked, otherTags, unexplained], sent: records.pushes.length, repeated }
}

function nameOf({ jobId, device, status }: { jobId: string; device: string; status: string }): string {
  return `${status} of ${jobId} to ${device}`
}

/** The node that sent it died before it can have marked it, or the database was away for the mark. */
function explains({ whom, atMs, untilMs }: Fault, { node, atMs: sentMs }: SentPush): boolean {
  if (sentMs < atMs - UNMARKED_MS) return false
  // What was under way to the provider when its node died arrives a moment after that.
  return whom === 'postgres' ? sentMs <= untilMs + FOUND_AGAIN_MS : whom.includes(node) && sentMs <= untilMs
}
