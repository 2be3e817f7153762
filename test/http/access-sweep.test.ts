import assert from 'node:assert/strict'
import { createHash, randomUUID } from 'node:crypto'
import { before, describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import type { App } from '../../src/http/app-instance.ts'
import { assertError } from '../support/assert-error.ts'
import type { TestRequest } from '../support/http-client.ts'
import { onOneService, type ServiceUnderTest, type TestService } from '../support/service.ts'

const SCOPES = ['read:projects', 'write:projects', 'read:users', 'write:users', 'read:operations', 'admin:*'] as const

interface Example {
  /** Absent for the public ones; `any` admits every caller with a credential, `callback` the agent runtime. */
  scope?: 'any' | 'callback' | (typeof SCOPES)[number]
  path: string | ((service: TestService) => Promise<string>)
  body?: unknown
  headers?: Record<string, string>
  ok: number
  /**
   * For other callers, such as a service account, the record does not exist. Admins see it; `read:operations` sees it and
   * cannot change it.
   */
  ownedByCaller?: true
  /** The record does not exist for admins either. */
  notEvenAdmins?: true
  /** Service accounts have no such record, with `admin:*` or without. */
  forUsersOnly?: true
  /** The answer has no end, so the test sends HEAD. */
  stream?: true
}

const WEBHOOK_SECRET = 'webhook-secret-of-the-sweep'
const RUN_ENDED = { thread_id: randomUUID(), run_id: randomUUID(), status: 'success', values: {} }

/** For every route a request that succeeds, and its permitted callers. Written from the documentation, not from the code. */
const EXAMPLES: Record<string, Example> = {
  'GET /healthz': { path: '/healthz', ok: 200 },
  'GET /readyz': { path: '/readyz', ok: 200 },
  'GET /metrics': { scope: 'read:operations', path: '/metrics', ok: 200 },
  'GET /openapi.json': { path: '/openapi.json', ok: 200 },
  'GET /': { path: '/', headers: { accept: 'text/html' }, ok: 200 },
  'GET /docs': { path: '/docs', ok: 200 },
  'GET /console': { path: '/console', ok: 200 },
  'GET /console/*': { path: '/console/jobs', ok: 200 },
  'GET /console/settings.json': { path: '/console/settings.json', ok: 200 },
  'GET /console/assets/:name': { path: '/console/assets/none.js', ok: 404 },
  'GET /docs/start.js': { path: '/docs/start.js', ok: 200 },
  'GET /docs/reference.js': { path: '/docs/reference.js', ok: 200 },
  'GET /v1/projects': { scope: 'read:projects', path: '/v1/projects', ok: 200 },
  'POST /v1/projects': { scope: 'write:projects', path: '/v1/projects', body: { name: 'Sweep' }, ok: 201 },
  'GET /v1/projects/:id': { scope: 'read:projects', path: once(newProject), ok: 200 },
  'PATCH /v1/projects/:id': { scope: 'write:projects', path: once(newProject), body: { name: 'Swept' }, ok: 200 },
  'DELETE /v1/projects/:id': { scope: 'write:projects', path: newProject, ok: 204 },
  'GET /v1/users': { scope: 'read:users', path: '/v1/users', ok: 200 },
  'GET /v1/users/me': { scope: 'any', path: '/v1/users/me', ok: 200, forUsersOnly: true },
  'PATCH /v1/users/me': { scope: 'any', path: '/v1/users/me', body: { locale: 'de' }, ok: 200, forUsersOnly: true },
  'GET /v1/users/:sub': { scope: 'read:users', path: once(knownUser), ok: 200 },
  'PATCH /v1/users/:sub': { scope: 'write:users', path: once(knownUser), body: { locale: 'de' }, ok: 200 },
  'DELETE /v1/users/:sub': { scope: 'admin:*', path: newUser, ok: 202 },
  'POST /v1/users/:sub/block': { scope: 'admin:*', path: '/v1/users/to-block/block', ok: 200 },
  'POST /v1/users/:sub/unblock': { scope: 'admin:*', path: '/v1/users/to-block/unblock', ok: 200 },
  'PUT /v1/users/:sub/limits': {
    scope: 'admin:*',
    path: '/v1/users/swept/limits',
    body: { runs: 5, tokens: null },
    ok: 200,
  },
  'GET /v1/users/:sub/usage': { scope: 'read:users', path: '/v1/users/swept/usage', ok: 200 },
  'GET /v1/usage': { scope: 'any', path: '/v1/usage', ok: 200 },
  'GET /v1/job-types': { scope: 'any', path: '/v1/job-types', ok: 200 },
  'GET /jobs': { scope: 'any', path: '/jobs', ok: 200 },
  'GET /v1/jobs/counts': { scope: 'any', path: '/v1/jobs/counts', ok: 200 },
  'GET /v1/callers': { scope: 'read:operations', path: '/v1/callers', ok: 200 },
  'GET /v1/failures': { scope: 'read:operations', path: '/v1/failures', ok: 200 },
  'POST /jobs': { scope: 'any', path: '/jobs', body: { type: 'agent', input: {} }, ok: 202 },
  'GET /jobs/:id': { scope: 'any', path: once(newJob), ok: 200, ownedByCaller: true },
  'GET /jobs/:id/timeline': {
    scope: 'any',
    path: once(async (service) => `${await newJob(service)}/timeline`),
    ok: 200,
    ownedByCaller: true,
  },
  'PATCH /jobs/:id': {
    scope: 'any',
    path: once(waitingTurn),
    body: { input: { title: 'Swept' } },
    ok: 200,
    ownedByCaller: true,
  },
  'GET /v1/conversations': { scope: 'any', path: '/v1/conversations', ok: 200 },
  'GET /v1/conversations/:thread_id': { scope: 'any', path: once(endedConversation), ok: 200, ownedByCaller: true },
  'DELETE /v1/conversations/:thread_id': { scope: 'any', path: endedConversation, ok: 204, ownedByCaller: true },
  'DELETE /jobs/:id': { scope: 'any', path: endedJob, ok: 204, ownedByCaller: true },
  'POST /jobs/:id/cancel': {
    scope: 'any',
    path: async (service) => `${await newJob(service)}/cancel`,
    ok: 200,
    ownedByCaller: true,
  },
  'POST /jobs/:id/resume': {
    scope: 'any',
    path: async (service) => `${await newJob(service)}/resume`,
    body: { input: null },
    ok: 202,
    ownedByCaller: true,
  },
  'POST /jobs/:id/retry': {
    scope: 'any',
    path: async (service) => `${await endedJob(service)}/retry`,
    ok: 202,
    ownedByCaller: true,
  },
  'POST /jobs/:id/check': {
    scope: 'any',
    path: once(async (service) => `${await newJob(service)}/check`),
    ok: 200,
    ownedByCaller: true,
  },
  'POST /webhooks/agent': { scope: 'callback', path: '/webhooks/agent', body: RUN_ENDED, ok: 200 },
  'POST /webhooks/jobs/:type': { scope: 'callback', path: '/webhooks/jobs/agent', body: RUN_ENDED, ok: 200 },
  'GET /v1/events': { scope: 'any', path: '/v1/events', ok: 200, stream: true },
  'GET /jobs/:id/events': {
    scope: 'any',
    path: once(async (service) => `${await newJob(service)}/events`),
    ok: 200,
    ownedByCaller: true,
    stream: true,
  },
  'GET /jobs/:id/live': {
    scope: 'any',
    path: once(async (service) => `${await newJob(service)}/live`),
    ok: 200,
    ownedByCaller: true,
    stream: true,
  },
  'GET /v1/devices': { scope: 'any', path: '/v1/devices', ok: 200 },
  'POST /v1/devices': { scope: 'any', path: '/v1/devices', body: { token: 'sweep', platform: 'web' }, ok: 201 },
  'GET /v1/devices/:id': { scope: 'any', path: once(newDevice), ok: 200, ownedByCaller: true, notEvenAdmins: true },
  'DELETE /v1/devices/:id': { scope: 'any', path: newDevice, ok: 204, ownedByCaller: true, notEvenAdmins: true },
  'POST /v1/notifications': {
    scope: 'admin:*',
    path: '/v1/notifications',
    body: { users: ['swept'], title: 'Sweep', body: '' },
    ok: 201,
  },
  'GET /v1/notifications/:id': { scope: 'read:operations', path: once(newNotification), ok: 200 },
  'GET /v1/notifications': { scope: 'read:operations', path: '/v1/notifications', ok: 200 },
  'GET /v1/deliveries': { scope: 'read:operations', path: '/v1/deliveries', ok: 200 },
  'POST /v1/deliveries/:id/resend': { scope: 'admin:*', path: failedDelivery, ok: 200 },
  'GET /v1/stats': { scope: 'read:operations', path: '/v1/stats', ok: 200 },
  'GET /v1/callbacks': { scope: 'read:operations', path: '/v1/callbacks', ok: 200 },
  'GET /v1/push': { scope: 'read:operations', path: '/v1/push', ok: 200 },
  'GET /v1/refused-callbacks': { scope: 'read:operations', path: '/v1/refused-callbacks', ok: 200 },
  'POST /v1/callbacks/:id/replay': { scope: 'admin:*', path: once(storedCallback), ok: 200 },
  'GET /v1/callbacks/:id': {
    scope: 'read:operations',
    path: once(async (service) => (await storedCallback(service)).replace('/replay', '')),
    ok: 200,
  },
  'POST /v1/operations': {
    scope: 'admin:*',
    path: '/v1/operations',
    body: { action: 'check', ids: ['job_none'] },
    ok: 202,
  },
  'GET /v1/operations': { scope: 'read:operations', path: '/v1/operations', ok: 200 },
  'GET /v1/operations/:id': { scope: 'read:operations', path: once(newOperation), ok: 200 },
  'GET /v1/operations/:id/failures': {
    scope: 'read:operations',
    path: once(async (service) => `${await newOperation(service)}/failures`),
    ok: 200,
  },
  'POST /v1/operations/:id/cancel': {
    scope: 'admin:*',
    path: once(async (service) => `${await stoppedOperation(service)}/cancel`),
    ok: 200,
  },
  'GET /v1/settings': { scope: 'read:operations', path: '/v1/settings', ok: 200 },
  'GET /v1/users/:sub/devices': { scope: 'read:users', path: '/v1/users/swept/devices', ok: 200 },
  'GET /v1/users/:sub/export': {
    scope: 'admin:*',
    path: once(async (service) => `${await knownUser(service)}/export`),
    ok: 200,
  },
  'GET /v1/audit': { scope: 'read:operations', path: '/v1/audit', ok: 200 },
  'GET /v1/service-accounts': { scope: 'admin:*', path: '/v1/service-accounts', ok: 200 },
  'POST /v1/service-accounts': {
    scope: 'admin:*',
    path: '/v1/service-accounts',
    body: { name: 'Sweep', scopes: [] },
    ok: 201,
  },
  'GET /v1/service-accounts/:id': { scope: 'admin:*', path: once(newAccountPath), ok: 200 },
  'POST /v1/service-accounts/:id/rotate': {
    scope: 'admin:*',
    path: once(async (service) => `${await newAccountPath(service)}/rotate`),
    ok: 201,
  },
  'DELETE /v1/service-accounts/:id': { scope: 'admin:*', path: newAccountPath, ok: 204 },
  'GET /v1/webhook-endpoints': { scope: 'read:operations', path: '/v1/webhook-endpoints', ok: 200 },
  // An address that is not public: the sweep creates none.
  'POST /v1/webhook-endpoints': {
    scope: 'admin:*',
    path: '/v1/webhook-endpoints',
    body: { url: 'https://10.0.0.1', events: ['job.failed'] },
    ok: 400,
  },
  'GET /v1/webhook-endpoints/:id': { scope: 'read:operations', path: once(newEndpointPath), ok: 200 },
  'PATCH /v1/webhook-endpoints/:id': {
    scope: 'admin:*',
    path: once(newEndpointPath),
    body: { description: 'Sweep' },
    ok: 200,
  },
  'GET /v1/webhook-endpoints/:id/deliveries': {
    scope: 'read:operations',
    path: once(async (service) => `${await newEndpointPath(service)}/deliveries`),
    ok: 200,
  },
  'POST /v1/webhook-endpoints/:id/rotate': {
    scope: 'admin:*',
    path: once(async (service) => `${await newEndpointPath(service)}/rotate`),
    ok: 201,
  },
  'POST /v1/webhook-endpoints/:id/test': { scope: 'admin:*', path: '/v1/webhook-endpoints/whe_1/test', ok: 404 },
  'POST /v1/webhook-endpoints/:id/recover': {
    scope: 'admin:*',
    path: once(async (service) => `${await newEndpointPath(service)}/recover`),
    body: { since: '2026-01-01T00:00:00Z' },
    ok: 202,
  },
  'DELETE /v1/webhook-endpoints/:id': { scope: 'admin:*', path: newEndpointPath, ok: 204 },
  'POST /v1/webhook-deliveries/:id/resend': { scope: 'admin:*', path: '/v1/webhook-deliveries/whd_1/resend', ok: 404 },
}

async function newEndpointPath(service: TestService): Promise<string> {
  const token = service.tokenFor({ scopes: ['admin:*'] })
  const body = { url: 'https://8.8.8.8/sweep', events: ['job.failed'] }
  return String((await service.request('POST', '/v1/webhook-endpoints', { token, body })).headers.location)
}

/** Records that no request of the sweep changes are created once per service. */
function once<Made>(make: (service: TestService) => Promise<Made>): (service: TestService) => Promise<Made> {
  const made = new WeakMap<TestService, Promise<Made>>()
  return (service) => {
    const known = made.get(service) ?? make(service)
    made.set(service, known)
    return known
  }
}

async function newProject(service: TestService): Promise<string> {
  const token = service.tokenFor({ scopes: ['write:projects'] })
  const created = await service.request('POST', '/v1/projects', { token, body: { name: 'Sweep' } })
  return String(created.headers.location)
}

/** Paused by hand: no graph runs here that could ask for anything, and a read of it asks no runtime. */
async function newJob(service: TestService): Promise<string> {
  const body = { type: 'agent', input: {} }
  const created = await service.request<{ id: string }>('POST', '/jobs', { token: service.tokenFor(), body })
  assert.equal(created.status, 202, created.text)
  await service.services.jobWorker.idle()
  await service.db.query(sql`update jobs set status = 'awaiting_input' where id = ${created.body.id}`)
  await service.db.query(sql`delete from job_checks where job_id = ${created.body.id}`)
  return `/jobs/${created.body.id}`
}

async function endedJob(service: TestService): Promise<string> {
  const path = await newJob(service)
  const id = path.slice('/jobs/'.length)
  await service.db.query(sql`update jobs set status = 'failed', finished_at = 1 where id = ${id}`)
  return path
}

/** A turn that waits for the end of the turn before it. */
async function waitingTurn(service: TestService): Promise<string> {
  const path = await newJob(service)
  const id = path.slice('/jobs/'.length)
  await service.db.query(sql`
    insert into job_checks (job_id, owner, waits_on, due_at, starts, checks)
    select id, created_by, thread_id, ${8.64e15}, 0, 0 from jobs where id = ${id}
    on conflict (job_id) do update set waits_on = excluded.waits_on, due_at = excluded.due_at`)
  return path
}

async function endedConversation(service: TestService): Promise<string> {
  const id = (await endedJob(service)).slice('/jobs/'.length)
  const [thread] = await service.db.query<{ id: string }>(
    // Its thread was started elsewhere, so the runtime is not asked to delete it.
    sql`update threads set is_own = 0 where newest = ${id} returning id`,
  )
  return `/v1/conversations/${thread?.id}`
}

async function newDevice(service: TestService): Promise<string> {
  const body = { token: `sweep-${Math.random()}`, platform: 'web' }
  const created = await service.request<{ id: string }>('POST', '/v1/devices', { token: service.tokenFor(), body })
  return `/v1/devices/${created.body.id}`
}

async function newNotification(service: TestService): Promise<string> {
  const token = service.tokenFor({ scopes: ['admin:*'] })
  const body = { users: ['swept'], title: 'Sweep', body: '' }
  const created = await service.request('POST', '/v1/notifications', { token, body })
  return String(created.headers.location)
}

async function storedCallback(service: TestService): Promise<string> {
  const headers = { 'x-webhook-secret': WEBHOOK_SECRET }
  await service.request('POST', '/webhooks/agent', { headers, body: RUN_ENDED })
  const token = service.tokenFor({ scopes: ['admin:*'] })
  const listed = await service.request<{ data: { id: string }[] }>('GET', '/v1/callbacks', { token })
  return `/v1/callbacks/${listed.body.data[0]?.id}/replay`
}

async function failedDelivery(service: TestService): Promise<string> {
  const token = service.tokenFor({ scopes: ['admin:*'] })
  const device = (await newDevice(service)).slice('/v1/devices/'.length)
  const body = { devices: [device], title: 'Sweep', body: '' }
  const { body: sent } = await service.request<{ id: string }>('POST', '/v1/notifications', { token, body })
  await service.db.query(sql`
    update deliveries set state = 'failed', next_attempt_at = null, lease_token = null where notification_id = ${sent.id}`)
  return `/v1/deliveries/dlv_${sent.id.slice('ntf_'.length)}${device.slice('dev_'.length)}/resend`
}

async function newOperation(service: TestService): Promise<string> {
  const token = service.tokenFor({ scopes: ['admin:*'] })
  const body = { action: 'check', ids: ['job_none'] }
  const created = await service.request('POST', '/v1/operations', { token, body })
  return String(created.headers.location)
}

async function stoppedOperation(service: TestService): Promise<string> {
  const path = await newOperation(service)
  const id = path.slice('/v1/operations/'.length)
  await service.db.query(sql`update operations set state = 'cancelled', finished_at = 1 where id = ${id}`)
  return path
}

async function knownUser(service: TestService): Promise<string> {
  await service.request('GET', '/v1/users/me', { token: service.tokenFor({ sub: 'swept' }) })
  return '/v1/users/swept'
}

let users = 0
async function newUser(service: TestService): Promise<string> {
  const sub = `to-erase-${users++}`
  await service.request('GET', '/v1/users/me', { token: service.tokenFor({ sub }) })
  return `/v1/users/${sub}`
}

async function newAccount(service: TestService, scopes: readonly string[]) {
  const token = service.tokenFor({ scopes: ['admin:*'] })
  const body = { name: 'Sweep', scopes }
  const created = await service.request<{ key: string }>('POST', '/v1/service-accounts', { token, body })
  return { key: created.body.key, path: String(created.headers.location) }
}

const keys = once(async (service) =>
  Promise.all(SCOPES.map(async (scope) => ({ scope, key: (await newAccount(service, [scope])).key }))),
)

async function newAccountPath(service: TestService): Promise<string> {
  return (await newAccount(service, [])).path
}

describe('access to every route', () => {
  onOneService((under) => {
    const routes: string[] = []
    let service: TestService
    before(async () => {
      const watch = (app: App) => {
        app.addHook('onRoute', ({ method, url }) => {
          for (const one of [method].flat()) routes.push(`${one} ${url}`)
        })
      }
      // The runtime is down: jobs are accepted, and their status does not change.
      service = await under.start({ extend: watch, env: { WEBHOOK_SECRET, RUNTIME_URL: 'http://127.0.0.1:1' } })
    })

    test('each route has its example here, and each example its route', () => {
      const withoutHeads = routes.filter((route) => !route.startsWith('HEAD '))
      assert.deepEqual(withoutHeads.sort(), Object.keys(EXAMPLES).sort())
      const gets = withoutHeads.filter((route) => route.startsWith('GET '))
      const heads = routes.filter((route) => route.startsWith('HEAD '))
      assert.deepEqual(
        heads.sort(),
        gets.map((route) => `HEAD${route.slice(3)}`),
        'HEAD goes with GET, so that the sweep over GET covers it',
      )
    })

    for (const [route, example] of Object.entries(EXAMPLES)) {
      if (example.scope === undefined) sweepPublic(route, example, () => service)
      else if (example.scope === 'callback') sweepCallback(route, example, () => service)
      else sweepClosed(route, example, () => service)
    }

    sweepUnknown(() => service)
    sweepBoot(under)
  })
})

function sweepPublic(route: string, example: Example, current: () => TestService): void {
  test(`${route} is public`, async () => {
    const service = current()
    const path = route.replace('GET ', '')
    const { headers = {} } = example
    for (const credential of [{}, { token: 'garbage' }, { key: 'garbage' }]) {
      assert.equal((await service.request('GET', path, { headers, ...credential })).status, example.ok)
      assert.equal((await service.request('HEAD', path, { headers, ...credential })).status, example.ok)
    }
  })
}

function sweepCallback(route: string, { path, body, ok }: Example, current: () => TestService): void {
  test(`${route} is for the agent runtime alone`, async () => {
    const service = current()
    const attempt = (options: TestRequest) => service.request('POST', String(path), { body, ...options })
    const refused = { status: 401, code: 'unauthorized', message: 'Invalid or missing callback credential' } as const
    const strangers: TestRequest[] = [{}, { token: 'garbage' }, { headers: { 'x-webhook-secret': 'garbage' } }]
    for (const stranger of [...strangers, { token: service.tokenFor({ scopes: ['admin:*'] }) }]) {
      assertError(service, await attempt(stranger), refused)
    }
    assert.equal((await attempt({ headers: { 'x-webhook-secret': WEBHOOK_SECRET } })).status, ok)
    assert.equal((await attempt({ token: WEBHOOK_SECRET })).status, ok)
  })
}

function sweepClosed(route: string, example: Example, current: () => TestService): void {
  const { scope, body, ok } = example
  const [method = ''] = route.split(' ')
  const admitted = example.stream ? 'HEAD' : method
  const attempt = async (options: TestRequest, as = method) =>
    current().request(as, await pathOf(example, current()), { ...options, body })

  test(`${route} refuses a caller without a credential, or with a bad one`, async () => {
    const service = current()
    const missing = { status: 401, code: 'unauthorized', message: 'Missing bearer token' } as const
    const invalid = { status: 401, code: 'unauthorized', message: 'Invalid or expired token' } as const
    const anonymous = await attempt({})
    assertError(service, anonymous, missing)
    assert.equal(anonymous.headers['www-authenticate'], 'Bearer')
    assertError(service, await attempt({ headers: { authorization: 'Basic YTpi' } }), missing)
    const garbage = await attempt({ token: 'garbage' })
    assertError(service, garbage, invalid)
    assert.match(String(garbage.headers['www-authenticate']), /^Bearer error="invalid_token"/)
    const expired = service.tokenFor({ scopes: ['admin:*'], expiresInSeconds: -1 })
    assertError(service, await attempt({ token: expired }), invalid)
    assertError(service, await attempt({ key: 'garbage' }), { ...invalid, message: 'Invalid or expired API key' })
  })

  test(`${route} lets its scope and admin:* in, and no other caller`, async () => {
    const service = current()
    const lookalikes = ['read:project', 'admin', 'admin:', 'ADMIN:*', 'admin:*x']
    for (const scopes of [[], ...SCOPES.map((name) => [name]), lookalikes, ['x', 'admin:*', 'y']]) {
      const allowed = scope === 'any' || scopes.includes(scope ?? '') || scopes.includes('admin:*')
      const answer = await attempt({ token: service.tokenFor({ scopes }) }, admitted)
      if (allowed) assert.equal(answer.status, ok, `${scopes}: ${answer.text}`)
      else {
        assertError(service, answer, { status: 403, code: 'forbidden', message: 'Insufficient scope' })
        assert.equal(answer.headers['www-authenticate'], `Bearer error="insufficient_scope", scope="${scope}"`)
      }
    }
  })

  test(`${route} treats a service key as it treats a token`, async () => {
    const service = current()
    for (const { scope: granted, key } of await keys(service)) {
      const allowed = scope === 'any' || granted === scope || granted === 'admin:*'
      const sees = granted === 'admin:*' || granted === 'read:operations'
      const foreign = example.ownedByCaller && (example.notEvenAdmins || !sees)
      const unknown = example.forUsersOnly || foreign
      const onlySeen = example.ownedByCaller && !unknown && granted === 'read:operations' && method !== 'GET'
      const answer = await attempt({ key }, admitted)
      if (allowed && !onlySeen) assert.equal(answer.status, unknown ? 404 : ok, answer.text)
      else assertError(service, answer, { status: 403, code: 'forbidden', message: 'Insufficient scope' })
    }
  })

  if (method !== 'GET') return
  test(`HEAD of ${route} needs the same credentials and scopes as GET`, async () => {
    const service = current()
    assert.equal((await attempt({}, 'HEAD')).status, 401)
    assert.equal((await attempt({ token: 'garbage' }, 'HEAD')).status, 401)
    assert.equal((await attempt({ token: service.tokenFor() }, 'HEAD')).status, scope === 'any' ? ok : 403)
    assert.equal((await attempt({ token: service.tokenFor({ scopes: ['admin:*'] }) }, 'HEAD')).status, ok)
  })
}

function sweepUnknown(current: () => TestService): void {
  test('a caller without a credential does not learn which paths under /v1/ exist', async () => {
    const service = current()
    const missing = { status: 401, code: 'unauthorized', message: 'Missing bearer token' } as const
    for (const path of ['/v1/nothing', '/v1/', '/v1', '/v1/projects/x/y', '/v1/nothing?x=1', '/v1?x=1']) {
      assertError(service, await service.request('GET', path), missing)
      assertError(service, await service.request('POST', path, { body: {} }), missing)
      const known = await service.request('GET', path, { token: service.tokenFor() })
      assertError(service, known, { status: 404, code: 'not_found', message: 'No such path' })
    }
    assertError(service, await service.request('PUT', '/v1/projects'), missing)
  })

  test('an unknown path outside /v1/ is a 404 for all callers', async () => {
    const service = current()
    for (const path of ['/', '/nothing', '/V1/projects', '/v1x', '/docs/', '/docs/../etc/passwd', '//v1/projects']) {
      assertError(service, await service.request('GET', path), { status: 404, code: 'not_found' })
      assertError(service, await service.request('GET', path, { token: 'garbage' }), { status: 404, code: 'not_found' })
    }
  })

  test('a path with a superfluous or missing /v1, and the root, are a 404 with a hint', async () => {
    const service = current()
    const pointers = {
      '/': 'the API reference is at /docs',
      '/v1/jobs': 'did you mean /jobs',
      '/v1/jobs/job_1/timeline': 'did you mean /jobs/{id}/timeline',
      '/v1/webhooks/agent': 'did you mean /webhooks/agent',
      '/projects?limit=1': 'did you mean /v1/projects',
    }
    for (const [path, pointer] of Object.entries(pointers)) {
      const answer = await service.request('GET', path, { token: service.tokenFor() })
      assertError(service, answer, { status: 404, code: 'not_found', message: `No such path: ${pointer}` })
    }
  })

  test('the root is a page for browsers, and an unknown path for API clients with any method', async () => {
    const service = current()
    const hint = { status: 404, code: 'not_found', message: 'No such path: the API reference is at /docs' } as const
    for (const accept of ['*/*', 'application/json', '']) {
      assertError(service, await service.request('GET', '/', { headers: { accept } }), hint)
    }
    assertError(service, await service.request('POST', '/', { headers: { accept: 'text/html' }, body: {} }), hint)

    const browser = { headers: { accept: 'text/html,application/xhtml+xml,*/*;q=0.8' } }
    const page = await service.request('GET', '/', browser)
    assert.equal(page.headers['content-type'], 'text/html; charset=utf-8')
    const policy = String(page.headers['content-security-policy'])
    assert.match(policy, /^default-src 'none'; /)
    const [, style = ''] = /<style>([^<]*)<\/style>/.exec(page.text) ?? []
    assert.ok(
      policy.includes(`'sha256-${createHash('sha256').update(style).digest('base64')}'`),
      'the style is allowed',
    )
    assert.doesNotMatch(page.text, /<script/)
    const links = Array.from(page.text.matchAll(/href="(\/[^"]*)"/g), ([, path = '']) => path)
    assert.deepEqual(links, ['/docs', '/openapi.json', '/healthz', '/readyz', '/console'])
    for (const link of links) assert.equal((await service.request('GET', link, browser)).status, 200, link)
  })

  test('a wrong method is a 405 that names the right ones', async () => {
    const service = current()
    const token = service.tokenFor()
    const cases = [
      { method: 'PUT', path: '/v1/projects', allow: 'GET, HEAD, POST' },
      { method: 'PUT', path: 'http://x/v1/projects?limit=1', allow: 'GET, HEAD, POST' },
      { method: 'PUT', path: '/v%31/projects', allow: 'GET, HEAD, POST' },
      { method: 'DELETE', path: '/v1/projects?limit=1', allow: 'GET, HEAD, POST' },
      { method: 'POST', path: '/v1/projects/prj_1', allow: 'DELETE, GET, HEAD, PATCH' },
      { method: 'PUT', path: '/v1/users/me', allow: 'DELETE, GET, HEAD, PATCH' },
      { method: 'GET', path: '/v1/service-accounts/svc_1/rotate', allow: 'POST' },
      { method: 'OPTIONS', path: '/v1/users', allow: 'GET, HEAD' },
      { method: 'POST', path: '/healthz', allow: 'GET, HEAD' },
    ]
    for (const { method, path, allow } of cases) {
      const answer = await service.request(method, path, { token })
      assertError(service, answer, {
        status: 405,
        code: 'method_not_allowed',
        message: `${method} is not allowed here`,
      })
      assert.equal(answer.headers.allow, allow)
    }
  })

  test('the credential is checked before everything else in the request', async () => {
    const service = current()
    const unauthorized = { status: 401, code: 'unauthorized' } as const
    const json = { 'content-type': 'application/json' }
    const post = (options: object) => service.request('POST', '/v1/projects', options)
    assertError(service, await post({ raw: '{', headers: json }), unauthorized)
    assertError(service, await post({ raw: '<x/>', headers: { 'content-type': 'text/xml' } }), unauthorized)
    assertError(service, await post({ raw: 'x'.repeat(1_048_577), headers: json }), unauthorized)
    assertError(service, await post({ body: {}, token: 'garbage' }), unauthorized)
    const forbidden = { status: 403, code: 'forbidden' } as const
    assertError(service, await post({ raw: '{', headers: json, token: service.tokenFor() }), forbidden)
    assertError(service, await service.request('GET', '/v1/projects?limit=0', { token: service.tokenFor() }), forbidden)
  })
}

function sweepBoot(under: ServiceUnderTest): void {
  test('a route that declares no access stops the boot', async () => {
    const extend = (app: App) => {
      app.register(async (child) => {
        child.get('/forgotten', () => 'secret')
      })
    }
    await assert.rejects(under.start({ extend }), /Route GET \/forgotten declares no access/)
  })
}

async function pathOf({ path }: Example, service: TestService): Promise<string> {
  return typeof path === 'string' ? path : await path(service)
}
