import type { Database } from '../../../src/db/database.ts'
import { sql } from '../../../src/db/sql.ts'
import type { TortureCluster } from '../cluster/cluster.ts'
import type { Fault, SentPush } from './observed-traffic.ts'
import { ViolationCount } from './violation-count.ts'

/** How long after a send its mark may be stored, on an overloaded machine. */
const UNMARKED_MS = 15_000
/** How long a node may take to reconnect to a database that is back. */
const FOUND_AGAIN_MS = 5_000

export interface PushesAudit {
  violations: ViolationCount[]
  sent: number
  /** Sent again because the node died between sending and marking, or because the database was down for the mark. */
  repeated: { afterNode: number; afterDatabase: number }
}

type Delivery = { job_id: string; device: string; cause: string; state: string }

/** Checks that the provider received every push, for each device under one tag. */
export async function auditPushes({ observed }: TortureCluster, db: Database): Promise<PushesAudit> {
  const lost = new ViolationCount('pushes lost')
  const unexpected = new ViolationCount('unexpected pushes')
  const otherTags = new ViolationCount('pushes under another tag')
  const unexplained = new ViolationCount('pushes repeated without a kill')
  const twice = new ViolationCount('duplicate deliveries')

  const deliveries = await db.query<Delivery>(sql`
    select n.job_id, d.token as device, n.cause, y.state from deliveries y
    join notifications n on n.id = y.notification_id join devices d on d.id = y.device_id`)
  const expected = await db.query<Delivery>(sql`
    select j.id as job_id, d.token as device, j.status as cause, '' as state
    from jobs j join devices d on d.subject = j.created_by where j.status in ('completed', 'failed')`)
  const sends = new Map<string, SentPush[]>()
  for (const push of observed.pushes) {
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
    if (!known.has(name)) lost.add(`${name} has no delivery`)
  }
  for (const name of sends.keys()) if (!known.has(name)) unexpected.add(name)

  const repeated = { afterNode: 0, afterDatabase: 0 }
  for (const [name, pushes] of sends) {
    for (const [n, push] of pushes.slice(0, -1).entries()) {
      const causes = observed.faults.filter(
        (fault) => explains(fault, push) && fault.atMs <= (pushes[n + 1]?.atMs ?? 0),
      )
      if (causes.length === 0) unexplained.add(name)
      else if (causes.some(({ target }) => target.includes(push.node))) repeated.afterNode += 1
      else repeated.afterDatabase += 1
    }
  }
  return { violations: [lost, twice, unexpected, otherTags, unexplained], sent: observed.pushes.length, repeated }
}

function nameOf({ jobId, device, status }: { jobId: string; device: string; status: string }): string {
  return `${status} of ${jobId} to ${device}`
}

/** Whether the fault explains that the push was sent again: its node died before it could mark it, or the database was down. */
function explains({ target, atMs, untilMs }: Fault, { node, atMs: sentMs }: SentPush): boolean {
  if (sentMs < atMs - UNMARKED_MS) return false
  // A message in flight when its node dies arrives a moment later.
  return target === 'postgres' ? sentMs <= untilMs + FOUND_AGAIN_MS : target.includes(node) && sentMs <= untilMs
}
