import assert from 'node:assert/strict'
import { existsSync, mkdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { openStream } from '../support/event-stream.ts'
import { freshFolder, runProgram } from '../support/program.ts'
import { type Served, settingsWith, sharedIssuer, startServe } from '../support/served.ts'
import { needsPostgres, sharedPostgresDatabase } from '../support/services.ts'

const SCOPES = ['read:projects', 'write:projects']

async function tokenOf(sub: string): Promise<string> {
  return (await sharedIssuer()).mint({ sub, scopes: SCOPES })
}

async function createProject(served: Served, name: string): Promise<string> {
  const token = await tokenOf('ada')
  const answer = await served.request<{ id: string }>('POST', '/v1/projects', { token, body: { name } })
  assert.equal(answer.status, 201, answer.text)
  return answer.body.id
}

async function namesOf(served: Served): Promise<string[]> {
  const token = await tokenOf('ada')
  const { body } = await served.request<{ data: { name: string }[] }>('GET', '/v1/projects', { token })
  return body.data.map(({ name }) => name).sort()
}

async function stop(served: Served): Promise<void> {
  served.program.signal('SIGINT')
  assert.equal((await served.program.untilEnded()).code, 0)
}

describe('a backup', () => {
  test('a backup of a running node is restored after a loss: its data is back, and no cursor misses an event', async () => {
    const folder = freshFolder()
    const settings = await settingsWith({ DATA_DIR: join(folder, 'data') })
    const before = await startServe({ settings, folder })
    await createProject(before, 'kept')
    const backedUp = await runProgram(['backup', 'one.backup'], { settings, folder })
    assert.equal(backedUp.code, 0, backedUp.errors)
    assert.match(backedUp.output, /^one\.backup: \d+ bytes, checked\n$/)
    const again = await runProgram(['backup', 'one.backup'], { settings, folder })
    assert.deepEqual([again.code, again.errors], [1, 'one.backup exists already\n'])
    assert.equal(statSync(join(folder, 'one.backup')).mode & 0o777, 0o600)
    await createProject(before, 'lost')
    const stream = await openStream(before.url, '/v1/events?after=0', { token: await tokenOf('ada') })
    await stream.until(() => stream.received.length >= 2)
    const cursor = stream.lastEventId
    await stop(before)

    const refused = await runProgram(['restore', 'one.backup'], { settings, folder })
    assert.equal(refused.code, 1)
    assert.match(refused.errors, /project-api\.db exists already: move it away first/)
    rmSync(join(folder, 'data'), { recursive: true })
    mkdirSync(join(folder, 'data'))
    const log = join(folder, 'data', 'project-api.db-wal')
    writeFileSync(log, '')
    const mixed = await runProgram(['restore', 'one.backup'], { settings, folder })
    assert.match(mixed.errors, /project-api\.db-wal exists already: move it away first/)
    rmSync(log)
    const restored = await runProgram(['restore', 'one.backup'], { settings, folder })
    assert.equal(restored.code, 0, restored.errors)

    const served = await startServe({ settings, folder })
    assert.deepEqual(await namesOf(served), ['kept'])
    await createProject(served, 'new')
    const resumed = await openStream(served.url, '/v1/events', { token: await tokenOf('ada'), lastEventId: cursor })
    assert.equal((await resumed.next()).event, 'reset')
    await createProject(served, 'newer')
    const next = await resumed.next<{ name: string }>()
    assert.deepEqual([next.event, next.data.data.name], ['project.created', 'newer'])
    await stop(served)
  })

  test('a file that is no backup is refused, and the folder stays without a database', async () => {
    const folder = freshFolder()
    const settings = await settingsWith({ DATA_DIR: join(folder, 'data') })
    const missing = await runProgram(['restore', 'none.backup'], { settings, folder })
    assert.deepEqual([missing.code, missing.errors], [1, 'none.backup does not exist\n'])
    const backedUp = await runProgram(['backup', 'one.backup'], { settings, folder })
    assert.equal(backedUp.code, 1)
  })
})

describe('a restore of PostgreSQL', needsPostgres(), () => {
  test('a restore of PostgreSQL is finished by a command that resets older cursors, and that is refused while a node runs', async () => {
    const folder = freshFolder()
    const { url, drop } = await sharedPostgresDatabase()
    try {
      const settings = await settingsWith({ DATABASE_URL: url })
      const before = await startServe({ settings, folder })
      await createProject(before, 'kept')
      const stream = await openStream(before.url, '/v1/events?after=0', { token: await tokenOf('ada') })
      await stream.until(() => stream.received.length >= 1)
      const cursor = stream.lastEventId
      const tooEarly = await runProgram(['restore', '--finish'], { settings, folder })
      assert.deepEqual([tooEarly.code, tooEarly.errors], [1, '1 nodes run on the database: stop them first\n'])
      await stop(before)
      const unfit = await runProgram(['restore', 'one.backup'], { settings, folder })
      assert.equal(unfit.code, 64)
      const finished = await runProgram(['restore', '--finish'], { settings, folder })
      assert.equal(finished.code, 0, finished.errors)

      const served = await startServe({ settings, folder })
      const resumed = await openStream(served.url, '/v1/events', { token: await tokenOf('ada'), lastEventId: cursor })
      assert.equal((await resumed.next()).event, 'reset')
      await createProject(served, 'new')
      assert.equal((await resumed.next()).event, 'project.created')
      await stop(served)
    } finally {
      await drop()
    }
  })
})

describe('copy', () => {
  test('copy refuses a source without a database and a target that it cannot fill, and creates neither', async () => {
    const folder = freshFolder()
    const settings = await settingsWith({ DATA_DIR: join(folder, 'data') })
    const copy = (to: string) => runProgram(['copy', '--to', to], { settings, folder })
    const missing = await copy('postgres://127.0.0.1:1/x')
    assert.deepEqual([missing.code, missing.errors], [1, `There is no database in DATA_DIR ${join(folder, 'data')}\n`])
    assert.match((await copy('s3://bucket')).errors, /^--to must be a URL that starts with postgres/)
    assert.match((await copy('other')).errors, /^Both databases are sqlite/)
    assert.deepEqual([existsSync(join(folder, 'data')), existsSync(join(folder, 'other'))], [false, false])
  })
})

describe('copy', needsPostgres(), () => {
  test('copy moves a service from the embedded database to PostgreSQL and back', async () => {
    const folder = freshFolder()
    const { url, drop } = await sharedPostgresDatabase()
    try {
      const embedded = await settingsWith({ DATA_DIR: join(folder, 'data') })
      const server = await settingsWith({ DATABASE_URL: url })
      const first = await startServe({ settings: embedded, folder })
      await createProject(first, 'one')
      const tooEarly = await runProgram(['copy', '--to', url], { settings: embedded, folder })
      assert.equal(tooEarly.code, 69)
      await stop(first)
      const there = await runProgram(['copy', '--to', url], { settings: embedded, folder })
      assert.equal(there.code, 0, there.errors)
      assert.match(there.output, /^projects +1 +[0-9a-f]{32}$/m)

      const second = await startServe({ settings: server, folder })
      assert.deepEqual(await namesOf(second), ['one'])
      await createProject(second, 'two')
      const running = await runProgram(['copy', '--to', 'back'], { settings: server, folder })
      assert.deepEqual([running.code, running.errors], [1, '1 nodes run on the source: stop them first\n'])
      await stop(second)
      const back = await runProgram(['copy', '--to', 'back'], { settings: server, folder })
      assert.equal(back.code, 0, back.errors)

      const third = await startServe({ settings: await settingsWith({ DATA_DIR: join(folder, 'back') }), folder })
      assert.deepEqual(await namesOf(third), ['one', 'two'])
      await stop(third)
    } finally {
      await drop()
    }
  })
})
