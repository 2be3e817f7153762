import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { Redis } from 'ioredis'
import { runCommand } from '../support/command.ts'
import { dropDatabase, type PostgresServer, psql, startPostgres } from '../support/postgres.ts'
import { freshFolder, runProgram, type Settings } from '../support/program.ts'
import { settingsWith, sharedIssuer, startServe } from '../support/served.ts'
import { needsPostgres, needsRedis, sharedRedis } from '../support/services.ts'
import { until } from '../support/until.ts'

const UNAVAILABLE = 69
const CONFIG = 78

const run = async (command: 'doctor' | 'serve', more: Settings) => {
  const settings = await settingsWith({ DATA_DIR: freshFolder(), ...more })
  return command === 'serve' ? runProgram(['serve'], { settings }) : runCommand(['doctor'], settings)
}

describe('a PostgreSQL that the service cannot use', needsPostgres(), () => {
  let postgres: PostgresServer
  before(async () => {
    postgres = await startPostgres()
  })
  after(() => postgres.stop())

  const nameOf = (url: string) => new URL(url).pathname.slice(1)

  test('a PostgreSQL whose encoding is not UTF8 is refused', async () => {
    const url = new URL(postgres.url)
    url.pathname = '/latin'
    await psql(postgres.url, `create database latin encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0`)
    const DATABASE_URL = url.href
    const { code, errors } = await run('serve', { DATABASE_URL })
    assert.deepEqual(
      [code, errors],
      [CONFIG, 'The database has the encoding LATIN1: it must be UTF8, to store every text.\n'],
    )
    assert.match((await run('doctor', { DATABASE_URL })).output, /^FAIL +database .*LATIN1/m)
    await dropDatabase(DATABASE_URL)
  })

  test('a PostgreSQL whose role may not create tables is refused, and doctor prints the grant', async () => {
    const url = new URL(await postgres.createDatabase())
    await psql(postgres.url, 'create role plain login')
    url.username = 'plain'
    const DATABASE_URL = url.href
    const found = await run('doctor', { DATABASE_URL })
    assert.equal(found.code, UNAVAILABLE)
    const text = 'the role plain may not create tables in the schema public'
    const grant = 'grant usage, create on schema public to plain'
    assert.match(found.output, new RegExp(`^FAIL +database +${text}\n +→ .*: ${grant}$`, 'm'))
    const { code, errors } = await run('serve', { DATABASE_URL })
    assert.deepEqual([code, errors.split('\n').length], [CONFIG, 3], errors)
    assert.match(errors, new RegExp(`^The database cannot be migrated: ${text}\n`))
    url.username = 'postgres'
    await psql(url.href, grant)
    assert.match((await run('doctor', { DATABASE_URL })).output, /^ok +database +postgres, \d+ migrations pending/m)
  })

  test('a PostgreSQL that becomes read-only makes the service not ready, and is used again without a restart', async () => {
    const url = await postgres.createDatabase()
    const served = await startServe({ settings: { DATABASE_URL: url } })
    const token = (await sharedIssuer()).mint({ scopes: ['write:projects', 'read:projects'] })
    const write = () => served.request('POST', '/v1/projects', { token, body: { name: 'x' } })
    assert.equal((await write()).status, 201)
    // As when an address leads to a standby for a moment.
    await psql(postgres.url, `alter database ${nameOf(url)} set default_transaction_read_only = on`)
    await psql(postgres.url, `select pg_terminate_backend(pid) from pg_stat_activity where datname = '${nameOf(url)}'`)
    await until(async () => (await served.request('GET', '/readyz')).status === 503)
    assert.equal((await write()).status, 503)
    assert.equal((await served.request('GET', '/v1/projects', { token })).status, 503, 'a standby may be behind')
    const { code, errors } = await run('serve', { DATABASE_URL: url })
    assert.equal(code, UNAVAILABLE)
    assert.match(errors, /^The database cannot be reached: the server is read-only: it is a standby, or/)
    await psql(postgres.url, `alter database ${nameOf(url)} reset default_transaction_read_only`)
    await until(async () => (await served.request('GET', '/readyz')).status === 200)
    await until(async () => (await write()).status === 201)
  })
})

describe('a Redis that the service cannot use', needsRedis(), () => {
  test('a Redis without the database or the permission to count or to subscribe is reported by doctor', async () => {
    const url = new URL((await sharedRedis()).url)
    const admin = new Redis(url.href)
    const user = `weak-${randomUUID()}`
    const doctor = async () => {
      const { code, output } = await run('doctor', { REDIS_URL: url.href, REDIS_PREFIX: 'doctor:' })
      return { code, redis: /^(\S+ +)redis +(.*)$/m.exec(output)?.[0] ?? output }
    }
    try {
      url.pathname = '/9999'
      assert.match((await doctor()).redis, /^FAIL .*DB index is out of range/)
      url.pathname = ''
      url.username = user
      url.password = 'weak-password'
      const rules = ['reset', 'on', '>weak-password', '~doctor:*', '+@all', '&doctor:*']
      await admin.call('acl', 'setuser', user, ...rules)
      assert.deepEqual(await doctor(), { code: 0, redis: 'ok    redis     answers' })
      await admin.call('acl', 'setuser', user, ...rules, '-@scripting')
      assert.match((await doctor()).redis, /^FAIL .*NOPERM/)
      await admin.call('acl', 'setuser', user, ...rules.slice(0, -1))
      assert.match((await doctor()).redis, /^FAIL .*NOPERM/)
    } finally {
      await admin.call('acl', 'deluser', user)
      admin.disconnect()
    }
  })

  test('a Redis without the configured database is not used: each node counts alone', async () => {
    const url = new URL((await sharedRedis()).url)
    url.pathname = '/9999'
    const served = await startServe({ settings: { REDIS_URL: url.href, REDIS_PREFIX: 'unfit:' } })
    await until(async () =>
      (await served.request('GET', '/readyz')).text.includes('each node counts rate limits alone'),
    )
    assert.equal((await served.request('GET', '/readyz')).status, 200)
  })
})
