import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { COUNTERS, HISTOGRAMS } from '../../src/core/metrics/metric-table.ts'
import { fullName } from '../../src/ops/metrics/metrics.ts'
import { READINGS } from '../../src/ops/metrics/reading-table.ts'
import { startPushProvider } from '../../src/sandbox/push-provider/push-provider.ts'
import { assertError } from '../support/assert-error.ts'
import { RUN_MS, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { MetricsText } from '../support/metrics-text.ts'
import { forEachService, onOneService, type TestService } from '../support/service.ts'
import { until } from '../support/until.ts'

async function scrape(service: TestService): Promise<MetricsText> {
  const token = service.tokenFor({ sub: 'root', scopes: ['admin:*'] })
  const answer = await service.request<string>('GET', '/metrics', { token })
  assert.equal(answer.status, 200, answer.text)
  return new MetricsText(answer.text)
}

/** How much some work adds to a series. */
async function added(
  service: TestService,
  series: readonly [name: string, labels?: Record<string, string>],
  work: () => Promise<unknown>,
): Promise<number> {
  const before = (await scrape(service)).sum(...series)
  await work()
  return (await scrape(service)).sum(...series) - before
}

describe('GET /metrics', () => {
  onOneService((under) => {
    test('the metrics need read:operations, by token or by key', async () => {
      const service = await under.shared()
      assertError(service, await service.request('GET', '/metrics'), { status: 401, code: 'unauthorized' })
      const user = service.tokenFor({ scopes: ['read:projects', 'write:users'] })
      assertError(service, await service.request('GET', '/metrics', { token: user }), {
        status: 403,
        code: 'forbidden',
      })
      const admin = service.tokenFor({ scopes: ['admin:*'] })
      const made = await service.request<{ key: string }>('POST', '/v1/service-accounts', {
        token: admin,
        body: { name: 'Prometheus', scopes: ['read:operations'] },
      })
      for (const credential of [{ token: admin }, { key: made.body.key }]) {
        const answer = await service.request('GET', '/metrics', credential)
        assert.equal(answer.status, 200)
        assert.equal(answer.headers['content-type'], 'text/plain; version=0.0.4; charset=utf-8')
        assert.equal(answer.headers['cache-control'], 'no-store')
        assert.ok(answer.headers['ratelimit-remaining'])
      }
    })

    test('the metrics are public with METRICS_PUBLIC, and not charged to any caller', async () => {
      const service = await under.start({ env: { METRICS_PUBLIC: 'true', RATE_LIMIT_UNAUTHENTICATED: '1' } })
      for (const credential of [{}, {}, { token: 'garbage' }, { key: 'garbage' }]) {
        const answer = await service.request<string>('GET', '/metrics', credential)
        assert.equal(answer.status, 200)
        assert.equal(answer.headers['ratelimit-limit'], undefined)
        assert.ok(new MetricsText(answer.text).metrics.size > 20)
      }
    })

    test('the metrics are text that Prometheus takes, and each name in it is one of the tables', async () => {
      const text = await scrape(await under.shared())
      const known = { ...COUNTERS, ...HISTOGRAMS, ...READINGS }
      for (const [name, { samples, help }] of text.metrics) {
        const spec = known[name.replace('project_api_', '') as keyof typeof known]
        assert.equal(help, spec?.help, name)
        for (const { labels } of samples) {
          const { le, ...own } = labels
          assert.deepEqual(Object.keys(own), [...spec.labels], name)
        }
      }
      // Without Redis its metrics are absent.
      const absent = Object.keys(READINGS).filter((name) => !text.metrics.has(fullName(name)))
      assert.deepEqual(absent, process.platform === 'linux' ? ['redis_up'] : ['redis_up', 'process_open_fds'])
      assert.equal(text.sum('build_info', { variant: under.variant, engine: 'sqlite' }), 1)
      assert.equal(text.sum('database_up'), 1)
      assert.ok(text.metrics.has('process_cpu_seconds_total'), 'the usual name, without a prefix')
      const startedAtMs = text.sum('process_start_time_seconds') * 1_000
      assert.ok(Math.abs(startedAtMs - performance.timeOrigin) < 1, 'since when the process runs')
    })

    test('requests are counted and timed by route pattern, and all unknown paths as one', async () => {
      const service = await under.start()
      const token = service.tokenFor({ scopes: ['read:projects'] })
      for (let i = 0; i < 50; i++) {
        const noise = randomBytes(6).toString('hex')
        await service.request('GET', `/v1/projects/prj_${noise}`, { token })
        await service.request('GET', `/${noise}/${noise}?${noise}=1`)
        await service.request('GET', `/v1/${noise}`, { token })
        await service.request(i % 2 ? 'PURGE' : 'PROPFIND', `/${noise}`)
      }
      const text = await scrape(service)
      const { samples = [] } = text.metrics.get('project_api_http_requests_total') ?? {}
      assert.deepEqual(
        samples.map(({ labels, value }) => [labels.method, labels.route, labels.status, value].join(' ')).sort(),
        ['GET /v1/projects/:id 404 50', 'GET unknown 404 100', 'other unknown 404 50'],
      )
      assert.equal(text.sum('http_request_duration_seconds_count', { route: '/v1/projects/:id' }), 50)
      assert.equal(text.sum('http_request_duration_seconds_count', { route: 'unknown' }), 150)
      assert.ok(text.samples.length < 300, `${text.samples.length} samples`)
    })

    test('bytes that are not a valid request are counted', async () => {
      const service = await under.shared()
      const malformed = ['http_malformed_requests_total', { code: 'invalid_request' }] as const
      assert.equal(await added(service, malformed, () => service.exchange('nonsense\r\n\r\n')), 1)
      assert.equal(await added(service, malformed, () => service.request('GET', '/%')), 1)
      const large = `GET / HTTP/1.1\r\nHost: x\r\nX-Large: ${'x'.repeat(40_000)}\r\n\r\n`
      const overflow = ['http_malformed_requests_total', { code: 'headers_too_large' }] as const
      assert.equal(await added(service, overflow, () => service.exchange(large)), 1)
    })

    test('each decision of the gate is counted once per request', async () => {
      const service = await under.start({ env: { WEBHOOK_SECRET: 'secret', RATE_LIMIT_AUTHENTICATED: '2' } })
      const cases = [
        ['public', () => service.request('GET', '/healthz')],
        ['ok', () => service.request('GET', '/v1/usage', { token: service.tokenFor({ sub: 'ada' }) })],
        ['forbidden', () => service.request('GET', '/v1/projects', { token: service.tokenFor({ sub: 'ada' }) })],
        ['spent', () => service.request('GET', '/v1/usage', { token: service.tokenFor({ sub: 'ada' }) })],
        ['missing', () => service.request('GET', '/v1/usage')],
        ['invalid', () => service.request('GET', '/v1/usage', { token: 'garbage' })],
        ['invalid', () => service.request('GET', '/v1/usage', { key: 'garbage' })],
        ['invalid', () => service.request('POST', '/webhooks/agent', { body: {} })],
        ['invalid', () => postSigned(service)],
      ] as const
      const decided = async () => {
        const { samples = [] } =
          new MetricsText(await service.services.metrics.render()).metrics.get('project_api_gate_outcomes_total') ?? {}
        return Object.fromEntries(samples.map(({ labels, value }) => [labels.outcome, value]))
      }
      for (const [outcome, attempt] of cases) {
        const before = await decided()
        await attempt()
        assert.deepEqual(await decided(), { ...before, [outcome]: (before[outcome] ?? 0) + 1 })
      }
      const text = new MetricsText(await service.services.metrics.render())
      assert.equal(text.sum('credentials_refused_total', { reason: 'malformed' }), 1)
      assert.equal(text.sum('credentials_refused_total', { reason: 'api_key' }), 1)
      assert.equal(text.sum('credentials_refused_total', { reason: 'callback' }), 2)
      assert.equal(text.sum('tier_charges_total', { tier: 'authenticated', exceeded: 'false' }), 2)
      assert.equal(text.sum('tier_charges_total', { tier: 'authenticated', exceeded: 'true' }), 1)
      assert.equal(text.sum('tier_charges_total', { tier: 'unauthenticated', exceeded: 'false' }), 5)
    })

    test('the metrics are served while the database is gone, and say that it is', async () => {
      const db = await under.engine.openDatabase()
      const service = await under.start({ db, env: { METRICS_PUBLIC: 'true' } })
      await db.close()
      const answer = await service.request<string>('GET', '/metrics')
      assert.equal(answer.status, 200)
      const text = new MetricsText(answer.text)
      assert.equal(text.sum('database_up'), 0)
      assert.equal(text.metrics.has('project_api_database_up'), true)
      assert.equal(text.metrics.has('project_api_jobs_unfinished'), false)
      assert.ok(text.sum('database_unavailable_total', { kind: 'query' }) > 0)
    })

    test('an open stream is counted as such, and not timed', async () => {
      const service = await under.start()
      const token = service.tokenFor({ expiresInSeconds: 60 })
      const stream = await fetch(`${service.url}/v1/events`, { headers: { authorization: `Bearer ${token}` } })
      assert.equal(stream.status, 200)
      const open = await scrape(service)
      assert.equal(open.sum('streams_open'), 1)
      assert.equal(open.sum('streams_opened_total'), 1)
      await service.clock.leap(60_000)
      await stream.text()
      await until(async () => (await scrape(service)).sum('http_requests_total', { route: '/v1/events' }) === 1)
      const ended = await scrape(service)
      assert.equal(ended.sum('streams_open'), 0)
      const timed = ['http_request_duration_seconds_count', { route: '/v1/events' }] as const
      assert.equal(ended.sum(...timed), 0)
      assert.equal(await added(service, timed, () => service.request('GET', '/v1/events')), 1)
    })
  })
})

describe('metrics of jobs', () => {
  forEachService((under) => {
    const shared = sharedJobWorld(under)
    const ends = (labels: Record<string, string>) => ['jobs_ended_total', { type: 'report', ...labels }] as const

    test('a job’s end is counted once, by the first hint', async () => {
      const world = await shared()
      const { service, runtime } = world
      const byCallback = await added(service, ends({ status: 'completed', settled_by: 'callback' }), async () => {
        await world.start('report')
        await world.pass(RUN_MS)
      })
      assert.equal(byCallback, 1)

      runtime.setFaults({ drop_callbacks: 1 })
      const read = await added(service, ends({ status: 'completed', settled_by: 'read' }), async () => {
        const { id } = await world.start('report')
        await world.pass(RUN_MS)
        await world.get(id)
        await world.get(id)
      })
      assert.equal(read, 1)

      const swept = await added(service, ends({ status: 'completed', settled_by: 'sweep' }), async () => {
        const { id } = await world.start('report')
        await world.sweepUntil(async () => (await world.stored(id)).status === 'completed')
      })
      assert.equal(swept, 1)
      runtime.setFaults({ drop_callbacks: 0 })
      const text = await scrape(service)
      assert.equal(text.sum('jobs_ended_total'), 3)
      assert.equal(text.sum('job_duration_seconds_count', { type: 'report', status: 'completed' }), 3)
      assert.ok(text.sum('sweep_rounds_total', { result: 'looked' }) > 0)
      assert.ok(text.sum('sweep_jobs_taken_total') > 0)
      assert.ok(text.sum('runtime_calls_total', { outcome: 'answered' }) > 0)
      assert.equal(text.sum('runtime_breaker_state', { state: 'closed' }), 1)
    })

    test('the size of the database is reported, and the room on its disk if it is embedded', async () => {
      const { service } = await shared()
      const text = await scrape(service)
      assert.ok(text.sum('database_size_bytes', { part: 'data' }) > 100_000)
      const isEmbedded = service.db.engine === 'sqlite'
      assert.equal(text.sum('database_size_bytes', { part: 'wal' }) > 0, isEmbedded)
      const [free, size] = [text.sum('disk_free_bytes'), text.sum('disk_size_bytes')]
      assert.deepEqual([size > 0, free <= size], [isEmbedded, true])
      assert.equal(text.metrics.has('project_api_disk_free_bytes'), isEmbedded)
    })

    test('callbacks are counted by outcome, and a repeat ends nothing', async () => {
      const world = await shared()
      const payload = { thread_id: randomUUID(), run_id: randomUUID(), status: 'success', values: { report: {} } }
      const outcome = (name: string) => ['callbacks_total', { outcome: name }] as const
      const ended = await added(world.service, ['jobs_ended_total'], async () => {
        const post = () => world.callback('report', payload)
        assert.equal(await added(world.service, outcome('adopted'), post), 1)
        assert.equal(await added(world.service, outcome('duplicate'), post), 1)
        const conflict = () => world.callback('summary', payload)
        assert.equal(await added(world.service, outcome('conflict'), conflict), 1)
        await world.quiet()
      })
      assert.equal(ended, 1)
      assert.ok((await scrape(world.service)).sum('group_commit_batch_size_count', { queue: 'callbacks' }) >= 3)
    })

    test('a job cancelled before it ran counts for neither callback, read nor sweep', async () => {
      const world = await shared()
      const { id } = await world.start('pausing')
      await world.pass(RUN_MS)
      assert.equal((await world.get(id)).status, 'awaiting_input')
      const series = ['jobs_ended_total', { type: 'pausing', status: 'cancelled', settled_by: 'none' }] as const
      const cancel = () => world.service.request('POST', `/jobs/${id}/cancel`, { token: world.admin })
      assert.equal(await added(world.service, series, cancel), 1)
      assert.equal(await added(world.service, series, cancel), 0)
    })

    test('jobs that have not ended are numbered by status, with the age of the oldest', async (t) => {
      const world = await startJobWorld(under, { env: { RUNTIME_URL: 'http://127.0.0.1:1' } })
      t.after(() => world.runtime.close())
      const sinceMs = world.clock.now()
      await world.start('report')
      await world.start('report')
      await world.sweepUntil(() => world.service.services.runtimeBreaker.state === 'open')
      await world.clock.advance(500)
      const text = await scrape(world.service)
      assert.equal(text.sum('jobs_unfinished', { status: 'processing' }), 2)
      const ageSeconds = (world.clock.now() - sinceMs) / 1_000
      assert.equal(text.sum('jobs_oldest_unfinished_age_seconds', { status: 'processing' }), ageSeconds)
      assert.equal(text.sum('jobs_unfinished', { status: 'generating' }), 0)
      assert.equal(text.sum('jobs_oldest_unfinished_age_seconds', { status: 'generating' }), 0)
      assert.ok(text.sum('runtime_calls_total', { outcome: 'unreachable' }) >= 5)
      assert.equal(text.sum('runtime_breaker_state', { state: 'open' }), 1)
      assert.equal(text.sum('runtime_breaker_state'), 1)
    })
  })
})

describe('metrics of push', () => {
  onOneService((under) => {
    test('verdicts and states of deliveries are counted, and the size of the outbox is reported', async (t) => {
      const clock = new ManualClock()
      const provider = await startPushProvider({ clock })
      t.after(() => provider.close())
      const { credentials, plainUrl } = provider
      const service = await under.start({
        clock,
        env: {
          PUSH_PROJECT_ID: credentials.projectId,
          PUSH_CLIENT_EMAIL: credentials.clientEmail,
          PUSH_PRIVATE_KEY: credentials.privateKey,
          PUSH_API_URL: plainUrl,
          PUSH_TOKEN_URL: `${plainUrl}/token`,
        },
      })
      assert.equal((await scrape(service)).sum('push_state', { state: 'ok' }), 1)
      const token = service.tokenFor({ sub: 'ada', scopes: ['admin:*'] })
      const notify = async (name: string) => {
        const device = { token: name, platform: 'web' }
        const added = await service.request<{ id: string }>('POST', '/v1/devices', { token, body: device })
        const body = { title: 'Hello', body: 'World', devices: [added.body.id] }
        const sent = await service.request('POST', '/v1/notifications', { token, body })
        assert.ok(sent.status < 300, sent.text)
      }
      service.services.outbox.wake()
      await notify('good-1')
      // A device is called dead with effect only once a message got through.
      await until(async () => (await scrape(service)).sum('deliveries_total') === 1)
      for (const name of ['dead-1', 'down-1']) await notify(name)
      await until(async () => (await scrape(service)).sum('deliveries_total') === 3)
      const text = await scrape(service)
      for (const verdict of ['sent', 'disable', 'retry']) assert.equal(text.sum('push_verdicts_total', { verdict }), 1)
      for (const state of ['sent', 'disabled', 'pending']) assert.equal(text.sum('deliveries_total', { state }), 1)
      assert.equal(text.sum('push_send_duration_seconds_count'), 3)
      await clock.advance(5_000)
      assert.equal((await scrape(service)).sum('outbox_depth'), 1)
    })

    test('the metrics of push say that there are no credentials', async () => {
      assert.equal((await scrape(await under.shared())).sum('push_state', { state: 'no_credentials' }), 1)
    })
  })
})

/** Carries a signature, so that the forgery is detected only with the body. */
function postSigned(service: TestService) {
  return service.request('POST', '/webhooks/agent', {
    body: {},
    headers: {
      'webhook-id': 'msg_1',
      'webhook-timestamp': String(Math.floor(service.clock.now() / 1000)),
      'webhook-signature': 'v1,Zm9yZ2Vk',
    },
  })
}
