import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, describe, test } from 'node:test'
import { type AgentRuntime, startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { type SandboxPushProvider, startPushProvider } from '../../src/sandbox/push-provider/push-provider.ts'
import { Canaries } from '../support/canaries.ts'
import { runCommand } from '../support/command.ts'
import type { TestRequest, TestResponse } from '../support/http-client.ts'
import { type PostgresServer, startPostgres } from '../support/postgres.ts'
import type { Settings } from '../support/program.ts'
import { type Served, settingsWith, sharedIssuer, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'
import { needsPostgres } from '../support/services.ts'
import { until } from '../support/until.ts'

const WEBHOOK_SECRETS = ['canary-webhook-secret-new', 'canary-webhook-secret-old'] as const
const RUNTIME_KEY = 'canary-runtime-api-key'
const DATABASE_PASSWORD = 'canary-database-password'
const REDIS_PASSWORD = 'canary-redis-password'
const IDEMPOTENCY_KEY = 'canary-idempotency-key'
/** The sandbox's provider refuses tokens by their prefix. */
const DEVICE_TOKENS = ['canary-registration-token', 'unregistered-canary-registration', 'quota-canary-registration']

/** A service with a secret in every possible place, and all its dependencies. */
class SecretWorld {
  readonly canaries = new Canaries()
  readonly served: Served
  readonly settings: Settings
  readonly postgres: PostgresServer
  readonly runtime: AgentRuntime
  readonly push: SandboxPushProvider
  readonly callbackUrls: string[]

  constructor(parts: Pick<SecretWorld, 'served' | 'settings' | 'postgres' | 'runtime' | 'push' | 'callbackUrls'>) {
    this.served = parts.served
    this.settings = parts.settings
    this.postgres = parts.postgres
    this.runtime = parts.runtime
    this.push = parts.push
    this.callbackUrls = parts.callbackUrls
    const pem = parts.push.credentials.privateKey.split('\n')
    const listed = { RUNTIME_KEY, DATABASE_PASSWORD, REDIS_PASSWORD, IDEMPOTENCY_KEY, PRIVATE_KEY: pem[3] ?? '' }
    for (const [name, secret] of Object.entries(listed)) this.canaries.watch(name, secret)
    for (const secret of [...WEBHOOK_SECRETS, ...DEVICE_TOKENS]) this.canaries.watch(secret, secret)
  }

  /** Sends a request, and records the whole answer. */
  async ask<Body = Record<string, unknown>>(method: string, path: string, request: TestRequest = {}) {
    const answer = await this.served.request<Body>(method, path, request)
    this.canaries.hear(`${method} ${path.split('?', 1)[0]}`, wordsOf(answer))
    return answer
  }

  async doctor(): Promise<void> {
    const { output, errors } = await runCommand(['doctor'], this.settings)
    this.canaries.hear('doctor', output + errors)
  }

  async bearer(sub: string, scopes: string[]): Promise<string> {
    const token = (await sharedIssuer()).mint({ sub, scopes })
    this.canaries.watch(`token of ${sub}`, token)
    this.canaries.watch(`signature of ${sub}`, token.split('.')[2] ?? '')
    return token
  }
}

async function startSecretWorld(): Promise<SecretWorld> {
  const callbackUrls: string[] = []
  const runtime = await startAgentRuntime({
    apiKey: RUNTIME_KEY,
    fetch: (url, init) => {
      callbackUrls.push(String(url))
      return fetch(url, init)
    },
  })
  after(() => runtime.close())
  const push = await startPushProvider()
  after(() => push.close())
  const postgres = await startPostgres()
  after(() => postgres.stop())
  const database = new URL(await postgres.createDatabase())
  database.password = DATABASE_PASSWORD
  // On a busy machine, a migration may take longer than the timeout of the service below.
  const migrated = await runCommand(['migrate'], await settingsWith({ DATABASE_URL: database.href }))
  assert.equal(migrated.code, 0, migrated.errors)
  const port = await freePort()
  const settings = await settingsWith({
    LOG_LEVEL: 'debug',
    METRICS_PUBLIC: 'true',
    PORT: String(port),
    PUBLIC_URL: `http://127.0.0.1:${port}`,
    DATABASE_URL: `${database.href}?query_timeout=1000`,
    // No server listens there: the error message must not contain the credentials either.
    REDIS_URL: `redis://:${REDIS_PASSWORD}@127.0.0.1:${await freePort()}`,
    WEBHOOK_SECRET: WEBHOOK_SECRETS.join(','),
    RUNTIME_URL: runtime.url,
    RUNTIME_API_KEY: RUNTIME_KEY,
    RUNTIME_TIMEOUT_MS: '1000',
    PUSH_PROJECT_ID: push.credentials.projectId,
    PUSH_CLIENT_EMAIL: push.credentials.clientEmail,
    PUSH_PRIVATE_KEY: push.credentials.privateKey.replaceAll('\n', '\\n'),
    PUSH_API_URL: push.plainUrl,
    PUSH_TOKEN_URL: `${push.plainUrl}/token`,
  })
  const served = await startServe({ settings })
  return new SecretWorld({ served, settings, postgres, runtime, push, callbackUrls })
}

describe('secrets', needsPostgres(), () => {
  test('secrets are in no log line, answer, metric or report, on success and on failure', async () => {
    const world = await startSecretWorld()
    const { canaries } = world
    const admin = await world.bearer('root', ['admin:*'])
    const user = await world.bearer('ada', ['read:projects', 'write:projects'])
    const key = await useServiceAccount(world, admin)
    await registerDevices(world, user)
    const jobId = await runJob(world, user)
    await lookAround(world, { admin, user, key, jobId })
    await askBadly(world, { user, jobId })
    await world.doctor()

    world.push.setFaults({ refuse: 'permission', exchange: 'refused' })
    await world.ask('POST', '/v1/notifications', { token: admin, body: { title: 'x', body: 'x', users: ['ada'] } })
    await world.served.program.untilSaid(/"outbox\.halted"/)
    await world.doctor()
    await world.runtime.close()
    const lost = await world.ask('POST', '/jobs', { token: user, body: { type: 'agent', input: {} } })
    await world.ask('GET', `/jobs/${lost.body.id}`, { token: user })
    await world.ask('GET', `/jobs/${lost.body.id}/timeline`, { token: user })
    await world.postgres.kill()
    await lookAround(world, { admin, user, key, jobId })
    await askBadly(world, { user, jobId })
    await world.doctor()

    world.served.program.signal('SIGINT')
    const { output, errors } = await world.served.program.untilEnded()
    canaries.hear('the log', output)
    canaries.hear('the error output', errors)
    assert.deepEqual(canaries.findLeaks(), [])
    assert.ok(canaries.heard > 60)
    for (const said of ['callback.received', 'outbox.halted', 'request.refused', 'limiter.redis_lost']) {
      assert.ok(output.includes(`"${said}"`), `nothing was said of ${said}`)
    }
  })
})

async function useServiceAccount(world: SecretWorld, admin: string): Promise<string> {
  const { served, canaries } = world
  // The one answer that shows it, by design.
  const made = await served.request<{ id: string; key: string }>('POST', '/v1/service-accounts', {
    token: admin,
    headers: { 'idempotency-key': IDEMPOTENCY_KEY },
    body: { name: 'backend', scopes: ['read:projects'] },
  })
  assert.equal(made.status, 201, made.text)
  canaries.watch('an API key', made.body.key)
  const repeat = { token: admin, headers: { 'idempotency-key': IDEMPOTENCY_KEY } }
  await world.ask('POST', '/v1/service-accounts', { ...repeat, body: { name: 'backend', scopes: ['read:projects'] } })
  await world.ask('POST', '/v1/service-accounts', { ...repeat, body: { name: 'another', scopes: [] } })
  const rotated = await served.request<{ key: string }>('POST', `/v1/service-accounts/${made.body.id}/rotate`, {
    token: admin,
    body: { grace_seconds: 60 },
  })
  assert.equal(rotated.status, 201, rotated.text)
  canaries.watch('a rotated API key', rotated.body.key)
  assert.equal((await world.ask('GET', '/v1/projects', { key: rotated.body.key })).status, 200)
  await world.ask('GET', '/v1/service-accounts', { token: admin })
  return made.body.key
}

async function registerDevices(world: SecretWorld, user: string): Promise<void> {
  for (const token of DEVICE_TOKENS) {
    const headers = { 'idempotency-key': `${IDEMPOTENCY_KEY}-${token}` }
    const made = await world.ask('POST', '/v1/devices', { token: user, headers, body: { token, platform: 'web' } })
    assert.equal(made.status, 201, made.text)
  }
  await world.ask('GET', '/v1/devices', { token: user })
}

async function runJob(world: SecretWorld, user: string): Promise<string> {
  const { body } = await world.ask<{ id: string }>('POST', '/jobs', { token: user, body: { type: 'agent', input: {} } })
  const settled = async () => {
    const job = await world.ask<{ status: string; settled_by: string }>('GET', `/jobs/${body.id}`, { token: user })
    return job.body.status === 'completed'
  }
  await until(settled)
  await until(() => world.callbackUrls.length > 0)
  for (const url of world.callbackUrls)
    world.canaries.watch('a callback token', new URL(url).searchParams.get('token') ?? '')
  return body.id
}

/** Every response and page, as each principal may read it. */
async function lookAround(
  world: SecretWorld,
  { admin, user, key, jobId }: { admin: string; user: string; key: string; jobId: string },
): Promise<void> {
  const job = [`/jobs/${jobId}`, `/jobs/${jobId}/timeline`, '/jobs']
  const own = ['/v1/users/me', '/v1/devices', '/v1/usage', '/v1/job-types', '/v1/projects']
  for (const path of [...job, ...own]) await world.ask('GET', path, { token: user })
  for (const path of ['/v1/callbacks', '/v1/service-accounts', '/v1/users', '/metrics']) {
    await world.ask('GET', path, { token: admin })
  }
  for (const path of ['/v1/projects', '/v1/callbacks']) await world.ask('GET', path, { key })
  for (const path of ['/healthz', '/readyz', '/metrics', '/openapi.json']) await world.ask('GET', path)
}

/** Valid secrets in wrong places, and invalid ones that look valid. */
async function askBadly(world: SecretWorld, { user, jobId }: { user: string; jobId: string }): Promise<void> {
  const [secret] = WEBHOOK_SECRETS
  const [callbackUrl = ''] = world.callbackUrls
  const { search } = new URL(callbackUrl)
  const end = {
    thread_id: randomUUID(),
    run_id: randomUUID(),
    status: 'success',
    kwargs: { webhook: callbackUrl },
    values: {},
  }
  const json = { 'content-type': 'application/json' }
  const cases: [method: string, path: string, request: TestRequest][] = [
    ['POST', '/webhooks/agent', { headers: { 'x-webhook-secret': secret }, raw: JSON.stringify(end) }],
    ['POST', '/webhooks/agent', { headers: { authorization: `Bearer ${secret}` }, raw: 'no JSON' }],
    ['POST', '/webhooks/jobs/nothing', { headers: { 'x-webhook-secret': secret }, raw: '{}' }],
    ['POST', `/webhooks/agent${search}`, { raw: JSON.stringify({ ...end, kwargs: { webhook: callbackUrl } }) }],
    ['POST', `/webhooks/agent${search}x`, { raw: JSON.stringify(end) }],
    ['GET', `/webhooks/agent${search}`, {}],
    ['GET', `/jobs/${jobId}${search}`, { token: user }],
    ['GET', `/${secret}?token=${user}`, {}],
    ['GET', `/v1/projects/${secret}`, { token: user }],
    ['GET', `/v1/projects?cursor=${secret}`, { token: user }],
    ['GET', '/v1/projects', { token: `${user}x` }],
    ['GET', '/v1/projects', { headers: { authorization: `Basic ${secret}`, cookie: user } }],
    ['GET', '/v1/projects', { key: `${secret}x` }],
    ['GET', '/v1/events', { token: user, headers: { 'last-event-id': secret } }],
    ['POST', '/v1/devices', { token: user, body: { token: DEVICE_TOKENS[0], platform: 'toaster' } }],
    ['POST', '/v1/devices', { token: user, headers: json, raw: `{"token":"${DEVICE_TOKENS[0]}"` }],
    ['POST', '/v1/devices', { token: user, headers: { 'idempotency-key': `${IDEMPOTENCY_KEY} ` }, body: {} }],
    ['PATCH', '/v1/users/me', { token: user, headers: { ...json, 'if-match': secret }, raw: '{}' }],
    ['POST', '/v1/projects', { token: user, headers: { 'content-type': secret }, raw: secret }],
  ]
  for (const [method, path, request] of cases) await world.ask(method, path, request)
}

function wordsOf({ status, headers, text }: TestResponse<unknown>): string {
  return `${status} ${JSON.stringify(headers)} ${text}`
}
