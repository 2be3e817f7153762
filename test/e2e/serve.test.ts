import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Agent, type IncomingMessage, request as send } from 'node:http'
import { type AddressInfo, connect, createServer } from 'node:net'
import { describe, test } from 'node:test'
import { assertError } from '../support/assert-error.ts'
import { openStream } from '../support/event-stream.ts'
import { HttpClient } from '../support/http-client.ts'
import { type LiveView, openLive } from '../support/live-view.ts'
import { Program, type Settings } from '../support/program.ts'
import { type Served, settingsWith, sharedIssuer, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'
import { needsPostgres, sharedMigratedDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'

const NO_LIMITS = { RATE_LIMIT_AUTHENTICATED: '1000000', RATE_LIMIT_UNAUTHENTICATED: '1000000' }

async function mint(): Promise<string> {
  return (await sharedIssuer()).mint({ sub: 'a-user', scopes: ['read:projects', 'write:projects'] })
}

/** A runtime's address at which no program listens. */
async function unreachableRuntime(): Promise<Settings> {
  return { RUNTIME_URL: `http://127.0.0.1:${await freePort()}` }
}

/** Sends the head of an upload and half of its body; resolves once the service has begun with it. */
async function beginUpload({ url }: Served): Promise<{ finish: () => Promise<IncomingMessage> }> {
  const [half, rest] = ['{"name":"slow', ' upload"}']
  const upload = send(`${url}/v1/projects`, {
    method: 'POST',
    agent: new Agent({ keepAlive: true }),
    headers: {
      authorization: `Bearer ${await mint()}`,
      'content-type': 'application/json',
      'content-length': half.length + rest.length,
      expect: '100-continue',
    },
  })
  const answered = once(upload, 'response') as Promise<[IncomingMessage]>
  // A test may be about an upload that fails.
  answered.catch(() => {})
  upload.flushHeaders()
  await once(upload, 'continue')
  upload.write(half)
  const finish = async () => {
    upload.end(rest)
    const [response] = await answered
    return response.resume()
  }
  return { finish }
}

async function isListening(url: string): Promise<boolean> {
  const { hostname, port } = new URL(url)
  const socket = connect({ host: hostname, port: Number(port) })
  try {
    await once(socket, 'connect')
    return true
  } catch {
    return false
  } finally {
    socket.destroy()
  }
}

/** Views the live output of a job that no runtime ever starts. The settings must name a runtime. */
async function viewJob(served: Served, token: string): Promise<{ view: LiveView; path: string }> {
  const body = { type: 'agent', input: {} }
  const { status, body: job, text } = await served.request<{ id: string }>('POST', '/jobs', { token, body })
  assert.equal(status, 202, text)
  return { view: await openLive(served.url, job.id, { token }), path: `/jobs/${job.id}/live` }
}

describe('SIGTERM', { concurrency: true }, () => {
  test('SIGTERM under load drops no request: requests that a load balancer still sends are answered, and their connections closed', async () => {
    // It listens for a quarter of this time after the signal, so the balancer sees the drain also if this process stands
    // still for two seconds.
    const served = await startServe({ settings: { ...NO_LIMITS, SHUTDOWN_TIMEOUT_MS: '16000' } })
    const token = await mint()
    const balancer = { sends: true, answered: 0, closing: 0, created: new Set<string>(), dropped: [] as unknown[] }

    const hammer = async (method: 'GET' | 'POST') => {
      const client = new HttpClient(served.url)
      while (balancer.sends) {
        const body = method === 'POST' ? { body: { name: 'under load' } } : {}
        try {
          const answer = await client.request<{ id: string }>(method, '/v1/projects', { token, ...body })
          if (answer.status >= 300) balancer.dropped.push(answer.text)
          if (method === 'POST') balancer.created.add(answer.body.id)
          if (answer.headers.connection === 'close') balancer.closing += 1
          balancer.answered += 1
        } catch (error) {
          balancer.dropped.push(error)
        }
      }
      client.close()
    }
    const probe = async () => {
      try {
        for (;;) {
          const answer = await served.request('GET', '/readyz')
          if (answer.status === 503) return answer
        }
      } finally {
        balancer.sends = false
      }
    }

    const clients = Array.from({ length: 12 }, (_, index) => hammer(index % 3 === 0 ? 'POST' : 'GET'))
    await until(() => balancer.answered > 100)
    served.program.signal('SIGTERM')
    const [notReady] = await Promise.all([probe(), ...clients])
    const { code, output } = await served.program.untilEnded()

    assert.deepEqual(balancer.dropped, [])
    assert.ok(balancer.closing > 0, 'answers after the signal close their connection')
    assert.equal(notReady.headers.connection, 'close')
    assert.match(notReady.text, /shutting down/)
    assert.equal(code, 0)
    assert.match(output, /"service\.stopped"/)

    const again = await startServe({ folder: served.program.folder, settings: NO_LIMITS })
    const kept = await listAll(again, token)
    assert.deepEqual(kept, balancer.created)
  })

  test('a request in progress is answered even after the listener is closed, and then its connection is closed', async () => {
    const served = await startServe({ settings: { SHUTDOWN_TIMEOUT_MS: '8000' } })
    const { finish } = await beginUpload(served)
    served.program.signal('SIGTERM')
    await until(async () => !(await isListening(served.url)))
    const response = await finish()
    assert.equal(response.statusCode, 201)
    assert.equal(response.headers.connection, 'close')
    const { code, output } = await served.program.untilEnded()
    assert.equal(code, 0)
    assert.match(output, /"service\.stopped"/)
  })

  test('a client that never finishes is disconnected, and the process exits with 0 in time', async () => {
    // A fifth of this time is left for closing the services.
    const served = await startServe({ settings: { SHUTDOWN_TIMEOUT_MS: '10000' } })
    await beginUpload(served)
    served.program.signal('SIGTERM')
    const { code, output, errors } = await served.program.untilEnded()
    assert.deepEqual({ code, errors }, { code: 0, errors: '' })
    assert.match(output, /"service\.stopped"/)
  })

  test('SIGTERM ends live output and event streams at once, and new ones are refused while the service still serves', async () => {
    // The drain outlasts the test: what ends here did not end because the time was up.
    const served = await startServe({ settings: { ...(await unreachableRuntime()), SHUTDOWN_TIMEOUT_MS: '600000' } })
    const token = await mint()
    const { view, path } = await viewJob(served, token)
    const events = await openStream(served.url, '/v1/events', { token })
    served.program.signal('SIGTERM')
    for (const stream of [view, events]) {
      await until(() => stream.isOver)
      assert.ok(stream.retryMs !== null, 'the client is told when to reconnect')
    }
    for (const refused of [path, '/v1/events']) {
      const answer = await served.request('GET', refused, { token })
      const { headers } = answer
      assertError({ variant: 'B' }, answer, { status: 503, code: 'service_unavailable', message: 'Shutting down' })
      assert.match(String(headers['retry-after']), /^\d+$/)
    }
    assert.equal((await served.request('GET', '/v1/projects', { token })).status, 200)
    await served.program.kill()
  })

  test('SIGTERM sent twice has the same effect as once', async () => {
    const served = await startServe({ settings: { SHUTDOWN_TIMEOUT_MS: '400' } })
    served.program.signal('SIGTERM')
    served.program.signal('SIGTERM')
    assert.equal((await served.program.untilEnded()).code, 0)
  })
})

describe('SIGINT', { concurrency: true }, () => {
  const PATIENT = { SHUTDOWN_TIMEOUT_MS: '600000' }

  test('SIGINT ends the service at once when no request is in progress, even with open connections', async () => {
    const served = await startServe({ settings: PATIENT })
    await served.request('GET', '/healthz')
    const { hostname, port } = new URL(served.url)
    const silent = connect({ host: hostname, port: Number(port) })
    await once(silent, 'connect')
    served.program.signal('SIGINT')
    const { code, output } = await served.program.untilEnded()
    assert.equal(code, 0)
    assert.match(output, /"service\.stopped"/)
    silent.destroy()
  })

  test('SIGINT ends the service at once while a client views live output', async () => {
    const served = await startServe({ settings: { ...PATIENT, ...(await unreachableRuntime()) } })
    const { view } = await viewJob(served, await mint())
    served.program.signal('SIGINT')
    const { code, output } = await served.program.untilEnded()
    assert.equal(code, 0)
    assert.match(output, /"service\.stopped"/)
    await until(() => view.isOver)
    assert.ok(view.retryMs !== null, 'the client is told when to reconnect')
  })

  test('SIGINT lets a request in progress finish', async () => {
    const served = await startServe({ settings: PATIENT })
    const { finish } = await beginUpload(served)
    served.program.signal('SIGINT')
    await until(async () => !(await isListening(served.url)))
    assert.equal((await finish()).statusCode, 201)
    assert.equal((await served.program.untilEnded()).code, 0)
  })

  test('SIGINT sent twice ends the service without waiting for a request in progress', async () => {
    const served = await startServe({ settings: PATIENT })
    await beginUpload(served)
    served.program.signal('SIGINT')
    await served.program.untilSaid(/service\.draining/)
    served.program.signal('SIGINT')
    assert.equal((await served.program.untilEnded()).code, 130)
  })
})

async function listAll(client: HttpClient, token: string): Promise<Set<string>> {
  type Page = { data: { id: string }[]; next_cursor: string | null }
  const ids = new Set<string>()
  let cursor: string | null = ''
  while (cursor !== null) {
    const query: string = cursor === '' ? '' : `&cursor=${cursor}`
    const { body } = await client.request<Page>('GET', `/v1/projects?limit=100${query}`, { token })
    for (const { id } of body.data) ids.add(id)
    cursor = body.next_cursor
  }
  return ids
}

describe('SIGHUP', needsPostgres(), () => {
  test('SIGHUP during the start does not end the process: it reloads its secrets once it has started', async () => {
    const database = await sharedMigratedDatabase()
    const url = new URL(database.url)
    const target = Number(url.port)
    const [connected, hungUp] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    const proxy = createServer(async (client) => {
      client.on('error', () => {})
      connected.resolve()
      await hungUp.promise
      const upstream = connect(target, '127.0.0.1')
      upstream.on('error', () => {})
      client.pipe(upstream).pipe(client)
    })
    proxy.listen(0, '127.0.0.1')
    await once(proxy, 'listening')
    url.port = String((proxy.address() as AddressInfo).port)
    const program = new Program(['serve'], { settings: await settingsWith({ DATABASE_URL: url.href }) })
    await connected.promise
    program.signal('SIGHUP')
    hungUp.resolve()
    await program.untilSaid(/"secrets\.reloaded"/)
    program.signal('SIGINT')
    assert.equal((await program.untilEnded()).code, 0)
    proxy.close()
    await database.drop()
  })
})
