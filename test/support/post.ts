import assert from 'node:assert/strict'
import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Database } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import { upsertDevice } from '../../src/push/device-store.ts'
import { insertNotification } from '../../src/push/notification-store.ts'
import type { DeliveryNote } from '../../src/push/outbox/delivery-store.ts'
import { Outbox } from '../../src/push/outbox/outbox.ts'
import { DEFAULT_PROVIDER } from '../../src/push/provider-registry.ts'
import type { PushSender } from '../../src/push/push-provider.ts'
import { hasPushTurnedOff } from '../../src/users/user-store.ts'
import { ManualClock } from './manual-clock.ts'
import { WatchedDatabase } from './watched-database.ts'

/** How often an idle outbox polls. */
export const IDLE_MS = 5_000

export interface Delivery {
  notification_id: string
  token: string | null
  state: string
  attempts: number
  next_attempt_at: number | null
  provider_message_id: string | null
  last_error: string | null
}

export interface Node {
  outbox: Outbox
  marked: DeliveryNote[]
}

/** One database, one clock, and as many outboxes as a test starts. */
export class Post {
  readonly clock = new ManualClock()
  readonly watched: WatchedDatabase
  /** The databases of outboxes that have one of their own. */
  readonly #others: WatchedDatabase[] = []
  readonly outboxes: Outbox[] = []
  /** The position of the jitter in its range: 0 is the shortest pause. */
  jitter = 0
  #names = 0
  /** All outboxes are of one node, which never stops: only the end of a lease frees it. */
  readonly #node: Promise<unknown>

  constructor(db: Database) {
    this.watched = new WatchedDatabase(db)
    this.#node = db.query(sql`
      insert into nodes (id, started_at, expires_at) values ('node', 0, ${Number.MAX_SAFE_INTEGER})
      on conflict (id) do nothing`)
  }

  get db(): Database {
    return this.watched.db
  }

  start(senders: PushSender | readonly PushSender[], db?: Database): Node {
    const marked: DeliveryNote[] = []
    const outbox = new Outbox({
      db: db === undefined ? this.db : this.#watch(db),
      node: { id: 'node', isAlive: true },
      clock: this.clock,
      random: { bytes: systemRandom.bytes, fraction: () => this.jitter },
      log: silentLog,
      senders: [senders].flat(),
      onMarked: async (_tx, marks) => void marked.push(...marks),
    })
    this.outboxes.push(outbox)
    void outbox.start()
    return { outbox, marked }
  }

  async addDevices(count: number, subject = 'ada', { name: provider } = DEFAULT_PROVIDER): Promise<string[]> {
    await this.#node
    const ids: string[] = []
    for (let n = 0; n < count; n++) {
      const id = `dev_${String(this.#names++).padStart(6, '0')}`
      const atMs = this.clock.now()
      await upsertDevice(this.db, { id, subject, token: `token-${id}`, platform: 'web', provider, atMs })
      ids.push(id)
    }
    return ids
  }

  /** To all devices of a user, or of several; answers with the notification's id. */
  async notify(
    fields: {
      ttl_seconds?: number
      job_id?: string | null
      subject?: string
      subjects?: readonly string[]
      dry_run?: number
    } = {},
  ) {
    await this.#node
    const { subject = 'ada', subjects = [subject], ...rest } = fields
    const id = `ntf_${this.#names++}`
    const notification = {
      id,
      job_id: null,
      title: 'Ready',
      body: 'Look.',
      data: '{"n":"1"}',
      link: null,
      priority: 'high' as const,
      ttl_seconds: 86_400,
      dry_run: 0,
      created_by: 'root',
      created_at: this.clock.now(),
      ...rest,
    }
    await this.db.transaction((tx) =>
      insertNotification(tx, notification, { subjects, deviceIds: [], pushOptOut: hasPushTurnedOff }),
    )
    for (const outbox of this.outboxes) outbox.wake()
    return id
  }

  /** Many deliveries at once, each to a device of its own. */
  async notifyMany(count: number): Promise<void> {
    const id = await this.notify({ subject: 'unknown-user' })
    const numbers = JSON.stringify(Array.from({ length: count }, (_, n) => ({ n })))
    const list =
      this.db.engine === 'postgres'
        ? sql`(select n from json_to_recordset(${numbers}::json) as given(n bigint)) as numbers`
        : sql`(select value ->> '$.n' as n from json_each(${numbers})) as numbers`
    await this.db.query(sql`
      insert into devices (id, subject, token, token_hash, platform, provider, created_at, last_seen_at)
      select 'dev_many_' || n, 'many', 'token-' || n, 'hash-' || n, 'web', 'fcm', 0, 0 from ${list}`)
    await this.db.query(sql`
      insert into deliveries (notification_id, device_id, state, attempts, next_attempt_at, created_at, updated_at)
      select ${id}, id, 'pending', 0, 0, ${this.clock.now()}, 0 from devices where subject = 'many'`)
    for (const outbox of this.outboxes) outbox.wake()
  }

  /** All deliveries, in the order of their devices. */
  deliveries(): Promise<Delivery[]> {
    return this.db.query<Delivery & Record<string, string | number | null>>(sql`
      select d.notification_id, v.token, d.state, d.attempts, d.next_attempt_at, d.provider_message_id, d.last_error
      from deliveries d left join devices v on v.id = d.device_id order by d.notification_id, d.device_id`)
  }

  async only(): Promise<Delivery> {
    const [delivery, ...more] = await this.deliveries()
    assert.ok(delivery && more.length === 0)
    return delivery
  }

  async states(): Promise<Record<string, number>> {
    const counts: Record<string, number> = {}
    for (const { state } of await this.deliveries()) counts[state] = (counts[state] ?? 0) + 1
    return counts
  }

  async disabled(): Promise<(string | null)[]> {
    const rows = await this.db.query<{ reason: string | null }>(
      sql`select disabled_reason as reason from devices where disabled_at is not null`,
    )
    return rows.map(({ reason }) => reason)
  }

  /** Resolves when no work of any outbox is in progress. Deliveries that the test holds count as done. */
  async quiet(): Promise<void> {
    for (let calm = 0; calm < 4; calm++) {
      for (const watched of [this.watched, ...this.#others]) await watched.idle()
      await new Promise(setImmediate)
    }
  }

  /** Advances the clock step by step, and waits for the work of each step. */
  async pass(ms: number): Promise<void> {
    await this.quiet()
    for (let left = ms; left > 0; left -= IDLE_MS) {
      await this.clock.advance(Math.min(left, IDLE_MS))
      await this.quiet()
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.outboxes.map((outbox) => outbox.close()))
  }

  #watch(db: Database): Database {
    const watched = new WatchedDatabase(db)
    this.#others.push(watched)
    return watched.db
  }
}
