import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { runCommand } from '../support/command.ts'
import type { TestResponse } from '../support/http-client.ts'
import { type PostgresServer, psql, startPostgres } from '../support/postgres.ts'
import { runProgram } from '../support/program.ts'
import { type Served, settingsWith, sharedIssuer, startServe } from '../support/served.ts'
import { needsPostgres } from '../support/services.ts'
import { until } from '../support/until.ts'

interface Envelope {
  error: { code: string; message: string; requestId: string }
}

interface NotReady {
  status: string
  checks: Record<string, { state: string } | undefined>
}

/** A shorter timeout than the default, so that the test is fast. */
const IMPATIENT = '?query_timeout=1000'

async function mint(): Promise<string> {
  return (await sharedIssuer()).mint({ sub: 'a-user', scopes: ['read:projects', 'write:projects'] })
}

function assertUnavailable(response: TestResponse): void {
  const { status, headers, body } = response as TestResponse<Envelope>
  assert.equal(status, 503)
  assert.match(String(headers['retry-after']), /^[1-9]\d*$/)
  assert.deepEqual(Object.keys(body), ['error'])
  assert.equal(body.error.code, 'service_unavailable')
  assert.equal(body.error.requestId, headers['x-request-id'])
  assert.doesNotMatch(response.text, /ECONN|postgres|select|timeout|\bpg\b/i)
}

/** Asserts that the service is alive but not ready, and answers every read and write with 503. */
async function assertDown(served: Served, token: string): Promise<void> {
  // A report of /readyz holds for a second.
  await until(async () => (await served.request('GET', '/readyz')).status === 503)
  const [alive, ready, list, create, stranger] = await Promise.all([
    served.request('GET', '/healthz'),
    served.request<NotReady>('GET', '/readyz'),
    served.request('GET', '/v1/projects', { token }),
    served.request('POST', '/v1/projects', { token, body: { name: 'lost' } }),
    served.request('GET', '/v1/projects', { key: `pak_${'0'.repeat(46)}` }),
  ])
  assert.equal(alive.status, 200)
  assert.equal(ready.status, 503)
  assert.deepEqual([ready.body.status, ready.body.checks.database?.state], ['not_ready', 'down'])
  assert.doesNotMatch(ready.text, /ECONN|select|timeout|\bpg\b/i)
  assertUnavailable(list)
  assertUnavailable(create)
  assert.equal(stranger.status, 401, 'what needs no database is decided without it')
  assert.equal(served.program.isRunning, true)
}

describe('PostgreSQL', needsPostgres(), () => {
  let postgres: PostgresServer
  before(async () => {
    postgres = await startPostgres()
  })
  after(() => postgres?.stop())

  /** Migrated already: on a busy machine, a migration may take longer than the timeout. */
  const impatientDatabase = async () => {
    const url = await postgres.createDatabase()
    const { code, errors } = await runCommand(['migrate'], await settingsWith({ DATABASE_URL: url }))
    assert.equal(code, 0, errors)
    return url + IMPATIENT
  }
  const namesOf = async (served: Served, token: string) => {
    const { body } = await served.request<{ data: { name: string }[] }>('GET', '/v1/projects', { token })
    return body.data.map(({ name }) => name)
  }
  const isBack = async (served: Served, token: string) => {
    const answers = await Promise.all([
      served.request('GET', '/v1/projects', { token }),
      served.request('GET', '/readyz'),
    ])
    return answers.every(({ status }) => status === 200)
  }

  test('a PostgreSQL that was killed causes 503s and no crash; after its restart all acknowledged data is there', async () => {
    const served = await startServe({ settings: { DATABASE_URL: await postgres.createDatabase() } })
    const token = await mint()
    const { status } = await served.request('POST', '/v1/projects', { token, body: { name: 'kept' } })
    assert.equal(status, 201)

    await postgres.kill()
    await assertDown(served, token)
    await assertDown(served, token)
    await postgres.restart()
    await until(() => isBack(served, token))
    assert.deepEqual(await namesOf(served, token), ['kept'])
  })

  test('a PostgreSQL that does not answer causes a timeout, and is used again when it answers', async () => {
    const served = await startServe({ settings: { DATABASE_URL: await impatientDatabase() } })
    const token = await mint()
    await until(() => isBack(served, token))

    postgres.pause()
    try {
      await assertDown(served, token)
    } finally {
      postgres.resume()
    }
    await until(() => isBack(served, token))
    const create = () => served.request('POST', '/v1/projects', { token, body: { name: 'again' } })
    // A connection of before may still break once.
    await until(async () => {
      const { status } = await create()
      assert.ok([201, 503].includes(status), `${status}`)
      return status === 201
    })
  })

  test('a PostgreSQL that does not answer does not delay a stop beyond its timeout', async () => {
    const settings = { DATABASE_URL: await impatientDatabase(), SHUTDOWN_TIMEOUT_MS: '1000' }
    const served = await startServe({ settings })
    const token = await mint()
    await until(() => isBack(served, token))
    postgres.pause()
    try {
      served.program.signal('SIGTERM')
      const { code, errors } = await served.program.untilEnded()
      assert.deepEqual({ code, errors }, { code: 0, errors: '' })
    } finally {
      postgres.resume()
    }
  })

  test('a PostgreSQL that may lose an acknowledged commit is refused', async () => {
    const url = await postgres.createDatabase()
    await psql(url, `alter database ${new URL(url).pathname.slice(1)} set synchronous_commit = off`)
    const { code, output, errors } = await runProgram(['serve'], {
      settings: await settingsWith({ DATABASE_URL: url }),
    })
    assert.deepEqual({ code, output }, { code: 78, output: '' })
    assert.match(errors, /^PostgreSQL has synchronous_commit = off.*\n$/)
  })

  test('a PostgreSQL that does not write to the disk is refused', async () => {
    const careless = await startPostgres({ settings: { fsync: 'off' } })
    try {
      const settings = await settingsWith({ DATABASE_URL: careless.url })
      const { code, errors } = await runProgram(['serve'], { settings })
      assert.equal(code, 78)
      assert.match(errors, /^PostgreSQL has fsync = off.*\n$/)
    } finally {
      await careless.stop()
    }
  })
})
