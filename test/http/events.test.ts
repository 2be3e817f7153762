import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { after, describe, test } from 'node:test'
import type { Database } from '../../src/db/database.ts'
import { migrate } from '../../src/db/migrate.ts'
import { sql } from '../../src/db/sql.ts'
import { appendEvents, findHead, trimEvents } from '../../src/events/event-store.ts'
import { assertError } from '../support/assert-error.ts'
import { forEachEngine } from '../support/engines.ts'
import { type EventStream, openStream, type StreamOptions } from '../support/event-stream.ts'
import { RUN_MS, sharedJobWorld } from '../support/job-world.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { startRedis } from '../support/redis.ts'
import { forEachService, onOneService, startTestService, type TestService } from '../support/service.ts'
import { needsRedis } from '../support/services.ts'
import { until } from '../support/until.ts'
import { WatchedDatabase } from '../support/watched-database.ts'

const HEARTBEAT_MS = 15_000
const POLL_MS = 2_000
const MAX_STREAMS_PER_CALLER = 50
const MAX_UNREAD_BYTES = 256 * 1024

const GONE = { status: 404, code: 'not_found', message: 'No such job' } as const

/** A name of its own for each test, so that they can share a service. */
const newUser = () => `user-${randomUUID()}`

const opened: { close(): void }[] = []
after(() => {
  for (const stream of opened) stream.close()
})

async function listen(service: TestService, sub: string, path = '/v1/events', options: Partial<StreamOptions> = {}) {
  const stream = await openStream(service.url, path, { token: service.tokenFor({ sub }), ...options })
  opened.push(stream)
  return stream
}

/** Causes an event for this user through the API; returns the project's id. */
async function happen(service: TestService, sub: string, name = 'Something'): Promise<string> {
  const token = service.tokenFor({ sub, scopes: ['write:projects'] })
  const { status, text, body } = await service.request<{ id: string }>('POST', '/v1/projects', {
    token,
    body: { name },
  })
  assert.equal(status, 201, text)
  return body.id
}

/** The reconnect time is short, but not the same for all clients. */
function assertRetry(retryMs: number | null): void {
  assert.ok(retryMs !== null && retryMs >= 1_000 && retryMs < 3_000, String(retryMs))
}

let causes = 0

/** Adds an event for this user without a request. */
function append(
  db: Database,
  subject: string | null,
  fields: { data?: string; created_at?: number } = {},
): Promise<void> {
  causes += 1
  const plain = { job_id: null, type: 'job.updated', data: '{}', created_at: 1_000 } as const
  const event = { ...plain, subject, cause: `${subject} ${causes}`, ...fields }
  return db.transaction((tx) => appendEvents(tx, [event]))
}

/** The ids of all events of one user. */
async function logOf(db: Database, subject: string): Promise<string[]> {
  const rows = await db.query<{ seq: number }>(sql`select seq from events where subject = ${subject} order by seq`)
  return rows.map(({ seq }) => String(seq))
}

const idsOf = ({ received }: EventStream) => received.map(({ id }) => id)

/** Lets time pass until it holds. */
async function pass(clock: ManualClock, holds: () => boolean): Promise<void> {
  await until(async () => {
    if (!holds()) await clock.advance(500)
    return holds()
  })
}

describe('event streams', () => {
  forEachService((under) => {
    test('a stream sends each event when it is committed, with its id, type and data', async () => {
      const service = await under.shared()
      const sub = newUser()
      const stream = await listen(service, sub)
      assert.match(String(stream.headers['content-type']), /^text\/event-stream\b/)
      assert.equal(stream.headers['cache-control'], 'no-store')
      assert.match(String(stream.headers['x-request-id']), /./)
      assert.match(String(stream.headers['ratelimit-limit']), /^\d+$/)
      const id = await happen(service, sub, 'Relaunch "2" ✓')
      const event = await stream.next()
      const created_at = new Date(service.clock.now()).toISOString()
      assert.equal(event.event, 'project.created')
      assert.deepEqual(event.data, {
        id: event.id,
        type: 'project.created',
        created_at,
        data: { project_id: id, name: 'Relaunch "2" ✓' },
      })
      const token = service.tokenFor({ sub, scopes: ['write:projects'] })
      await service.request('PATCH', `/v1/projects/${id}`, { token, body: { name: 'Renamed' } })
      await service.request('DELETE', `/v1/projects/${id}`, { token })
      assert.equal((await stream.next()).event, 'project.updated')
      assert.equal((await stream.next()).event, 'project.deleted')
      assert.deepEqual(idsOf(stream), await logOf(service.db, sub))
    })

    test('a stream has the events of its caller and of no other user; an admin may have all', async () => {
      const service = await under.shared()
      const [ada, bob] = [newUser(), newUser()]
      const mine = await listen(service, ada)
      const alsoMine = await listen(service, ada, '/v1/events?all=false')
      const root = { token: service.tokenFor({ sub: 'root', scopes: ['admin:*'] }) }
      const everybodys = await listen(service, 'root', '/v1/events?all=true', root)
      const rootsOwn = await listen(service, 'root', '/v1/events', root)
      await happen(service, bob)
      await append(service.db, null)
      await happen(service, ada)
      await append(service.db, 'root')
      await everybodys.until(() => everybodys.received.length === 4)
      for (const stream of [mine, alsoMine]) {
        await stream.next()
        assert.deepEqual(idsOf(stream), await logOf(service.db, ada))
      }
      await rootsOwn.next()
      assert.deepEqual(idsOf(rootsOwn), (await logOf(service.db, 'root')).slice(-1))
    })

    test('a stream with all=true is forbidden without read:operations or admin:*, and a value that is not a boolean is refused', async () => {
      const service = await under.shared()
      const token = service.tokenFor({ scopes: ['read:projects', 'write:users'] })
      const refused = await service.request('GET', '/v1/events?all=true', { token })
      assertError(service, refused, { status: 403, code: 'forbidden', message: 'Insufficient scope' })
      assert.match(String(refused.headers['www-authenticate']), /insufficient_scope.*read:operations/)
      const odd = await service.request('GET', '/v1/events?all=maybe', { token })
      assertError(service, odd, { status: 400, code: 'invalid_request', message: /^querystring\/all/ })
      const bare = await service.request('GET', '/v1/events')
      assertError(service, bare, { status: 401, code: 'unauthorized', message: 'Missing bearer token' })
    })

    test('HEAD of a stream is answered at once, and opens nothing', async () => {
      const service = await under.shared()
      const before = service.services.streams.count
      const answer = await service.request('HEAD', '/v1/events', { token: service.tokenFor() })
      assert.equal(answer.status, 200)
      assert.match(String(answer.headers['content-type']), /^text\/event-stream\b/)
      assert.equal(answer.headers['cache-control'], 'no-store')
      assert.equal(service.services.streams.count, before)
    })

    describe('a job', () => {
      const shared = sharedJobWorld(under)

      test('a job has a stream of its own, from its creation to its end', async () => {
        const world = await shared()
        const { service } = world
        const [ada, bob] = [newUser(), newUser()]
        const all = await listen(service, ada)
        const job = await world.start('report', { sub: ada })
        const other = await world.start('report', { sub: ada })
        const own = await listen(service, ada, `/jobs/${job.id}/events?after=0`)
        const admins = await listen(service, 'root', `/jobs/${job.id}/events?after=0`, { token: world.admin })
        await world.pass(RUN_MS)
        const last = (stream: EventStream) => stream.received.at(-1)?.event === 'job.completed'
        for (const stream of [own, admins]) await stream.until(() => last(stream))
        await all.until(() => all.received.filter(({ event }) => event === 'job.completed').length === 2)
        const events = own.received.map(({ event, data }) => [event, data.data])
        const { id: job_id, thread_id } = job
        const data = {
          job_id,
          type: 'report',
          status: 'processing',
          project_id: null,
          thread_id,
          error: null,
          link: null,
        }
        assert.deepEqual(events.at(0), ['job.created', { ...data, settled_by: null }])
        assert.deepEqual(events.at(-1), ['job.completed', { ...data, status: 'completed', settled_by: 'callback' }])
        assert.deepEqual(admins.received, own.received)
        const jobs = new Set(all.received.map(({ data }) => (data.data as { job_id: string }).job_id))
        assert.deepEqual(jobs, new Set([job.id, other.id]))
        assertError(service, await service.request('GET', `/jobs/${job.id}/events`, { token: world.token(bob) }), GONE)
        assertError(service, await service.request('GET', '/jobs/job_x/events', { token: world.token(ada) }), GONE)
        const cursor = await service.request('GET', `/jobs/${job.id}/events?after=x`, { token: world.token(ada) })
        assertError(service, cursor, { status: 400, code: 'invalid_request' })
      })
    })

    test('a client that reconnects gets the missed events once, by header or by query; the header takes precedence', async () => {
      const service = await under.shared()
      const sub = newUser()
      await happen(service, sub)
      const first = await listen(service, sub)
      await happen(service, sub)
      await first.next()
      first.close()
      for (let n = 0; n < 3; n++) await happen(service, sub)
      const all = await logOf(service.db, sub)
      const [oldest = '', seen = '', ...missed] = all
      assert.equal(first.lastEventId, seen)
      const byHeader = await listen(service, sub, `/v1/events?after=${oldest}`, { lastEventId: seen })
      const byQuery = await listen(service, sub, `/v1/events?after=${seen}`)
      const fromStart = await listen(service, sub, '/v1/events?after=0')
      const withoutCursor = await listen(service, sub, '/v1/events', { lastEventId: '' })
      await happen(service, sub)
      const [newest = ''] = (await logOf(service.db, sub)).slice(-1)
      for (const stream of [byHeader, byQuery, fromStart, withoutCursor]) {
        await stream.until(() => idsOf(stream).at(-1) === newest)
      }
      assert.deepEqual(idsOf(byHeader), [...missed, newest])
      assert.deepEqual(idsOf(byQuery), [...missed, newest])
      assert.deepEqual(idsOf(fromStart), [...all, newest])
      assert.deepEqual(idsOf(withoutCursor), [newest])
    })

    test('a client that is disconnected before its first event can still resume', async () => {
      const service = await under.shared()
      const sub = newUser()
      const first = await listen(service, sub)
      await first.until(() => first.lastEventId !== '')
      first.close()
      await happen(service, sub)
      const second = await listen(service, sub, '/v1/events', { lastEventId: first.lastEventId })
      assert.deepEqual([(await second.next()).id], await logOf(service.db, sub))
    })

    test('a history of many pages arrives complete and in order, and new events come after it', async () => {
      const service = await under.shared()
      const sub = newUser()
      const event = (n: number) => ({
        subject: sub,
        job_id: null,
        type: 'job.updated' as const,
        cause: `${sub} page ${n}`,
        // More than the limit of unread bytes: a client that reads is never disconnected.
        data: JSON.stringify({ n, filling: 'x'.repeat(1_000) }),
        created_at: n,
      })
      await service.db.transaction((tx) =>
        appendEvents(
          tx,
          Array.from({ length: 650 }, (_, n) => event(n)),
        ),
      )
      const opening = listen(service, sub, '/v1/events?after=0')
      for (let n = 0; n < 5; n++) await append(service.db, sub)
      const stream = await opening
      await stream.until(() => stream.received.length >= 655)
      assert.deepEqual(idsOf(stream), await logOf(service.db, sub))
    })

    test('a cursor that is not the id of an event is refused', async () => {
      const service = await under.shared()
      const token = service.tokenFor()
      const bad = (name: string) =>
        ({ status: 400, code: 'invalid_request', message: `${name} must be the id of an event` }) as const
      for (const lastEventId of ['x', '-1', '1.5', '1e3', '0x1', '1 2', '9'.repeat(16), '١']) {
        const headers = { 'last-event-id': Buffer.from(lastEventId).toString('latin1') }
        assertError(service, await service.request('GET', '/v1/events', { token, headers }), bad('Last-Event-ID'))
        const path = `/v1/events?after=${encodeURIComponent(lastEventId)}`
        assertError(service, await service.request('GET', path, { token }), bad('querystring/after'))
        const beside = await service.request('GET', path, { token, headers: { 'last-event-id': '1' } })
        assertError(service, beside, bad('querystring/after'))
      }
    })

    test('a cursor beyond the head belongs to another log: the client gets a reset', async () => {
      const service = await under.shared()
      const sub = newUser()
      await happen(service, sub)
      const { seq } = await findHead(service.db)
      const stream = await listen(service, sub, `/v1/events?after=${seq + 1_000}`)
      const reset = await stream.next()
      assert.equal(reset.event, 'reset')
      assert.equal(reset.id, String(seq))
      assert.deepEqual(reset.data, {
        id: reset.id,
        type: 'reset',
        created_at: new Date(service.clock.now()).toISOString(),
        data: {},
      })
      await happen(service, sub)
      assert.equal((await stream.next()).event, 'project.created')
    })

    test('a cursor whose history was trimmed gets a reset, and the stream continues from there', async () => {
      const service = await under.start()
      const sub = newUser()
      await append(service.db, sub, { created_at: 1 })
      await append(service.db, sub, { created_at: 2 })
      await append(service.db, sub, { created_at: 1_000 })
      const [first = '', second = '', third = ''] = await logOf(service.db, sub)
      await trimEvents(service.db, { beforeMs: 500, limit: 10 })
      const behind = await listen(service, sub, '/v1/events', { lastEventId: first })
      assert.deepEqual([(await behind.next()).event, behind.lastEventId], ['reset', third])
      const intact = await listen(service, sub, '/v1/events', { lastEventId: second })
      assert.deepEqual([(await intact.next()).event, intact.lastEventId], ['job.updated', third])
      await happen(service, sub)
      for (const stream of [behind, intact]) assert.equal((await stream.next()).event, 'project.created')
      const back = await listen(service, sub, '/v1/events', { lastEventId: behind.lastEventId })
      await happen(service, sub)
      assert.equal((await back.next()).event, 'project.created')
      // The id of an empty log is a valid cursor.
      const early = await listen(service, sub, '/v1/events', { lastEventId: '0' })
      assert.equal((await early.next()).event, 'reset')
    })

    test('a stream with after=0 sends everything that the log still has, even if parts were trimmed', async () => {
      const service = await under.start()
      const sub = newUser()
      for (const created_at of [1, 2, 1_000, 1_001]) await append(service.db, sub, { created_at })
      const kept = (await logOf(service.db, sub)).slice(2)
      await trimEvents(service.db, { beforeMs: 500, limit: 10 })
      const stream = await listen(service, sub, '/v1/events?after=0')
      const events = [await stream.next(), await stream.next()]
      assert.deepEqual(
        events.map(({ id, event }) => [id, event]),
        kept.map((id) => [id, 'job.updated']),
      )
    })

    test('the cursor of a client without events advances, so that it gets no reset after the retention', async () => {
      const service = await under.start()
      const sub = newUser()
      const quiet = await listen(service, sub)
      for (const created_at of [1, 2]) await append(service.db, 'another-user', { created_at })
      const { seq } = await findHead(service.db)
      await until(async () => {
        await service.clock.advance(HEARTBEAT_MS)
        return quiet.lastEventId === String(seq)
      })
      assert.equal(quiet.received.length, 0)
      await trimEvents(service.db, { beforeMs: 500, limit: 10 })
      const back = await listen(service, sub, '/v1/events', { lastEventId: quiet.lastEventId })
      await happen(service, sub)
      for (const stream of [quiet, back]) assert.equal((await stream.next()).event, 'project.created')
    })

    test('history older than the retention is trimmed by itself', async () => {
      const service = await under.start({ env: { EVENTS_RETENTION_HOURS: '1' } })
      const sub = newUser()
      await append(service.db, sub, { created_at: service.clock.now() })
      await append(service.db, sub, { created_at: service.clock.now() })
      const [first = ''] = await logOf(service.db, sub)
      await service.clock.leap(3_600_000)
      await until(async () => {
        await service.clock.leap(600_000)
        return (await logOf(service.db, sub)).length === 0
      })
      const stream = await listen(service, sub, '/v1/events', { lastEventId: first })
      assert.equal((await stream.next()).event, 'reset')
    })
  })

  onOneService((under) => {
    test('an idle stream gets a comment every 15 seconds, and an event restarts that time', async () => {
      const service = await under.start()
      const sub = newUser()
      const stream = await listen(service, sub)
      await service.clock.advance(HEARTBEAT_MS - 1_000)
      await happen(service, sub)
      await stream.next()
      assert.equal(stream.comments, 1, 'the greeting')
      await service.clock.advance(HEARTBEAT_MS - 1_000)
      await append(service.db, 'another-user')
      assert.equal(stream.comments, 1)
      await service.clock.advance(1_000)
      await stream.until(() => stream.comments === 2)
      await service.clock.advance(HEARTBEAT_MS)
      await stream.until(() => stream.comments === 3)
      assert.equal(stream.received.length, 1)
    })

    test('a stream ends when its token expires; that of a key, which can be revoked at any time, after five minutes', async () => {
      const service = await under.start()
      const account = await service.request<{ key: string }>('POST', '/v1/service-accounts', {
        token: service.tokenFor({ sub: 'root', scopes: ['admin:*'] }),
        body: { name: 'Backend', scopes: [] },
      })
      const brief = await listen(service, 'ada', '/v1/events', {
        token: service.tokenFor({ sub: 'ada', expiresInSeconds: 60 }),
      })
      const long = await listen(service, 'bob', '/v1/events', {
        token: service.tokenFor({ sub: 'bob', expiresInSeconds: 600 }),
      })
      const ofKey = await openStream(service.url, '/v1/events', { key: account.body.key })
      opened.push(ofKey)
      await service.clock.advance(59_000)
      assert.equal(service.services.streams.count, 3)
      await service.clock.advance(1_000)
      await brief.ended()
      assertRetry(brief.retryMs)
      await service.clock.advance(4 * 60_000)
      await ofKey.ended()
      assertRetry(ofKey.retryMs)
      await happen(service, 'bob')
      await long.next()
      await service.clock.advance(5 * 60_000)
      await long.ended()
      await until(() => service.services.streams.count === 0)
    })

    test('the number of streams per caller is limited; closing one makes room', async () => {
      const service = await under.start()
      const [ada, bob] = [newUser(), newUser()]
      const streams = await Promise.all(Array.from({ length: MAX_STREAMS_PER_CALLER }, () => listen(service, ada)))
      const token = service.tokenFor({ sub: ada })
      const refused = await service.request('GET', '/v1/events', { token })
      assertError(service, refused, { status: 429, code: 'rate_limit_exceeded', message: 'Too many open streams' })
      assert.match(String(refused.headers['retry-after']), /^\d+$/)
      await listen(service, bob)
      streams[0]?.close()
      await until(() => service.services.streams.count === MAX_STREAMS_PER_CALLER)
      const again = await listen(service, ada)
      await happen(service, ada)
      await again.next()
    })

    test('a client that does not read is disconnected at the limit of unread bytes, and other clients continue', async () => {
      const sockets: Socket[] = []
      const service = await under.start({
        extend: (app) => app.server.on('connection', (socket: Socket) => sockets.push(socket)),
      })
      const sub = newUser()
      const good = await listen(service, sub)
      const { hostname, port } = new URL(service.url)
      const bad = connect({ host: hostname, port: Number(port) })
      opened.push({ close: () => bad.destroy() })
      await once(bad, 'connect')
      bad.pause()
      bad.write(
        `GET /v1/events HTTP/1.1\r\nhost: ${hostname}\r\nauthorization: Bearer ${service.tokenFor({ sub })}\r\n\r\n`,
      )
      await until(() => service.services.streams.count === 2)
      const socketOfBad = sockets.find(({ remotePort }) => remotePort === bad.localPort)
      assert.ok(socketOfBad)
      const chunk = 64 * 1024
      let mostUnread = 0
      let sent = 0
      while (service.services.streams.count > 1) {
        assert.ok(sent < 1_000, 'more lies unread than any system takes in')
        await append(service.db, sub, { data: JSON.stringify('x'.repeat(chunk)) })
        sent += 1
        await good.until(() => good.received.length === sent)
        mostUnread = Math.max(mostUnread, socketOfBad.writableLength)
      }
      assert.ok(mostUnread > 0)
      assert.ok(mostUnread <= MAX_UNREAD_BYTES + 2 * chunk, `${mostUnread} bytes lay unread`)
      assert.equal(socketOfBad.destroyed, true)
      await append(service.db, sub)
      await good.until(() => good.received.length === sent + 1)
    })

    test('a client that disconnects before its stream begins leaves no state behind', async () => {
      const inner = await under.engine.openDatabase()
      const gate = Promise.withResolvers<void>()
      const asked = Promise.withResolvers<void>()
      const isHead = /events_seq_seq|sqlite_sequence/
      const db: Database = {
        engine: inner.engine,
        now: inner.now,
        query: async (statement) => {
          if (isHead.test(statement.text)) {
            asked.resolve()
            await gate.promise
          }
          return inner.query(statement)
        },
        transaction: (work) => inner.transaction(work),
        listen: (listener) => inner.listen(listener),
        ping: () => inner.ping(),
        close: () => inner.close(),
      }
      const closed = Promise.withResolvers<void>()
      const service = await under.start({
        db,
        extend: (app) => app.server.on('connection', (socket: Socket) => socket.once('close', () => closed.resolve())),
      })
      const { hostname, port } = new URL(service.url)
      const socket = connect({ host: hostname, port: Number(port) })
      socket.write(`GET /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${service.tokenFor()}\r\n\r\n`)
      await asked.promise
      socket.destroy()
      await closed.promise
      assert.equal(service.services.streams.count, 1)
      gate.resolve()
      await until(() => service.services.streams.count === 0)
      assert.equal(service.services.feed.subscribers, 0)
    })

    test('a service that closes makes every client reconnect elsewhere, and accepts no new client', async () => {
      const service = await under.start()
      const streams = await Promise.all(Array.from({ length: 20 }, (_, n) => listen(service, `user-${n}`)))
      await service.services.openStreams.close()
      for (const stream of streams) {
        await stream.ended()
        assertRetry(stream.retryMs)
      }
      assert.ok(new Set(streams.map(({ retryMs }) => retryMs)).size > 1, 'not in one wave')
      const refused = await service.request('GET', '/v1/events', { token: service.tokenFor() })
      assertError(service, refused, { status: 503, code: 'service_unavailable', message: 'Shutting down' })
      assert.match(String(refused.headers['retry-after']), /^\d+$/)
    })
  })

  forEachService((under) => {
    test('a stream that is resumed across restarts, with writers at work, has no gap and no repeat', async () => {
      const db = await under.engine.openDatabase()
      const sub = newUser()
      let isDone = false
      const writers = Promise.all(
        Array.from({ length: 4 }, async () => {
          while (!isDone) await append(db, sub)
        }),
      )
      const ids: string[] = []
      let lastEventId = '0'
      for (let life = 0; life < 4; life++) {
        const service = await under.start({ db })
        const stream = await listen(service, sub, '/v1/events', { lastEventId })
        await stream.until(() => stream.received.length > 20)
        if (life === 3) {
          isDone = true
          await writers
          const [newest] = (await logOf(db, sub)).slice(-1)
          await pass(service.clock, () => stream.lastEventId === newest)
        } else {
          await service.close()
          await stream.ended()
          assertRetry(stream.retryMs)
        }
        ids.push(...idsOf(stream))
        lastEventId = stream.lastEventId
      }
      assert.deepEqual(ids, await logOf(db, sub))
    })
  })
})

describe('several nodes on one database', () => {
  forEachEngine((engine) => {
    const nodes = new Map<TestService, WatchedDatabase>()
    after(async () => {
      for (const node of nodes.keys()) await node.close()
    })
    /** Resolves when the node reads nothing. From then on, its next read begins by its clock or a wake-up. */
    const idle = async (node: TestService) => nodes.get(node)?.idle()
    /** Two nodes behind a load balancer; on SQLite, which is for one process, two in one process. */
    async function startNodes(options: { env?: Record<string, string> } = {}): Promise<[TestService, TestService]> {
      const store = await engine.createStore()
      const start = async () => {
        const db = await store.connect()
        await migrate(db)
        const watched = new WatchedDatabase(db)
        const node = await startTestService({ variant: 'B', db: watched.db, ...options })
        nodes.set(node, watched)
        return node
      }
      return [await start(), await start()]
    }

    test('a client that changes between nodes, with writers on both, has no gap and no repeat', async () => {
      const [one, two] = await startNodes()
      const sub = newUser()
      let isDone = false
      const writers = Promise.all(
        [one, two, one, two].map(async ({ db }) => {
          while (!isDone) await append(db, sub)
        }),
      )
      // Another user listens all the time, so that each node has its own position.
      for (const node of [one, two]) await listen(node, 'another-user')
      const ids: string[] = []
      let lastEventId = '0'
      for (const node of [one, two, one, two, two, one]) {
        const stream = await listen(node, sub, '/v1/events', { lastEventId })
        await pass(node.clock, () => stream.received.length > 10)
        stream.close()
        await stream.ended()
        ids.push(...idsOf(stream))
        lastEventId = stream.lastEventId
      }
      isDone = true
      await writers
      const rest = await listen(two, sub, '/v1/events', { lastEventId })
      const [newest] = (await logOf(one.db, sub)).slice(-1)
      await pass(two.clock, () => rest.lastEventId === newest)
      ids.push(...idsOf(rest))
      assert.deepEqual(ids, await logOf(one.db, sub))
    })

    if (engine.name !== 'postgres') return

    test('a node that is behind neither resets a client of a node ahead of it nor repeats events', async () => {
      const [ahead, behind] = await startNodes()
      const sub = newUser()
      // With a listener, the node stays at the current position until its next read.
      await listen(behind, 'another-user')
      const first = await listen(ahead, sub)
      await happen(ahead, sub)
      await first.next()
      const second = await listen(behind, sub, '/v1/events', { lastEventId: first.lastEventId })
      await second.until(() => second.lastEventId !== '')
      assert.equal(second.lastEventId, first.lastEventId)
      await happen(behind, sub)
      await second.next()
      await happen(behind, sub)
      await second.next()
      assert.deepEqual(idsOf(second), (await logOf(ahead.db, sub)).slice(1))
    })

    test('the other nodes find new events without Redis by polling, within two seconds', async () => {
      const [one, two] = await startNodes()
      const sub = newUser()
      const stream = await listen(two, sub)
      await idle(two)
      await happen(one, sub)
      await two.clock.advance(POLL_MS)
      await stream.next()
    })

    test('events that waited for a transaction without events are found by a quick new read', async () => {
      const [node] = await startNodes()
      const sub = newUser()
      const stream = await listen(node, sub)
      const letGo = Promise.withResolvers<void>()
      const holding = Promise.withResolvers<void>()
      const doomed = node.db.transaction(async (tx) => {
        const event = { subject: sub, job_id: null, type: 'job.updated', cause: `${sub} doomed` } as const
        await appendEvents(tx, [{ ...event, data: '{}', created_at: 1 }])
        holding.resolve()
        await letGo.promise
        throw new Error('changed its mind')
      })
      await holding.promise
      await happen(node, sub)
      await node.clock.untilSleeping()
      assert.equal(stream.received.length, 0)
      letGo.resolve()
      await assert.rejects(doomed)
      // Far less than the poll takes. No time passes while the log is read.
      await until(async () => {
        await idle(node)
        await node.clock.advance(10)
        return stream.received.length > 0
      })
      assert.ok(node.clock.now() < new ManualClock().now() + POLL_MS)
    })

    describe('with Redis', needsRedis(), () => {
      test('Redis wakes the other nodes; while it is down they poll; when it is back it wakes them again', async () => {
        const redis = await startRedis()
        try {
          const [one, two] = await startNodes({ env: { REDIS_URL: redis.url } })
          const connected = (yes: boolean) =>
            until(async () => {
              const isSo = [one, two].every(({ services }) => services.wakeUps?.state().connected === yes)
              // A subscription that Redis did not answer in time is repeated after a pause of the node's clock.
              if (!isSo) for (const { clock } of [one, two]) await clock.advance(100)
              return isSo
            })
          await connected(true)
          const sub = newUser()
          const stream = await listen(two, sub)
          const tell = async () => {
            await idle(two)
            await happen(one, sub)
            // Only the sender's clock moves, so the listener does not poll.
            await one.clock.advance(5)
          }
          await tell()
          await stream.next()
          await redis.kill()
          await connected(false)
          await tell()
          await two.clock.advance(POLL_MS)
          await stream.next()
          await redis.restart()
          await connected(true)
          await tell()
          await stream.next()
          assert.deepEqual(idsOf(stream), await logOf(one.db, sub))
        } finally {
          await redis.stop()
        }
      })
    })
  })
})
