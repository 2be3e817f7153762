import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { UnavailableError } from '../../src/core/errors.ts'
import { silentLog } from '../../src/core/log.ts'
import type { Database } from '../../src/db/database.ts'
import { sql } from '../../src/db/sql.ts'
import type { User } from '../../src/users/user-schema.ts'
import { UserStates } from '../../src/users/user-states.ts'
import { assertError } from '../support/assert-error.ts'
import { openStream } from '../support/event-stream.ts'
import { startJobWorld } from '../support/job-world.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { forEachService, type TestService } from '../support/service.ts'
import { until } from '../support/until.ts'
import { WatchedDatabase } from '../support/watched-database.ts'

const BLOCKED = { status: 403, code: 'forbidden', message: 'This account is blocked' } as const
const ME = '/v1/users/me'

interface Block {
  sub: string
  blocked_at: string | null
}

function change(service: TestService, verb: 'block' | 'unblock', sub: string) {
  const token = service.tokenFor({ sub: 'root', scopes: ['admin:*'] })
  return service.request<Block>('POST', `/v1/users/${encodeURIComponent(sub)}/${verb}`, { token })
}

describe('a blocked user', () => {
  forEachService((under) => {
    /** Two nodes on one database and one clock, without Redis. */
    async function startNodes(): Promise<[TestService, TestService, ManualClock, WatchedDatabase]> {
      const clock = new ManualClock()
      const database = new WatchedDatabase(await under.engine.openDatabase())
      const { db } = database
      return [await under.start({ db, clock }), await under.start({ db, clock }), clock, database]
    }

    test('a blocked user is refused here at once and on the other node within five seconds, with a token that was good before', async () => {
      const [here, there, clock, database] = await startNodes()
      const token = here.tokenFor({ sub: 'mallory', scopes: ['admin:*'] })
      const ask = (service: TestService) => service.request('GET', ME, { token })
      for (const node of [here, there]) assert.equal((await ask(node)).status, 200)
      const blocked = await change(here, 'block', 'mallory')
      assert.equal(blocked.status, 200, blocked.text)
      assert.deepEqual(blocked.body, { sub: 'mallory', blocked_at: new Date(clock.now()).toISOString() })
      const refused = await ask(here)
      assertError(here, refused, BLOCKED)
      assert.equal(refused.headers['www-authenticate'], undefined, 'no scope would help')
      assertError(here, await here.request('GET', '/v1/unknown', { token }), BLOCKED)
      await clock.advance(5_000)
      await until(async () => (await ask(there)).status === 403)
      assertError(there, await ask(there), BLOCKED)

      const unblocked = await change(there, 'unblock', 'mallory')
      assert.deepEqual(unblocked.body, { sub: 'mallory', blocked_at: null })
      assert.equal((await ask(there)).status, 200)
      // A read that began before the change must end before the clock moves: the next one follows two seconds later.
      await database.idle()
      await clock.advance(5_000)
      await until(async () => (await ask(here)).status === 200)
    })

    test('a blocked user loses open streams on every node, while the streams of other callers stay open', async () => {
      const [here, there, clock] = await startNodes()
      const open = (service: TestService, sub: string) =>
        openStream(service.url, '/v1/events', { token: service.tokenFor({ sub }) })
      const doomed = await Promise.all([open(here, 'eve'), open(there, 'eve')])
      const other = await open(there, 'bob')
      await change(here, 'block', 'eve')
      await until(async () => {
        await clock.advance(1_000)
        return doomed.every(({ isOver }) => isOver)
      })
      assert.equal(other.isOver, false)
      other.close()
    })

    test('a blocked user loses the live output of a run', async () => {
      const world = await startJobWorld(under)
      const job = await world.start('report', { sub: 'viewer', input: { sandbox: { duration_ms: 60_000 } } })
      const live = await openStream(world.service.url, `/jobs/${job.id}/live`, { token: world.token('viewer') })
      await change(world.service, 'block', 'viewer')
      await world.clock.advance(1_000)
      await live.ended()
      assert.ok(!live.received.some(({ event }) => event === 'end'), 'the run goes on')
      assert.equal((await world.request('GET', `/jobs/${job.id}/live`, 'viewer')).status, 403)
    })

    test('a blocked user may be a sub that never signed in; blocking twice and unblocking twice change nothing more', async () => {
      const service = await under.shared()
      const first = await change(service, 'block', 'never seen')
      await service.clock.advance(10)
      const second = await change(service, 'block', 'never seen')
      assert.deepEqual(second.body, first.body, 'the first time stays')
      assertError(
        service,
        await service.request('GET', ME, { token: service.tokenFor({ sub: 'never seen' }) }),
        BLOCKED,
      )
      for (let i = 0; i < 2; i++) {
        assert.deepEqual((await change(service, 'unblock', 'never seen')).body, { sub: 'never seen', blocked_at: null })
      }
      const token = service.tokenFor({ scopes: ['read:operations'] })
      const { body } = await service.request<{ data: { action: string; actor: { id: string } }[] }>(
        'GET',
        '/v1/audit?object=never%20seen',
        { token },
      )
      assert.deepEqual(
        body.data.map(({ action, actor }) => [action, actor.id]),
        [
          ['user.unblocked', 'root'],
          ['user.blocked', 'root'],
        ],
      )
    })

    test('the profile of a blocked user shows the time of the block', async () => {
      const service = await under.shared()
      const own = service.tokenFor({ sub: 'shown' })
      assert.equal((await service.request<User>('GET', ME, { token: own })).body.blocked_at, null)
      const { body } = await change(service, 'block', 'shown')
      const token = service.tokenFor({ sub: 'reader', scopes: ['read:users', 'write:users'] })
      const shown = await service.request<User>('GET', '/v1/users/shown', { token })
      assert.equal(shown.body.blocked_at, body.blocked_at)
      const listed = await service.request<{ data: User[] }>('GET', '/v1/users?limit=100', { token })
      assert.equal(listed.body.data.find(({ sub }) => sub === 'shown')?.blocked_at, body.blocked_at)
      const changed = await service.request<User>('PATCH', '/v1/users/shown', { token, body: { locale: 'de' } })
      assert.equal(changed.body.blocked_at, body.blocked_at)
    })

    test('a service account is no user, and admins cannot block themselves', async () => {
      const service = await under.shared()
      const token = service.tokenFor({ sub: 'root', scopes: ['admin:*'] })
      const made = await service.request<{ id: string; key: string }>('POST', '/v1/service-accounts', {
        token,
        body: { name: 'Backend', scopes: [] },
      })
      await change(service, 'block', made.body.id)
      const { key } = made.body
      assert.equal((await service.request('GET', '/v1/usage', { key })).status, 200)
      await change(service, 'block', 'with key')
      const both = { key, token: service.tokenFor({ sub: 'with key' }) }
      assertError(service, await service.request('GET', '/v1/usage', both), BLOCKED)
      assertError(service, await change(service, 'block', 'root'), {
        status: 409,
        code: 'conflict',
        message: 'You cannot block yourself',
      })
    })

    test('a blocked user stays refused while the database is away; before the first read every user is refused with 503', async () => {
      const clock = new ManualClock()
      const db = await under.engine.openDatabase()
      const service = await under.start({ db, clock })
      await change(service, 'block', 'mallory')
      let isAway = true
      const query: Database['query'] = (statement) =>
        isAway ? Promise.reject(new UnavailableError('away')) : db.query(statement)
      const states = new UserStates({
        db: { ...db, engine: db.engine, query },
        clock,
        log: silentLog,
        onErased: () => {},
      })
      await states.load()
      assert.equal(states.stateOf('mallory'), 'unknown')
      isAway = false
      await clock.advance(2_000)
      await until(() => states.stateOf('mallory') === 'blocked')
      isAway = true
      await clock.advance(60_000)
      assert.deepEqual([states.stateOf('mallory'), states.stateOf('ada')], ['blocked', 'admitted'])
      await states.close()
    })

    test('a profile that is marked as erased is created afresh by the next request of its user', async () => {
      const service = await under.start()
      const token = service.tokenFor({ sub: 'returning' })
      assert.equal((await service.request('GET', ME, { token })).status, 200)
      await service.db.query(sql`delete from users where sub = 'returning'`)
      assert.equal((await service.request('GET', ME, { token })).status, 404, 'this node believes that it exists')
      await service.db.query(sql`
        insert into user_states (sub, blocked_at, erased_at, version) values ('returning', null, 1, 1)`)
      await service.clock.advance(2_000)
      await until(async () => (await service.request('GET', ME, { token })).status === 200)
    })

    test('a node that starts later knows the present state of every user', async () => {
      const service = await under.start()
      const rounds = Array.from({ length: 12 }, (_, i) => `user-${i}`)
      for (const sub of rounds) await change(service, 'block', sub)
      for (const sub of rounds.slice(0, 6)) await change(service, 'unblock', sub)
      const read: string[] = []
      const log = { ...silentLog, warn: () => read.push('warned') }
      const states = new UserStates({ db: service.db, clock: service.clock, log, onErased: (sub) => read.push(sub) })
      await states.load()
      assert.deepEqual(
        rounds.map((sub) => states.stateOf(sub)),
        rounds.map((_, i) => (i < 6 ? 'admitted' : 'blocked')),
      )
      assert.deepEqual(read, [])
      await states.close()
    })
  })
})
