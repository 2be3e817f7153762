import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { openStream } from '../support/event-stream.ts'
import { HttpClient, type TestRequest, type TestResponse } from '../support/http-client.ts'
import { type Served, untilAdmitted } from '../support/served.ts'
import { needsPostgres, needsRedis } from '../support/services.ts'
import { startTwoNodes, type TwoNodes } from '../support/two-nodes.ts'
import { until } from '../support/until.ts'

interface Job {
  id: string
  status: string
  settled_by: string | null
  reconcile: { attempts: number }
}

const LIMIT = 40
const GET_RUN = 'GET /threads/{t}/runs/{r}'
const START_RUN = 'POST /threads/{t}/runs'

/** How often a node lost Redis and began to count alone, and whether it still does. */
interface Losses {
  times: number
  isAlone: boolean
}

/** Up to now: the log of a node arrives late. */
async function findLosses(served: Served): Promise<Losses> {
  const { headers } = await served.request('GET', '/healthz')
  await until(() => served.program.output.includes(`"${headers['x-request-id']}"`))
  const linesOf = (event: string) => served.program.output.split(`"limiter.${event}"`).length - 1
  const times = linesOf('redis_lost')
  return { times, isAlone: times > linesOf('redis_recovered') }
}

/** The code and message of an error, from either envelope. */
function innerError({ body }: TestResponse): { code: unknown; message: unknown } {
  const { detail, error } = body as Record<'detail' | 'error', { code: unknown; message: unknown } | undefined>
  const { code, message } = detail ?? error ?? { code: undefined, message: undefined }
  return { code, message }
}

describe('two nodes on one database', { skip: needsPostgres().skip || needsRedis().skip }, () => {
  let nodes: TwoNodes
  before(async () => {
    // A node that stops listens for a quarter of this time: until then the balancer must have seen that it drains.
    nodes = await startTwoNodes({ SHUTDOWN_TIMEOUT_MS: '12000', RATE_LIMIT_SERVICE: String(LIMIT) })
  })
  after(() => nodes?.close())

  test('two nodes together admit exactly L requests for a limit of L, with any number of concurrent requests', async () => {
    const { a, b } = nodes
    const admin = nodes.token({ sub: 'root', scopes: ['admin:*'] })
    const losses = () => Promise.all([a, b].map(({ served }) => findLosses(served)))
    const sumOf = (found: Losses[]) => found.reduce((sum, { times }) => sum + times, 0)
    for (let round = 0; ; round++) {
      const body = { name: `counter ${round}`, scopes: ['read:projects'] }
      const account = await a.served.request<{ key: string }>('POST', '/v1/service-accounts', { token: admin, body })
      const { key } = account.body
      let before: Losses[] = []
      await until(async () => {
        before = await losses()
        return before.every(({ isAlone }) => !isAlone)
      })
      const answers = await Promise.all(
        Array.from({ length: 2 * LIMIT }, (_, n) =>
          untilAdmitted(() => (n % 2 === 0 ? a : b).served.request('GET', '/v1/projects', { key })),
        ),
      )
      // If the machine is too busy, a node loses Redis and counts alone: then repeat the round.
      if (sumOf(await losses()) > sumOf(before) && round < 5) continue
      const count = (status: number) => answers.filter((answer) => answer.status === status).length
      assert.deepEqual({ passed: count(200), refused: count(429) }, { passed: LIMIT, refused: LIMIT })
      return
    }
  })

  test('a stream on one node shows what the other node settled', async () => {
    const { a, b, balancer } = nodes
    const token = nodes.token({ sub: 'listener' })
    const stream = await openStream(a.served.url, '/v1/events', { token })
    const types: string[] = []
    // Callbacks go where the balancer sends them: now to B alone.
    const job = await balancer.without(a, async () => {
      const input = { title: 'Seen elsewhere' }
      const { body } = await b.served.request<Job>('POST', '/jobs', { token, body: { type: 'report', input } })
      while (!types.includes('job.completed')) {
        const { event, data } = await stream.next<{ job_id: string }>()
        assert.equal(data.data.job_id, body.id)
        types.push(event)
      }
      return body
    })
    stream.close()
    const { body: ended } = await b.served.request<Job>('GET', `/jobs/${job.id}`, { token })
    assert.equal(ended.settled_by, 'callback')
    assert.equal(types[0], 'job.created')
  })

  test('each check of the sweep and each push is made by one of two nodes', async () => {
    const { a, b, runtime, push } = nodes
    const token = nodes.token({ sub: 'sleeper' })
    const admin = nodes.token({ sub: 'root', scopes: ['admin:*'] })
    await runtime.reset()
    push.reset()
    runtime.setFaults({ drop_callbacks: 1 })
    const device = { token: 'the phone of sleeper', platform: 'android' }
    assert.equal((await a.served.request('POST', '/v1/devices', { token, body: device })).status, 201)
    const started = await Promise.all(
      Array.from({ length: 20 }, (_, n) =>
        untilAdmitted(() =>
          (n % 2 === 0 ? a : b).served.request<Job>('POST', '/jobs', {
            token,
            body: { type: 'report', input: { title: `Unread ${n}` } },
          }),
        ),
      ),
    )
    const ids = new Set(started.map(({ body }) => body.id))
    // Counted, not read: a read of an unfinished job, alone or in a list, asks the runtime as well.
    await until(async () => {
      const { body } = await b.served.request<{ counts: Record<string, number> }>('GET', '/v1/jobs/counts', { token })
      return body.counts.completed === ids.size
    })
    await push.untilArrivals(ids.size)
    const { body } = await b.served.request<{ data: Job[] }>('GET', '/jobs?limit=100', { token: admin })
    const jobs = body.data.filter(({ id }) => ids.has(id))
    const looks = jobs.reduce((sum, job) => sum + job.reconcile.attempts - 1, 0)
    assert.equal(jobs.length, 20)
    assert.ok(jobs.every(({ settled_by }) => settled_by === 'sweep'))
    assert.equal(runtime.stats.calls[START_RUN], 20)
    assert.equal(runtime.stats.calls[GET_RUN], looks)
    assert.deepEqual([push.stats.delivered, push.stats.repeated], [20, 0])
  })

  test('two nodes of different variants differ in the envelope of an error and in nothing else', async () => {
    const { a, b } = nodes
    const token = nodes.token({ sub: 'reader', scopes: ['read:projects', 'write:projects'] })
    const requests: [method: string, path: string, request: TestRequest][] = [
      ['GET', '/v1/projects', {}],
      ['GET', '/v1/projects', { token: 'not.a.token' }],
      ['GET', '/v1/users', { token }],
      ['GET', '/v1/projects/prj_none', { token }],
      ['GET', '/nowhere', { token }],
      ['DELETE', '/v1/projects', { token }],
      ['POST', '/v1/projects', { token, body: { name: '' } }],
      ['POST', '/v1/projects', { token, raw: '{', headers: { 'content-type': 'application/json' } }],
      ['POST', '/jobs', { token, body: { type: 'nothing', input: {} } }],
      ['POST', '/webhooks/jobs/report', { body: {} }],
    ]
    for (const [method, path, request] of requests) {
      const [fromA, fromB] = await Promise.all([
        a.served.request(method, path, request),
        b.served.request(method, path, request),
      ])
      const what = `${method} ${path}`
      assert.ok(fromA.status >= 400, what)
      assert.equal(fromA.status, fromB.status, what)
      assert.deepEqual(innerError(fromA), innerError(fromB), what)
      assert.equal(fromA.headers['www-authenticate'], fromB.headers['www-authenticate'], what)
      assert.deepEqual(Object.keys(fromA.body as object), ['detail'], what)
      assert.deepEqual(Object.keys(fromB.body as object), ['error'], what)
    }
    const made = await a.served.request<{ id: string }>('POST', '/v1/projects', { token, body: { name: 'Shared' } })
    const seen = await b.served.request('GET', `/v1/projects/${made.body.id}`, { token })
    assert.deepEqual(seen.body, made.body)
  })

  test('two nodes can be restarted one after the other under load, and no request is dropped', async () => {
    const { a, b, balancer } = nodes
    // A quick machine sends thousands: a user for every fifty requests keeps the rate limit out of it.
    const tokenOf = (client: number, n: number) =>
      nodes.token({ sub: `busy-${client}-${Math.floor(n / 50)}`, scopes: ['read:projects', 'write:projects'] })
    const load = { goesOn: true, answered: 0, dropped: [] as unknown[] }
    const requests: [method: string, path: string, body?: object][] = [
      ['GET', '/v1/projects'],
      ['POST', '/v1/projects', { name: 'while they change places' }],
      ['POST', '/jobs', { type: 'report', input: { title: 'while they change places' } }],
      ['GET', '/jobs'],
    ]
    const hammer = async (offset: number) => {
      const client = new HttpClient(balancer.url)
      for (let n = offset; load.goesOn; n++) {
        const [method, path, body] = requests[n % requests.length] ?? ['GET', '/jobs']
        const request = { token: tokenOf(offset, n), ...(body === undefined ? {} : { body }) }
        const answer = await client.request(method, path, request).catch((error: unknown) => error)
        load.answered += 1
        if (!isSuccess(answer)) load.dropped.push(answer)
      }
      client.close()
    }
    await until(() => balancer.isReady('A') && balancer.isReady('B'))
    const clients = Array.from({ length: 6 }, (_, n) => hammer(n))
    for (const place of [a, b]) {
      const before = load.answered
      await until(() => load.answered > before + 50)
      place.served.program.signal('SIGTERM')
      assert.equal((await place.served.program.untilEnded()).code, 0)
      await place.startAgain()
      await until(() => balancer.isReady(place.name))
    }
    const before = load.answered
    await until(() => load.answered > before + 50)
    load.goesOn = false
    await Promise.all(clients)
    assert.deepEqual(load.dropped, [])
  })
})

function isSuccess(answer: unknown): boolean {
  const { status } = answer as Partial<TestResponse>
  return status !== undefined && status >= 200 && status < 300
}
