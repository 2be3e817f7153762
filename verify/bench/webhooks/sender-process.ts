import { systemClock } from '../../../src/core/clock.ts'
import { silentLog } from '../../../src/core/log.ts'
import type { CounterName } from '../../../src/core/metrics/meter.ts'
import { systemRandom } from '../../../src/core/random.ts'
import { Node } from '../../../src/db/nodes/node.ts'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { EgressClient } from '../../../src/egress/egress-client.ts'
import { MAX_PER_HOST } from '../../../src/egress/egress-port.ts'
import { appendEvents, eventText } from '../../../src/events/event-store.ts'
import { Metrics } from '../../../src/ops/metrics/metrics.ts'
import { insertEndpoint } from '../../../src/webhooks/endpoint-store.ts'
import { newSecret, signedHeaders } from '../../../src/webhooks/signature.ts'
import { Webhooks } from '../../../src/webhooks/webhooks.ts'
import type { ReceiverAddresses, WebhooksDone, WebhookTask } from './webhook-task.ts'

const { urls, ca }: ReceiverAddresses = JSON.parse(process.env.RECEIVERS ?? '')
const db = await openPostgres({ url: process.env.DATABASE_URL ?? '' })
const secret = newSecret(systemRandom)

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

await createEndpoints()
const metrics = new SentMetrics()
const base = { db, clock: systemClock, random: systemRandom, log: silentLog }
const node = await Node.start(base)
const egress = { allow: ['127.0.0.0/8'], allowHttp: false, ca }
const webhooks = new Webhooks({ ...base, node, meter: metrics, egress })
db.listen((topic) => webhooks.onTopic(topic))
const rawSender = new EgressClient({ guard: webhooks.guard, clock: systemClock, ca })

async function createEndpoints(): Promise<void> {
  const atMs = systemClock.now()
  const common = {
    description: null,
    event_types: '["job.completed"]',
    types: null,
    project_id: null,
    secret,
    old_secret: null,
    old_secret_until: null,
    after_seq: 0,
    missed: 0,
    failing_since: null,
    disabled_at: null,
    disabled_reason: null,
    created_by: null,
    version: 1,
    created_at: atMs,
    updated_at: atMs,
  }
  await db.transaction(async (tx) => {
    for (const [index, url] of urls.entries()) {
      await insertEndpoint(tx, { id: `whe_${String(index).padStart(26, '0')}`, url, ...common })
    }
  })
}

function eventOf(round: string, n: number) {
  const job_id = `job_${String(n).padStart(26, '0')}`
  const job = { job_id, type: 'report', status: 'completed', project_id: null, thread_id: job_id, run_id: job_id }
  return {
    subject: null,
    job_id: null,
    type: 'job.completed',
    cause: `${round} ${n}`,
    data: JSON.stringify({ ...job, trace_id: null, error: null, link: `https://app.example.com/jobs/${job_id}` }),
    created_at: systemClock.now(),
  } as const
}

/** From the events' commit to the commit of the last mark. */
async function sendThroughMachine({ events, round }: WebhookTask): Promise<void> {
  const sent = metrics.untilSent(events * urls.length)
  const rows = Array.from({ length: events }, (_, n) => eventOf(round, n))
  await db.transaction((tx) => appendEvents(tx, rows))
  await sent
}

/** The sender alone, without the database: the same text, signed, over as many connections. */
async function sendRaw({ events, round }: WebhookTask): Promise<void> {
  const sendTo = async (url: string) => {
    let next = 0
    const send = async () => {
      while (next < events) {
        const seq = next++
        const body = eventText({ seq, ...eventOf(round, seq) })
        const timestampSeconds = Math.floor(systemClock.calendar() / 1_000)
        const signed = signedHeaders({ id: String(seq), timestampSeconds, body, secrets: [secret] })
        const headers = { 'content-type': 'application/json', 'user-agent': 'project-api', ...signed }
        const { status } = await rawSender.post({ url, headers, body })
        if (status !== 204) throw new Error(`The receiver answered ${status}`)
      }
    }
    await Promise.all(Array.from({ length: MAX_PER_HOST }, send))
  }
  await Promise.all(urls.map(sendTo))
}

process.on('message', async (task: WebhookTask) => {
  const startedMs = performance.now()
  const before = process.cpuUsage()
  await (task.way === 'machine' ? sendThroughMachine(task) : sendRaw(task))
  const { user, system } = process.cpuUsage(before)
  process.send?.({ elapsedMs: performance.now() - startedMs, cpuMs: (user + system) / 1_000 } satisfies WebhooksDone)
})
process.send?.('ready')
