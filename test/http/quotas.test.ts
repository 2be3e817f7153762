import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { assertError } from '../support/assert-error.ts'
import type { TestRequest, TestResponse } from '../support/http-client.ts'
import { type JobWorld, RUN_MS, type ShownJob, startJobWorld, type WorldOptions } from '../support/job-world.ts'
import { forEachServiceAndVariant, type ServiceUnderTest, type TestService } from '../support/service.ts'

const LIMIT = 3
const TOO_MANY = {
  status: 429,
  code: 'usage_limit_exceeded',
  message: `The limit of ${LIMIT} unfinished jobs is reached`,
} as const
const REPORT = { type: 'report', input: {} }
const newUser = () => `user-${randomUUID()}`

describe('the quotas of projects and devices', () => {
  forEachServiceAndVariant((under) => {
    /** Creates many at once, and returns how many were created. */
    const createAtOnce = async (service: TestService, path: string, bodyOf: (n: number) => object) => {
      const token = service.tokenFor({ sub: newUser(), scopes: ['write:projects'] })
      const answers = await Promise.all(
        Array.from({ length: 30 }, (_, n) => service.request('POST', path, { token, body: bodyOf(n) })),
      )
      const refused = answers.filter(({ status }) => status !== 201)
      for (const { status } of refused) assert.equal(status, 429)
      return answers.length - refused.length
    }

    test('the quotas hold when one owner creates many projects or devices at once', async () => {
      const db = await under.engine.openDatabase({ waitsLong: true })
      const service = await under.start({ db, env: { MAX_PROJECTS: '2' } })
      assert.equal(await createAtOnce(service, '/v1/projects', (n) => ({ name: `Project ${n}` })), 2)
      const sub = newUser()
      const token = service.tokenFor({ sub })
      const register = (n: number) =>
        service.request('POST', '/v1/devices', { token, body: { token: `device-${sub}-${n}`, platform: 'web' } })
      for (let n = 0; n < 90; n++) assert.equal((await register(n)).status, 201)
      const answers = await Promise.all(Array.from({ length: 30 }, (_, n) => register(100 + n)))
      assert.equal(answers.filter(({ status }) => status === 201).length, 10)
    })
  })
})

describe('the quota of unfinished jobs', () => {
  forEachServiceAndVariant((under) => {
    const startWorld = (options: Pick<WorldOptions, 'db'> = {}) =>
      startJobWorld(under, { ...options, env: { MAX_UNFINISHED_JOBS: String(LIMIT) } })
    const start = (world: JobWorld, sub: string, body: object = REPORT, more: TestRequest = {}) =>
      world.request<ShownJob>('POST', '/jobs', sub, { body, ...more })
    const fill = async (world: JobWorld, sub: string) => {
      for (let n = 0; n < LIMIT; n++) await world.start(n === 0 ? 'pausing' : 'report', { sub })
    }

    test('an owner at the limit can neither start, follow nor retry a job, until one has ended', async () => {
      const world = await startWorld()
      const [sub, other] = [newUser(), newUser()]
      const ended = await world.start('report', { sub })
      await world.pass(RUN_MS)
      await fill(world, sub)
      const elsewhere = { type: 'report', ...(await world.startElsewhere({ user_id: sub })) }
      const retry = () => world.request('POST', `/jobs/${ended.id}/retry`, sub)
      for (const answer of [await start(world, sub), await start(world, sub, elsewhere), await retry()]) {
        assertError(world.service, answer, TOO_MANY)
        assert.equal(answer.headers['retry-after'], '60')
      }
      assert.equal((await start(world, other)).status, 202, 'another owner')
      await world.quiet()
      await world.pass(RUN_MS)
      assert.equal((await retry()).status, 202, 'the paused job counts, the ended ones do not')
      await world.quiet()
    })

    test('the quota holds when many jobs of one owner start at once on two nodes', async () => {
      const world = await startWorld({ db: await under.engine.openDatabase({ waitsLong: true }) })
      const there = await secondNode(under, world)
      const sub = newUser()
      const nodes = [world.service, there]
      const answers = await Promise.all(
        Array.from({ length: 30 }, (_, n) => {
          const node = nodes[n % 2] as TestService
          return node.request('POST', '/jobs', { token: node.tokenFor({ sub }), body: REPORT })
        }),
      )
      assert.equal(answers.filter(({ status }) => status === 202).length, LIMIT)
      for (const answer of answers.filter(({ status }) => status !== 202)) assertError(world.service, answer, TOO_MANY)
      await world.quiet()
    })

    test('an admin may start and retry jobs beyond the quota of their owner, alone and in bulk', async () => {
      const world = await startWorld()
      const sub = newUser()
      const ended = await world.start('report', { sub })
      await world.pass(RUN_MS)
      await fill(world, sub)
      const asAdmin = (method: string, path: string, body?: object) =>
        world.service.request<{ id: string }>(method, path, { token: world.admin, ...(body && { body }) })
      assert.equal((await asAdmin('POST', '/jobs', { ...REPORT, created_by: sub })).status, 202)
      assert.equal((await asAdmin('POST', `/jobs/${ended.id}/retry`)).status, 202)
      const operation = await asAdmin('POST', '/v1/operations', { action: 'retry', ids: [ended.id], again: true })
      assert.equal(operation.status, 202, operation.text)
      await world.quiet()
      const { body } = await asAdmin('GET', `/v1/operations/${operation.body.id}`)
      assert.deepEqual(pick(body, 'done', 'failed'), { done: 1, failed: 0 })
      assertError(world.service, await start(world, sub), TOO_MANY)
    })

    test('a repeat with its Idempotency-Key gets its answer at the limit', async () => {
      const world = await startWorld()
      const sub = newUser()
      const headers = { 'idempotency-key': 'one' }
      const first = await start(world, sub, REPORT, { headers })
      await world.quiet()
      await start(world, sub)
      await start(world, sub)
      const again = await start(world, sub, REPORT, { headers })
      assert.deepEqual([again.status, again.body.id], [202, first.body.id])
      assertError(world.service, await start(world, sub), TOO_MANY)
      await world.quiet()
    })
  })
})

describe('the quota of projects', () => {
  forEachServiceAndVariant((under) => {
    test('a creator at the limit gets 429 until a project is deleted; an admin is exempt', async () => {
      const service = await under.start({ env: { MAX_PROJECTS: '2' } })
      const sub = newUser()
      const create = (scopes: string[], name = sub): Promise<TestResponse<{ id: string }>> =>
        service.request('POST', '/v1/projects', {
          token: service.tokenFor({ sub: name, scopes }),
          body: { name: 'Mine' },
        })
      const first = await create(['write:projects'])
      assert.equal((await create(['write:projects'])).status, 201)
      const message = 'The limit of 2 projects is reached'
      const refused = await create(['write:projects'])
      assertError(service, refused, { status: 429, code: 'usage_limit_exceeded', message })
      assert.equal(refused.headers['retry-after'], '60')
      assert.equal((await create(['write:projects'], newUser())).status, 201, 'another creator')
      const token = service.tokenFor({ sub, scopes: ['write:projects'] })
      await service.request('DELETE', `/v1/projects/${first.body.id}`, { token })
      assert.equal((await create(['write:projects'])).status, 201)
      assert.equal((await create(['admin:*'])).status, 201)
    })
  })
})

describe('the quota of devices', () => {
  forEachServiceAndVariant((under) => {
    test('device 101 replaces a disabled device, or else is refused; a known device never is', async () => {
      const service = await under.start()
      const [token, other] = [service.tokenFor({ sub: newUser() }), service.tokenFor({ sub: newUser() })]
      const register = (device: string, by = token) =>
        service.request<{ id: string }>('POST', '/v1/devices', { token: by, body: { token: device, platform: 'web' } })
      const add = async (device: string, by = token) => {
        const answer = await register(device, by)
        assert.equal(answer.status, 201, answer.text)
        return answer.body.id
      }
      const list = async (of = token) => {
        const { body } = await service.request<{ data: { id: string }[] }>('GET', '/v1/devices?limit=100', {
          token: of,
        })
        return new Set(body.data.map(({ id }) => id))
      }
      const ids: string[] = []
      for (let n = 0; n < 100; n++) ids.push(await add(`device-${n}`))
      assert.equal(await add('device-0'), ids[0], 'one that is known takes no place')
      const [, , third = ''] = ids
      await service.db.query(sql`update devices set disabled_at = 1, disabled_reason = 'gone' where id = ${third}`)
      const more = await add('more')
      const left = await list()
      assert.deepEqual([left.size, left.has(third), left.has(more)], [100, false, true])

      const tooMany = {
        status: 429,
        code: 'usage_limit_exceeded',
        message: 'The limit of 100 devices is reached',
      } as const
      const refused = await register('too-many')
      assertError(service, refused, tooMany)
      assert.equal(refused.headers['retry-after'], '60')
      await add('of-another', other)
      assertError(service, await register('of-another'), tooMany)
      assert.equal((await list(other)).size, 1, 'its token stays where it was')
      assert.deepEqual(await list(), left)
      assert.equal(await add('device-1'), ids[1])
      await service.request('DELETE', `/v1/devices/${more}`, { token })
      await add('too-many')
    })
  })
})

/** Another node on the same database and the same runtime. */
function secondNode(under: ServiceUnderTest, { service, clock, runtime }: JobWorld): Promise<TestService> {
  const env = { MAX_UNFINISHED_JOBS: String(LIMIT), RUNTIME_URL: runtime.url }
  return under.start({ db: service.db, clock, jobTypes: service.services.jobContext.types, env })
}

function pick(value: object, ...names: string[]): object {
  return Object.fromEntries(Object.entries(value).filter(([name]) => names.includes(name)))
}
