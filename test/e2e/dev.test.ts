import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdirSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { promisify } from 'node:util'
import { assertError } from '../support/assert-error.ts'
import { findProgram } from '../support/binaries.ts'
import { HttpClient } from '../support/http-client.ts'
import { freshFolder, Program, runProgram, type Settings } from '../support/program.ts'
import { freePort } from '../support/server-process.ts'
import { isCi } from '../support/services.ts'

const run = promisify(execFile)
const needsCurl = { skip: findProgram('curl') === undefined && !isCi() && 'needs curl, which is not installed' }

/** `dev` as a newcomer starts it: nothing set, in an empty folder, with a place for scratch folders to look into. */
async function startDev(settings: Settings = {}) {
  const folder = freshFolder()
  const temporary = freshFolder()
  const program = new Program(['dev'], { folder, settings: { TMPDIR: temporary, ...settings } })
  await program.untilSaid(/Ctrl-C/)
  const { output } = program
  const find = (pattern: RegExp) => {
    const [, found] = pattern.exec(output) ?? []
    assert.ok(found, `${pattern} is not in what it says:\n${output}`)
    return found
  }
  return {
    program,
    leftovers: () => [...readdirSync(folder), ...readdirSync(temporary)],
    client: new HttpClient(find(/^ *API +(http\S+)$/m)),
    reference: find(/^ *Reference +(http\S+)/m),
    tokens: find(/^ *Tokens +(http\S+)/m),
    runtime: find(/^ *Runtime +(http\S+)/m),
    push: find(/^ *Push +(http\S+)/m),
    tokenOf: (user: 'ADA' | 'GRACE' | 'ADMIN') => find(new RegExp(`^ *${user}=(\\S+)$`, 'm')),
    curlLines: Array.from(output.matchAll(/^ *(curl .*)$/gm), ([, line = '']) => line),
  }
}

/** Through a shell, as when pasted. */
async function paste(line: string): Promise<unknown> {
  const { stdout } = await run('sh', ['-c', line], { timeout: 10_000 })
  return JSON.parse(stdout)
}

for (const variant of ['A', 'B']) {
  describe(`dev as variant ${variant}`, () => {
    test('prints what works when used as printed, and leaves nothing behind', needsCurl, async () => {
      const dev = await startDev(variant === 'A' ? { API_VARIANT: 'A', PORT: String(await freePort()) } : {})

      const [list = '', ...others] = dev.curlLines
      const { data } = (await paste(list)) as { data: { name: string }[] }
      assert.deepEqual(
        data.map(({ name }) => name),
        ['Support bot', 'Quarterly report', 'Website relaunch'],
      )
      const isStream = (line: string) => line.includes('curl -sN ')
      const streams = others.filter(isStream)
      assert.equal(streams.length, 1)
      // A stream has no end of its own: its answer has begun when curl is told to stop.
      for (const line of streams) {
        assert.equal(await paste(`${line} --max-time 3 -o /dev/null -w '%{http_code}' || true`), 200)
      }
      for (const line of others.filter((line) => !isStream(line))) {
        const answer = (await paste(line)) as { error?: unknown; detail?: unknown }
        // A job that has not failed has an error that is null.
        assert.equal(answer.error ?? answer.detail ?? null, null, line)
      }

      for (const page of [dev.reference, dev.tokens]) {
        const response = await fetch(page)
        assert.equal(response.status, 200)
        assert.match(await response.text(), /<!doctype html>/)
      }

      const { body } = await dev.client.request<Record<string, object>>('GET', '/v1/projects')
      const expected = { A: { detail: ['code', 'message'] }, B: { error: ['code', 'message', 'requestId'] } }[variant]
      assert.deepEqual(
        Object.fromEntries(Object.entries(body).map(([key, value]) => [key, Object.keys(value)])),
        expected,
      )

      dev.client.close()
      dev.program.signal('SIGINT')
      const { code, errors } = await dev.program.untilEnded()
      assert.deepEqual({ code, errors, leftovers: dev.leftovers() }, { code: 0, errors: '', leftovers: [] })
    })
  })
}

test('the token dev prints for each user has the scopes of that user', async () => {
  const dev = await startDev({ PORT: String(await freePort()) })
  const statuses = async (user: 'ADA' | 'GRACE' | 'ADMIN') => {
    const token = dev.tokenOf(user)
    const answers = [
      await dev.client.request('GET', '/v1/projects', { token }),
      await dev.client.request('POST', '/v1/projects', { token, body: { name: 'mine' } }),
      await dev.client.request('GET', '/v1/users', { token }),
      await dev.client.request('GET', '/v1/service-accounts', { token }),
    ]
    return answers.map(({ status }) => status)
  }
  assert.deepEqual(await statuses('ADA'), [200, 201, 403, 403])
  assert.deepEqual(await statuses('GRACE'), [200, 403, 200, 403])
  assert.deepEqual(await statuses('ADMIN'), [200, 201, 200, 200])
  dev.client.close()
  dev.program.signal('SIGTERM')
  assert.equal((await dev.program.untilEnded()).code, 0)
  assert.deepEqual(dev.leftovers(), [])
})

test('dev takes any port when asked for any', async () => {
  const dev = await startDev({ PORT: '0' })
  assert.equal((await dev.client.request('GET', '/healthz')).status, 200)
  assert.notEqual(new URL(dev.client.url).port, '0')
  dev.client.close()
})

test('dev refuses to run in production, and starts nothing there', async () => {
  const folder = freshFolder()
  const temporary = join(folder, 'tmp')
  mkdirSync(temporary)
  const settings = { NODE_ENV: 'production', TMPDIR: temporary }
  const { code, output, errors } = await runProgram(['dev'], { folder, settings })
  assert.deepEqual({ code, output }, { code: 64, output: '' })
  assert.match(errors, /not for production.*serve/)
  assert.deepEqual(readdirSync(temporary), [])
})

for (const variant of ['A', 'B'] as const) {
  test(`dev as variant ${variant} answers only under the names of this machine, and its sandbox does so too`, async () => {
    const dev = await startDev({ API_VARIANT: variant, PORT: '0' })
    const { port } = new URL(dev.client.url)
    for (const host of [`127.0.0.1:${port}`, `localhost:${port}`, 'localhost', `[::1]:${port}`]) {
      assert.equal((await dev.client.request('GET', '/healthz', { headers: { host } })).status, 200, host)
    }
    const token = dev.tokenOf('ADMIN')
    for (const host of ['evil.example', `evil.example:${port}`, `127.0.0.1.evil.example:${port}`]) {
      for (const path of ['/healthz', '/v1/projects', '/nothing']) {
        const answer = await dev.client.request('GET', path, { token, headers: { host } })
        const message = 'headers/host must be a loopback name or address'
        assertError({ variant }, answer, { status: 400, code: 'invalid_request', message })
      }
      for (const url of [dev.tokens, dev.runtime, dev.push]) {
        const sandbox = new HttpClient(url)
        assert.equal((await sandbox.request('GET', '/', { headers: { host } })).status, 403, url)
        sandbox.close()
      }
    }
    dev.client.close()
  })
}

test('dev refuses a database on another machine by the name of its setting, and leaves nothing behind', async () => {
  const remote: Settings[] = [
    { DATABASE_URL: 'postgres://api:hunter2@db.example.com/api' },
    { DATABASE_URL: 'postgres://api:hunter2@10.0.0.1:5432/api' },
    { DATABASE_URL: 'postgres://api:hunter2@localhost.example.com/api' },
    { DATABASE_URL: 'postgres://api:hunter2@localhost/api?host=db.example.com' },
    { DATABASE_URL: 'postgres://api:hunter2@localhost/api?host=localhost&host=db.example.com' },
    { DATABASE_URL: 'postgres:///api?password=hunter2', PGHOST: 'db.example.com' },
  ]
  for (const settings of remote) {
    const temporary = freshFolder()
    const { code, output, errors } = await runProgram(['dev'], {
      settings: { ...settings, TMPDIR: temporary, PORT: '0' },
    })
    assert.deepEqual({ code, output }, { code: 78, output: '' }, errors)
    assert.match(errors, /^Bad configuration:\n {2}DATABASE_URL must be a database on this machine/)
    assert.doesNotMatch(errors, /hunter2/)
    assert.deepEqual(readdirSync(temporary), [])
  }
})

test('dev takes a database on this machine', async () => {
  const port = await freePort()
  for (const DATABASE_URL of [`postgres://api@127.0.0.1:${port}/api`, `postgres://api@[::1]:${port}/api`]) {
    const { code, errors } = await runProgram(['dev'], { settings: { DATABASE_URL, PORT: '0' } })
    assert.equal(code, 69, 'it was taken and could not be reached')
    assert.match(errors, /^The database cannot be reached/)
  }
})
