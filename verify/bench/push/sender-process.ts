import { systemClock } from '../../../src/core/clock.ts'
import { IdGenerator } from '../../../src/core/ids.ts'
import { silentLog } from '../../../src/core/log.ts'
import type { CounterName } from '../../../src/core/metrics/meter.ts'
import { systemRandom } from '../../../src/core/random.ts'
import { Node } from '../../../src/db/nodes/node.ts'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { noteDeliveries } from '../../../src/jobs/settlement/delivery-notes.ts'
import { Metrics } from '../../../src/ops/metrics/metrics.ts'
import { createFcmSender } from '../../../src/push/fcm/fcm-sender.ts'
import { insertNotification } from '../../../src/push/notification-store.ts'
import { Outbox } from '../../../src/push/outbox/outbox.ts'
import { hasPushTurnedOff } from '../../../src/users/user-store.ts'
import { CONTENT, type Done, deviceToken, type ProviderAddress, type Task } from './push-task.ts'

/** More than the provider allows on all connections together, so that the sender always has work. */
const RAW_CONCURRENCY = 500

const { url: apiUrl, tokenUrl, ca, credentials }: ProviderAddress = JSON.parse(process.env.PROVIDER ?? '')
const db = await openPostgres({ url: process.env.DATABASE_URL ?? '' })
const ids = new IdGenerator(systemClock, systemRandom)
const newSender = () =>
  createFcmSender({ apiUrl, tokenUrl, ca, credentials, clock: systemClock, log: silentLog, maxSessions: 4 })

/** The service's metrics, which also resolve when all messages are marked as sent and committed. */
class SentMetrics extends Metrics {
  #left = 0
  #done = Promise.withResolvers<void>()

  untilSent(messages: number): Promise<void> {
    this.#left = messages
    this.#done = Promise.withResolvers()
    return this.#done.promise
  }

  override count(name: CounterName, labels?: Readonly<Record<string, string>>, by = 1): void {
    super.count(name, labels, by)
    if (name !== 'deliveries_total') return
    if (labels?.state !== 'sent') this.#done.reject(new Error(`A delivery became ${labels?.state}`))
    this.#left -= by
    if (this.#left === 0) this.#done.resolve()
  }
}

const metrics = new SentMetrics()
const node = await Node.start({ db, clock: systemClock, random: systemRandom, log: silentLog })
const outbox = new Outbox({
  db,
  node,
  clock: systemClock,
  random: systemRandom,
  log: silentLog,
  meter: metrics,
  senders: [newSender()],
  onMarked: (tx, marks) => noteDeliveries(tx, { marks, ids }),
})
const rawSender = newSender()

/** From the notification's commit to the commit of the last mark. */
async function sendThroughOutbox({ messages, tag }: Task): Promise<void> {
  const { title, body, data, link, priority, ttlSeconds: ttl_seconds } = CONTENT
  const content = { title, body, data: JSON.stringify(data), link, priority, ttl_seconds }
  const notification = {
    id: tag,
    job_id: null,
    dry_run: 0,
    created_by: null,
    created_at: systemClock.now(),
    ...content,
  }
  const sent = metrics.untilSent(messages)
  const targets = { subjects: [`user-of-${messages}`], deviceIds: [], pushOptOut: hasPushTurnedOff }
  await db.transaction((tx) => insertNotification(tx, notification, targets))
  outbox.wake()
  await sent
}

/** The sender alone, without the database. */
async function sendRaw({ messages, tag }: Task): Promise<void> {
  const { signal } = new AbortController()
  let next = 0
  const send = async () => {
    while (next < messages) {
      const verdict = await rawSender.send({ ...CONTENT, token: deviceToken(next++), tag }, signal)
      if (verdict.kind !== 'sent') throw new Error(`Not sent: ${JSON.stringify(verdict)}`)
    }
  }
  await Promise.all(Array.from({ length: RAW_CONCURRENCY }, send))
}

process.on('message', async (task: Task) => {
  const startedMs = performance.now()
  const before = process.cpuUsage()
  await (task.way === 'outbox' ? sendThroughOutbox(task) : sendRaw(task))
  const { user, system } = process.cpuUsage(before)
  process.send?.({ elapsedMs: performance.now() - startedMs, cpuMs: (user + system) / 1_000 } satisfies Done)
})
