import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { runCommand } from '../support/command.ts'
import { freshFolder, runProgram } from '../support/program.ts'
import { type Served, settingsWith, sharedIssuer, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'
import { until } from '../support/until.ts'

const JOB_TYPES_FILE = fileURLToPath(new URL('../../job-types.json', import.meta.url))
const REPORT = { type: 'report', input: { title: 'Sales', n: 3 } }

async function startJob(served: Served): Promise<string> {
  const token = (await sharedIssuer()).mint({ sub: 'ada' })
  const { status, text, body } = await served.request<{ id: string }>('POST', '/jobs', { token, body: REPORT })
  assert.equal(status, 202, text)
  return body.id
}

describe('an operator', { concurrency: 2 }, () => {
  test('an operator inspects a running embedded node with doctor, keys list, jobs list and audit', async () => {
    const runtime = await startAgentRuntime()
    const folder = freshFolder()
    const settings = await settingsWith({ DATA_DIR: folder, RUNTIME_URL: runtime.url, JOB_TYPES_FILE })
    const made = await runCommand(['keys', 'create', '--name', 'robot', '--scopes', 'read:projects'], settings)
    assert.equal(made.code, 0, made.errors)
    const served = await startServe({ settings })
    const id = await startJob(served)
    const look = async (...args: string[]) => {
      const { code, output, errors } = await runCommand(args, settings)
      assert.deepEqual([code, errors], [0, ''], args.join(' '))
      return output
    }
    assert.match(await look('doctor'), /^ok +database +sqlite, schema up to date$/m)
    assert.match(await look('keys', 'list'), /live .* robot$/m)
    assert.match(await look('jobs', 'list'), new RegExp(`^${id} `))
    assert.match(await look('jobs', 'get', id), /^type +report$/m)
    assert.match(await look('audit'), /service_account\.created/)
    assert.equal((await served.request('GET', '/readyz')).status, 200)
    await runtime.close()
  })

  test('an operator checks a live service with doctor --url, without any setting', async () => {
    const served = await startServe({ settings: { DATA_DIR: freshFolder() } })
    const ready = await runProgram(['doctor', '--url', `${served.url}/`])
    assert.equal(ready.code, 0, ready.errors)
    assert.match(ready.output, /^ok +http:\S+ is ready\n/)
    assert.match(ready.output, /^ok +database +sqlite$/m)
    assert.match(ready.output, /^WARN +runtime +not configured.*\n +→ Check RUNTIME_URL/m)
    const gone = await runCommand(['doctor', '--url', `http://127.0.0.1:${await freePort()}`])
    assert.deepEqual([gone.code, gone.output], [69, ''])
    assert.match(gone.errors, /does not answer: .*ECONNREFUSED/)
    const other = await runCommand(['doctor', '--url', (await sharedIssuer()).url])
    assert.equal(other.code, 69)
    assert.equal((await runCommand(['doctor', '--url', 'nonsense'])).code, 64)
  })

  test('an operator sees in doctor --url which dependency is down', async () => {
    const settings = { DATA_DIR: freshFolder(), ISSUER_URL: `http://127.0.0.1:${await freePort()}` }
    const served = await startServe({ settings })
    const { code, output } = await runCommand(['doctor', '--url', served.url])
    assert.equal(code, 69)
    assert.match(output, /^FAIL +http:\S+ is not ready\n/)
    assert.match(output, /^FAIL +issuer +no keys fetched yet\n +→ Check ISSUER_URL/m)
  })

  test('an operator sees the result of jobs reconcile', async () => {
    const runtime = await startAgentRuntime()
    // The service learns the run's id from the start, and nothing of its end.
    runtime.setFaults({ drop_callbacks: 1, lookup_failure: 1 })
    const settings = await settingsWith({ DATA_DIR: freshFolder(), RUNTIME_URL: runtime.url, JOB_TYPES_FILE })
    const served = await startServe({ settings })
    const id = await startJob(served)
    const token = (await sharedIssuer()).mint({ sub: 'ada' })
    await until(async () => {
      const { body } = await served.request<{ run_id: string | null }>('GET', `/jobs/${id}`, { token })
      return body.run_id !== null
    })
    await until(() => runtime.runs[0]?.status === 'success')
    runtime.setFaults({ lookup_failure: 0 })
    const reconcile = async (...args: string[]) => (await runCommand(['jobs', 'reconcile', ...args], settings)).output
    assert.match(await reconcile(id), new RegExp(`^${id}  completed  report  `))
    assert.match(await reconcile(), /^0 of 0 checked, 0 failed {2}opr_\w+\n$/)
    const operation = JSON.parse(await reconcile('--json')) as Record<string, unknown>
    assert.deepEqual([operation.action, operation.state, operation.total], ['check', 'done', 0])
    await runtime.close()
  })

  test('an operator who mistypes a command is asked whether another one was meant', async () => {
    const { code, errors } = await runProgram(['sevre'])
    assert.equal(code, 64)
    assert.match(errors, /^Unknown command "sevre"\. Did you mean serve\?\n/)
  })

  test('an operator sees one line with the required version when Node is too old', async () => {
    const old = "data:text/javascript,Object.defineProperty(process,'versions',{value:{node:'20.1.0'}})"
    const program = fileURLToPath(new URL('../../bin/project-api.js', import.meta.url))
    const { promise, resolve } = Promise.withResolvers<{ code: unknown; errors: string }>()
    execFile(process.execPath, ['--import', old, program, 'serve'], (error, _output, errors) =>
      resolve({ code: error?.code, errors }),
    )
    const { code, errors } = await promise
    assert.equal(code, 78)
    assert.match(errors, /^project-api needs Node 24 or newer, not v\S+\. .*node_modules\/\.bin\/node.*\n$/)
  })
})

describe('SIGHUP reads secrets from their files again', { concurrency: 2 }, () => {
  const OLD = 'old-secret-for-callbacks'
  const NEW = 'new-secret-for-callbacks'

  test('the webhook secret: both while two are given, and the old values stay when the new ones are bad', async () => {
    const file = join(freshFolder(), 'secret')
    writeFileSync(file, OLD)
    const served = await startServe({ settings: { DATA_DIR: freshFolder(), WEBHOOK_SECRET_FILE: file } })
    const isRefused = async (secret: string) => {
      const headers = { 'x-webhook-secret': secret }
      return (await served.request('POST', '/webhooks/agent', { headers, body: {} })).status === 401
    }
    let count = 0
    const reload = async (content: string, event: string) => {
      writeFileSync(file, content)
      served.program.signal('SIGHUP')
      count += 1
      const events = () => served.program.output.match(/secrets\.\w+/g) ?? []
      await until(() => events().length === count)
      assert.equal(events().at(-1), event)
    }
    assert.deepEqual([await isRefused(OLD), await isRefused(NEW)], [false, true])
    await reload(`${NEW},${OLD}`, 'secrets.reloaded')
    assert.deepEqual([await isRefused(OLD), await isRefused(NEW)], [false, false])
    await reload(NEW, 'secrets.reloaded')
    assert.deepEqual([await isRefused(OLD), await isRefused(NEW)], [true, false])
    await reload('one,two,three', 'secrets.not_reloaded')
    assert.match(served.program.output, /WEBHOOK_SECRET takes at most two secrets/)
    assert.deepEqual([await isRefused(OLD), await isRefused(NEW)], [true, false])
    assert.doesNotMatch(served.program.output, /secret-for-callbacks|two,three/)
  })

  test('the key of the runtime: a job that could not start before starts', async () => {
    const runtime = await startAgentRuntime({ apiKey: 'the-right-key' })
    const file = join(freshFolder(), 'key')
    writeFileSync(file, 'a-wrong-key')
    const served = await startServe({
      settings: { DATA_DIR: freshFolder(), RUNTIME_URL: runtime.url, RUNTIME_API_KEY_FILE: file, JOB_TYPES_FILE },
    })
    await startJob(served)
    await until(() => Object.keys(runtime.stats.calls).length > 0)
    assert.equal(runtime.runs.length, 0)
    writeFileSync(file, 'the-right-key')
    served.program.signal('SIGHUP')
    await served.program.untilSaid(/"changed":\["RUNTIME_API_KEY"\],"needRestart":\[\].*secrets\.reloaded/)
    await until(() => runtime.runs.length === 1)
    await runtime.close()
  })
})
