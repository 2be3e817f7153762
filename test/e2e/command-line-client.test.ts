import assert from 'node:assert/strict'
import { once } from 'node:events'
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { type AgentRuntime, startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { runCommand } from '../support/command.ts'
import { freshFolder, Program, type Settings } from '../support/program.ts'
import { type Served, settingsWith, sharedIssuer, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'
import { needsPostgres, sharedMigratedDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'

const JOB_TYPES_FILE = fileURLToPath(new URL('../../job-types.json', import.meta.url))
const FAILED = 1
const UNAVAILABLE = 69

const fileIn = (dataDir: string) => join(dataDir, 'command-line.json')
const readLocal = (dataDir: string) => JSON.parse(readFileSync(fileIn(dataDir), 'utf8')) as { url: string; key: string }

async function makeReport(served: Served, sub: string): Promise<string> {
  const token = (await sharedIssuer()).mint({ sub })
  const body = { type: 'report', input: { title: 'Done' } }
  const made = await served.request<{ id: string }>('POST', '/jobs', { token, body })
  assert.equal(made.status, 202, made.text)
  await until(async () => {
    const read = await served.request<{ status: string }>('GET', `/jobs/${made.body.id}`, { token })
    return read.body.status === 'completed'
  })
  return made.body.id
}

/** Every command group against one service, however the settings or options name it. */
async function useEveryCommand(served: Served, more: readonly string[], settings: Settings): Promise<void> {
  const run = async (...args: string[]) => {
    const { code, output, errors } = await runCommand([...args, ...more], settings)
    assert.equal(code, 0, `${args.join(' ')}: ${errors}`)
    return { output, errors }
  }
  const json = async (...args: string[]) => JSON.parse((await run(...args, '--json')).output) as Record<string, unknown>
  for (const flags of [[], ['--json']]) {
    assert.deepEqual(await run('jobs', 'list', ...flags), { output: '', errors: 'No jobs\n' })
    const none = await run('audit', '--actor', 'nil', ...flags)
    assert.deepEqual(none, { output: '', errors: 'No audit entries\n' })
  }
  const id = await makeReport(served, 'ada')
  assert.match((await run('jobs', 'list')).output, new RegExp(`^${id}  completed  report  \\S+  ada\n$`))
  assert.equal((await json('jobs', 'list')).id, id)
  assert.equal((await json('jobs', 'get', id)).status, 'completed')
  assert.match((await run('jobs', 'reconcile', id)).output, new RegExp(`^${id}  completed  `))
  const again = await json('jobs', 'retry', id)
  assert.equal(again.retry_of, id)
  const late = await runCommand(['jobs', 'cancel', id, ...more], settings)
  assert.deepEqual([late.code, late.errors], [FAILED, 'The job is completed already\n'])

  const created = await json('keys', 'create', '--name', 'robot', '--scopes', 'read:users')
  assert.match(String(created.key), /^pak_/)
  assert.match((await run('keys', 'list')).output, new RegExp(`^${created.id}  live  .*  read:users  .*  robot$`, 'm'))
  assert.equal((await json('keys', 'revoke', String(created.id))).id, created.id)
  assert.match((await run('keys', 'list')).output, new RegExp(`^${created.id}  revoked  `, 'm'))

  const unknown = await runCommand(['callbacks', 'replay', 'cbk_1', ...more], settings)
  assert.deepEqual([unknown.code, unknown.errors], [FAILED, 'No such callback\n'])
  assert.match((await run('users', 'block', 'eve')).output, /^eve {2}blocked since 20/)
  assert.deepEqual(await json('users', 'unblock', 'eve'), { sub: 'eve', blocked_at: null })
  assert.equal((JSON.parse((await run('users', 'export', 'ada')).output) as { sub: string }).sub, 'ada')
  const erased = (await run('users', 'erase', 'ada')).output
  assert.match(erased, /^ada {2}being erased {2}0 of 3 {2}opr_\w+\n[\s\S]*^ada {2}erased {2}3 of 3 {2}opr_\w+\n$/m)
  const gone = await runCommand(['users', 'export', 'ada', ...more], settings)
  assert.deepEqual([gone.code, gone.output, gone.errors], [FAILED, '', 'No such user\n'])
  assert.match((await run('audit', '--object', 'ada')).output, /user\.erased {2}user ada\n/)
}

describe('the command line as a client', { concurrency: 2 }, () => {
  let runtime: AgentRuntime
  before(async () => {
    runtime = await startAgentRuntime()
  })
  after(() => runtime.close())
  const withRuntime = async (more: Settings) =>
    settingsWith({ RUNTIME_URL: runtime.url, JOB_TYPES_FILE, PUBLIC_URL: 'http://127.0.0.1:9', ...more })

  test('every command works beside a running embedded node, with DATA_DIR as the only setting', async () => {
    const dataDir = freshFolder()
    const served = await startServe({ settings: await withRuntime({ DATA_DIR: dataDir }) })
    assert.equal(readLocal(dataDir).url, served.url)
    await useEveryCommand(served, [], { DATA_DIR: dataDir })
    assert.ok(!served.program.output.includes(readLocal(dataDir).key), 'the key is not in the log')
    const forged = { ...readLocal(dataDir), key: 'pak_of_another_start' }
    for (const text of [null, JSON.stringify(forged)]) {
      if (text === null) rmSync(fileIn(dataDir))
      else writeFileSync(fileIn(dataDir), text)
      for (const args of [
        ['keys', 'list'],
        ['users', 'erase', 'ada'],
      ]) {
        const { code, errors } = await runCommand(args, await settingsWith({ DATA_DIR: dataDir }))
        assert.equal(code, UNAVAILABLE)
        assert.match(errors, /in use by process \d+; .*If it is a service, name it with --url and --key\n$/)
      }
    }
    served.program.signal('SIGTERM')
    await served.program.untilEnded()
    assert.ok(!existsSync(fileIn(dataDir)), 'the file is gone after the stop')
    const { code, errors } = await runCommand(['jobs', 'list'], { DATA_DIR: dataDir })
    assert.equal(code, UNAVAILABLE)
    assert.match(errors, /^No service with an address on loopback runs on the data folder .*--url and --key\n$/)
  })

  test('every command works on a service on PostgreSQL with --url and --key', needsPostgres(), async () => {
    const database = await sharedMigratedDatabase()
    const settings = await withRuntime({ DATABASE_URL: database.url })
    const served = await startServe({ settings })
    const made = await runCommand(['keys', 'create', '--name', 'admin', '--scopes', 'admin:*'], settings)
    assert.equal(made.code, 0, made.errors)
    await useEveryCommand(served, ['--url', `${served.url}/`, '--key', made.output.trim()], {})
    const without = await runCommand(['jobs', 'list'], settings)
    assert.equal(without.code, UNAVAILABLE)
    assert.match(without.errors, /^On PostgreSQL a command does not know where the service runs\. .*--url and --key\n$/)
    await served.program.kill()
    await database.drop()
  })

  test('the file of a crashed node is no service, whatever listens at its address now', async () => {
    const dataDir = freshFolder()
    const settings = await settingsWith({ DATA_DIR: dataDir })
    const crashed = await startServe({ settings })
    await crashed.program.kill()
    assert.ok(existsSync(fileIn(dataDir)))
    const { key } = readLocal(dataDir)
    const other = await startServe({ settings: { DATA_DIR: freshFolder() } })
    const foreign = createServer((_request, response) => void response.writeHead(404).end('<h1>Not here</h1>'))
    await once(foreign.listen(0, '127.0.0.1'), 'listening')
    const foreignUrl = `http://127.0.0.1:${(foreign.address() as AddressInfo).port}`
    for (const url of [`http://127.0.0.1:${await freePort()}`, other.url, foreignUrl]) {
      writeFileSync(fileIn(dataDir), JSON.stringify({ url, key }))
      const listed = await runCommand(['jobs', 'list'], settings)
      assert.deepEqual([listed.code, listed.output], [UNAVAILABLE, ''])
      assert.match(listed.errors, /^No service runs on the data folder \S+: the one that left \S+ has ended\. Start it/)
      const made = await runCommand(['keys', 'create', '--name', 'robot', '--scopes', 'read:users'], settings)
      assert.equal(made.code, 0, made.errors)
    }
    foreign.close()
    const served = await startServe({ settings })
    assert.equal((await runCommand(['keys', 'list'], { DATA_DIR: dataDir })).output.split('\n').length, 4)
    assert.notEqual(readLocal(dataDir).key, key, 'the next start has another key')
    assert.equal((await served.request('GET', '/v1/job-types', { key })).status, 401)
  })

  test('without a service, keys and users erase work on the embedded database', async () => {
    const dataDir = freshFolder()
    const settings = await withRuntime({ DATA_DIR: dataDir })
    const served = await startServe({ settings })
    await makeReport(served, 'ada')
    served.program.signal('SIGINT')
    await served.program.untilEnded()
    const run = async (...args: string[]) => {
      const { code, output, errors } = await runCommand(args, settings)
      assert.equal(code, 0, errors)
      return { output, errors }
    }
    assert.deepEqual(await run('keys', 'list'), { output: '', errors: 'No service accounts\n' })
    const made = await run('keys', 'create', '--name', 'robot', '--scopes', 'read:users', '--json')
    const { id, created_by } = JSON.parse(made.output) as { id: string; created_by: string }
    assert.equal(created_by, 'command_line')
    assert.equal((await run('keys', 'revoke', id)).output, `revoked ${id}\n`)
    const erased = JSON.parse((await run('users', 'erase', 'ada', '--json')).output) as Record<string, unknown>
    assert.deepEqual([erased.sub, erased.state, erased.total, erased.done], ['ada', 'done', 2, 2])
    const unknown = await runCommand(['users', 'erase', 'bob'], settings)
    assert.deepEqual([unknown.code, unknown.errors], [FAILED, 'No such user\n'])
    for (const args of [['users', 'block', 'ada'], ['jobs', 'list'], ['callbacks', 'replay', 'x'], ['audit']]) {
      assert.equal((await runCommand(args, settings)).code, UNAVAILABLE, args.join(' '))
    }
  })

  test('a command says what is wrong with the service or the key, and never prints the key', async () => {
    const served = await startServe({ settings: { DATA_DIR: freshFolder() } })
    const key = 'pak_0000000000000000000000000000000000000000000000'
    const ask = (url: string, of = key) => runCommand(['jobs', 'list', '--url', url, '--key', of])
    const refused = await ask(served.url)
    assert.deepEqual([refused.code, refused.output], [FAILED, ''])
    assert.equal(refused.errors, `${served.url} refuses the key: Invalid or expired API key\n`)
    const gone = await ask(`http://127.0.0.1:${await freePort()}`)
    assert.equal(gone.code, UNAVAILABLE)
    assert.match(gone.errors, /^http\S+ cannot be reached: .*ECONNREFUSED/)
    const other = await ask((await sharedIssuer()).url)
    assert.equal(other.code, UNAVAILABLE)
    assert.match(other.errors, /^http\S+ answered \d+, not as this service does\n$/)
    for (const { errors } of [refused, gone, other]) assert.ok(!errors.includes(key))
  })

  test('jobs tail beside an embedded node ends with the node, and says that it cannot be reached', async () => {
    const dataDir = freshFolder()
    const served = await startServe({ settings: await withRuntime({ DATA_DIR: dataDir }) })
    const tail = new Program(['jobs', 'tail'], { settings: { DATA_DIR: dataDir } })
    // A tail begins with the next event, and does not say when it is ready.
    let looks = 0
    await until(async () => {
      if (looks++ % 50 === 0) await makeReport(served, 'ada')
      return /job_\w+ {2}job\.completed {2}completed/.test(tail.output)
    })
    // A tail that reconnects before the listener is closed would say that the service is shutting down.
    tail.signal('SIGSTOP')
    served.program.signal('SIGINT')
    await served.program.untilEnded()
    tail.signal('SIGCONT')
    const { code, errors } = await tail.untilEnded()
    assert.equal(code, UNAVAILABLE)
    assert.match(errors, /cannot be reached: /)
  })
})
