import { type Log, silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import type { EgressAnswer, EgressPoster, EgressRequest } from '../../src/egress/egress-port.ts'
import { appendEvents, type EventType } from '../../src/events/event-store.ts'
import { type EndpointRow, insertEndpoint } from '../../src/webhooks/endpoint-store.ts'
import { Webhooks } from '../../src/webhooks/webhooks.ts'
import { ManualClock } from './manual-clock.ts'
import { WatchedDatabase } from './watched-database.ts'

export interface Posted extends EgressRequest {
  atMs: number
  node: string
}

export const OK: EgressAnswer = { status: 200, retryAfter: undefined, text: 'ok' }
export const DOWN: EgressAnswer = { status: 503, retryAfter: undefined, text: 'down' }

/** One database, one clock, the backends of a test, and as many nodes as it starts. */
export class Backends {
  readonly clock = new ManualClock()
  readonly watched: WatchedDatabase
  readonly posted: Posted[] = []
  readonly nodes: Webhooks[] = []
  /** How the backend at a URL answers. */
  answer: (request: EgressRequest) => EgressAnswer | Promise<EgressAnswer> = () => OK
  readonly #log: Log
  #events = 0
  #endpoints = 0

  constructor(db: Database, log: Log = silentLog) {
    this.#log = log
    this.watched = new WatchedDatabase(db)
  }

  get db(): Database {
    return this.watched.db
  }

  async start(node = 'a', db = this.db): Promise<Webhooks> {
    await db.query(sql`
      insert into nodes (id, started_at, expires_at) values (${node}, 0, ${Number.MAX_SAFE_INTEGER})
      on conflict (id) do nothing`)
    const closed = new AbortController()
    const aborted = new Promise<never>((_resolve, reject) => {
      closed.signal.addEventListener('abort', () => reject(new Error('closed')))
    })
    aborted.catch(() => {})
    const poster: EgressPoster = {
      post: async (request) => {
        this.posted.push({ ...request, atMs: this.clock.now(), node })
        return Promise.race([this.answer(request), aborted])
      },
      close: () => closed.abort(),
    }
    const webhooks = new Webhooks({
      db,
      node: { id: node, isAlive: true },
      clock: this.clock,
      random: { bytes: systemRandom.bytes, fraction: () => 0 },
      log: this.#log,
      egress: { allow: [], allowHttp: false },
      poster,
    })
    this.nodes.push(webhooks)
    db.listen((topic) => webhooks.onTopic(topic))
    return webhooks
  }

  async addEndpoint(fields: Partial<EndpointRow> = {}): Promise<string> {
    const id = `whe_${String(++this.#endpoints).padStart(26, '0')}`
    const atMs = this.clock.now()
    const row: EndpointRow = {
      id,
      url: `https://${id.slice(-2)}.example.com/`,
      description: null,
      event_types: '["project.created"]',
      types: null,
      project_id: null,
      secret: `whsec_${Buffer.from('a key of 24 bytes or so.').toString('base64')}`,
      old_secret: null,
      old_secret_until: null,
      after_seq: 0,
      missed: 0,
      failing_since: null,
      disabled_at: null,
      disabled_reason: null,
      created_by: 'root',
      version: 1,
      created_at: atMs,
      updated_at: atMs,
      ...fields,
    }
    await this.db.transaction((tx) => insertEndpoint(tx, row))
    this.wake()
    return id
  }

  async addEvents(count: number, fields: { type?: EventType; data?: object; job_id?: string | null } = {}) {
    const { type = 'project.created', data = {}, job_id = null } = fields
    const events = Array.from({ length: count }, () => {
      const cause = `${job_id === null ? 'prj' : job_id}:${++this.#events}`
      return { subject: null, job_id, type, cause, data: JSON.stringify(data), created_at: this.clock.now() }
    })
    await this.db.transaction((tx) => appendEvents(tx, events))
    this.wake()
  }

  wake(): void {
    for (const node of this.nodes) for (const topic of ['events', 'webhooks'] as const) node.onTopic(topic)
  }

  /** Resolves when no work is in progress. Requests that the test holds count as done. */
  async quiet(): Promise<void> {
    for (let calm = 0; calm < 6; calm++) {
      await this.watched.idle()
      this.wake()
      await new Promise(setImmediate)
    }
  }

  /** Advances the clock in steps of at most four hours, and waits for the work of each step. */
  async pass(ms: number, stepMs = 4 * 3_600_000): Promise<void> {
    await this.quiet()
    for (let left = ms; left > 0; left -= stepMs) {
      await this.clock.leap(Math.min(left, stepMs))
      await this.quiet()
    }
  }

  async states(): Promise<Record<string, number>> {
    const rows = await this.db.query<{ state: string; count: number }>(
      sql`select state, count(*) as count from webhook_deliveries group by state`,
    )
    return Object.fromEntries(rows.map(({ state, count }) => [state, count]))
  }

  async endpoint(id: string): Promise<EndpointRow | undefined> {
    const [row] = await this.db.query<EndpointRow>(sql`select * from webhook_endpoints where id = ${id}`)
    return row
  }

  async close(): Promise<void> {
    const closed = Promise.all(this.nodes.map((node) => node.close()))
    // Requests that a test holds are given up after some seconds.
    await this.clock.leap(60_000)
    await closed
  }
}
