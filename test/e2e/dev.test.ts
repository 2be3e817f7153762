import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { before, describe, test } from 'node:test'
import { promisify } from 'node:util'
import { assertError } from '../support/assert-error.ts'
import { findProgram } from '../support/binaries.ts'
import { runCommand } from '../support/command.ts'
import { HttpClient } from '../support/http-client.ts'
import { PATIENCE_MS } from '../support/patience.ts'
import { type Ending, freshFolder, Program, runProgram, type Settings } from '../support/program.ts'
import { PROGRAM } from '../support/program-file.ts'
import { freePort } from '../support/server-process.ts'
import { isCi } from '../support/services.ts'
import { until } from '../support/until.ts'

const run = promisify(execFile)
const needsCurl = { skip: findProgram('curl') === undefined && !isCi() && 'needs curl, which is not installed' }

const UP_TO_LINES = 25
/** The first line, before the service is loaded. */
const ANNOUNCEMENT = 'Starting the service and its sandbox …\n'

/** `dev` as a newcomer starts it: nothing set, in an empty folder, with a place for scratch folders to look into. */
async function startDev(settings: Settings = {}, { args = [] as string[], folder = freshFolder() } = {}) {
  const temporary = freshFolder()
  const program = new Program(['dev', ...args], { folder, settings: { TMPDIR: temporary, ...settings } })
  await program.untilSaid(/Ctrl-C.*\n/)
  const { output } = program
  const find = (pattern: RegExp) => {
    const [, found] = pattern.exec(output) ?? []
    assert.ok(found, `${pattern} is not in what it says:\n${output}`)
    return found
  }
  const start = find(/^ *Start here +(http\S+)$/m)
  const environment = async () => (await (await fetch(`${start}/environment`)).json()) as Record<string, string>
  return {
    program,
    start,
    leftovers: () => [...readdirSync(folder), ...readdirSync(temporary)],
    client: new HttpClient(find(/^ *API +(http\S+)$/m)),
    reference: find(/^ *Reference +(http\S+)/m),
    tokens: find(/^ *Tokens +(http\S+)/m),
    runtime: find(/^ *Runtime +(http\S+)/m),
    push: find(/^ *Push +(http\S+)/m),
    environment,
    tokenOf: async (user: 'ADA' | 'ADMIN') => (await environment())[user] ?? '',
    evalLine: find(/^ *(eval .*)$/m),
    curlLine: find(/^ *(curl .*)$/m),
  }
}

/** Through a shell, as when pasted. */
async function paste(lines: readonly string[]): Promise<string> {
  const script = lines.join('\n').replaceAll('npx project-api', `${process.execPath} ${PROGRAM}`)
  return (await run('sh', ['-c', script], { timeout: PATIENCE_MS })).stdout
}

type Dev = Awaited<ReturnType<typeof startDev>>

for (const variant of ['A', 'B'] as const) {
  describe(`dev as variant ${variant}`, () => {
    let dev: Dev
    before(async () => {
      dev = await startDev({ PORT: String(await freePort()), API_VARIANT: variant })
    })

    test('dev prints few lines, whose commands work when pasted', needsCurl, async () => {
      const { output } = dev.program
      assert.ok(output.trimEnd().split('\n').length <= UP_TO_LINES, output)
      assert.ok(output.startsWith(ANNOUNCEMENT), output)
      assert.doesNotMatch(output, /eyJ/, 'no token on the screen')

      const job = JSON.parse(await paste([dev.evalLine, dev.curlLine])) as { type: string; error: unknown }
      assert.deepEqual([job.type, job.error], ['report', null])
      const list = await paste([dev.evalLine, 'curl -s $API/v1/projects -H "Authorization: Bearer $ADA"'])
      const { data } = JSON.parse(list) as { data: { name: string }[] }
      assert.deepEqual(
        data.map(({ name }) => name),
        ['Support bot', 'Quarterly report', 'Website relaunch'],
      )
      const faults = await paste([
        dev.evalLine,
        `curl -s -X PATCH $RUNTIME/sandbox/faults -H 'Content-Type: application/json' -d '{"drop_callbacks":1}'`,
      ])
      assert.equal((JSON.parse(faults) as { drop_callbacks: number }).drop_callbacks, 1)

      for (const page of [dev.start, dev.reference, dev.tokens]) {
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
    })

    test('dev answers only under the names of this machine, and its sandbox does so too', async () => {
      const { port } = new URL(dev.client.url)
      for (const host of [`127.0.0.1:${port}`, `localhost:${port}`, 'localhost', `[::1]:${port}`]) {
        assert.equal((await dev.client.request('GET', '/healthz', { headers: { host } })).status, 200, host)
      }
      const token = await dev.tokenOf('ADMIN')
      for (const host of ['evil.example', `evil.example:${port}`, `127.0.0.1.evil.example:${port}`]) {
        for (const path of ['/healthz', '/v1/projects', '/nothing']) {
          const answer = await dev.client.request('GET', path, { token, headers: { host } })
          const message = 'headers/host must be a loopback name or address'
          assertError({ variant }, answer, { status: 400, code: 'invalid_request', message })
        }
        for (const url of [dev.start, dev.tokens, dev.runtime, dev.push]) {
          const sandbox = new HttpClient(url)
          assert.equal((await sandbox.request('GET', '/', { headers: { host } })).status, 403, url)
          sandbox.close()
        }
      }
    })

    test('dev ends with Ctrl-C, and leaves no files behind', async () => {
      dev.client.close()
      dev.program.signal('SIGINT')
      const { code, errors } = await dev.program.untilEnded()
      assert.deepEqual({ code, errors, leftovers: dev.leftovers() }, { code: 0, errors: '', leftovers: [] })
    })
  })
}

describe('dev with PORT=0, LOG_LEVEL=info and --open', () => {
  const folder = freshFolder()
  const opened = join(folder, 'opened')
  let dev: Dev
  before(async () => {
    writeFileSync(join(folder, 'xdg-open'), `#!/bin/sh\necho "$1" > ${opened}.part && mv ${opened}.part ${opened}\n`, {
      mode: 0o755,
    })
    const settings = { PORT: '0', LOG_LEVEL: 'info', PATH: `${folder}:${process.env.PATH}` }
    dev = await startDev(settings, { args: ['--open'] })
  })

  test('dev with PORT=0 uses any free port', async () => {
    assert.equal((await dev.client.request('GET', '/healthz')).status, 200)
    assert.notEqual(new URL(dev.client.url).port, '0')
  })

  test('dev --open opens the start page in the browser', async () => {
    await until(() => existsSync(opened))
    assert.equal(readFileSync(opened, 'utf8').trim(), dev.start)
  })

  test('dev writes logs as lines for people', async () => {
    const [line] = await dev.program.untilSaid(/^.*service\.started.*$/m)
    assert.match(line, /^\d\d:\d\d:\d\d info {2}service\.started url=http:\S+ variant=B engine=sqlite$/)
  })

  test('dev issues tokens with the scopes of their users', async () => {
    const statuses = async (user: 'ADA' | 'ADMIN') => {
      const token = await dev.tokenOf(user)
      const answers = [
        await dev.client.request('POST', '/v1/projects', { token, body: { name: 'mine' } }),
        await dev.client.request('GET', '/v1/users', { token }),
        await dev.client.request('GET', '/v1/service-accounts', { token }),
      ]
      return answers.map(({ status }) => status)
    }
    assert.deepEqual(await statuses('ADA'), [201, 403, 403])
    assert.deepEqual(await statuses('ADMIN'), [201, 200, 200])
  })

  test('dev ends with SIGTERM, and leaves no files behind', async () => {
    dev.client.close()
    dev.program.signal('SIGTERM')
    assert.equal((await dev.program.untilEnded()).code, 0)
    assert.deepEqual(dev.leftovers(), [])
  })
})

test('dev has the ports after its own, and says so when another program uses one', async () => {
  const port = await freeRange()
  const taken = createServer().listen(port + 2, '127.0.0.1')
  await once(taken, 'listening')
  const dev = await startDev({ PORT: String(port) })
  const portOf = (url: string) => Number(new URL(url).port)
  assert.deepEqual([dev.client.url, dev.start, dev.runtime, dev.push].map(portOf), [port, port + 1, port + 3, port + 4])
  assert.notEqual(portOf(dev.tokens), port + 2)
  assert.match(dev.program.output, new RegExp(`Port ${port + 2} is in use by another program: "Tokens"`))
  const { code, output } = await runProgram(['dev-env'], { settings: { PORT: String(port) } })
  assert.equal(code, 0)
  assert.match(
    output,
    /^export API='http:\/\/\S+'\nexport ADA='eyJ\S+'\nexport ADMIN='eyJ\S+'\nexport RUNTIME='\S+'\n$/,
  )
  const other = await runCommand(['dev-env', '--url', dev.client.url])
  assert.equal(other.output, '')
  assert.match(other.errors, /is not the start page of dev$/m)
  dev.client.close()
  taken.close()
})

test('dev --keep keeps data and tokens over a restart', async () => {
  const folder = freshFolder()
  const settings = { PORT: String(await freeRange()) }
  const first = await startDev(settings, { args: ['--keep'], folder })
  const token = await first.tokenOf('ADA')
  await first.client.request('POST', '/v1/projects', { token, body: { name: 'Kept' } })
  first.client.close()
  first.program.signal('SIGINT')
  await first.program.untilEnded()
  const second = await startDev(settings, { args: ['--keep'], folder })
  const { status, body } = await second.client.request<{ data: { name: string }[] }>('GET', '/v1/projects', { token })
  assert.equal(status, 200)
  assert.deepEqual(
    body.data.map(({ name }) => name),
    ['Kept', 'Support bot', 'Quarterly report', 'Website relaunch'],
  )
  second.client.close()
})

test('dev-env without a running dev says how to start it', async () => {
  const { code, output, errors } = await runCommand(['dev-env', '--url', `http://127.0.0.1:${await freePort()}`])
  assert.deepEqual([code, output], [69, ''])
  assert.match(errors, /^No dev is running at .*npm run dev$/m)
  const { code: refused } = await runCommand(['dev-env', '--url', 'http://example.com'])
  assert.equal(refused, 64)
})

/** The first of six neighbouring free ports, which no other test takes. */
async function freeRange(): Promise<number> {
  for (;;) {
    const port = await freePort()
    const servers = [0, 1, 2, 3, 4, 5].map((offset) => createServer().listen(port + offset, '127.0.0.1'))
    const free = await Promise.allSettled(servers.map((server) => once(server, 'listening')))
    for (const server of servers) server.close()
    if (free.every(({ status }) => status === 'fulfilled')) return port
  }
}

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

test('dev refuses a database on another machine by the name of its setting, and leaves nothing behind', async () => {
  const remote: Settings[] = [
    { DATABASE_URL: 'postgres://api:hunter2@db.example.com/api' },
    { DATABASE_URL: 'postgres://api:hunter2@10.0.0.1:5432/api' },
    { DATABASE_URL: 'postgres://api:hunter2@localhost.example.com/api' },
    { DATABASE_URL: 'postgres://api:hunter2@localhost/api?host=db.example.com' },
    { DATABASE_URL: 'postgres://api:hunter2@localhost/api?host=localhost&host=db.example.com' },
    { DATABASE_URL: 'postgres:///api?password=hunter2', PGHOST: 'db.example.com' },
  ]
  const assertRefused = ({ code, output, errors }: Ending) => {
    assert.deepEqual({ code, output }, { code: 78, output: ANNOUNCEMENT }, errors)
    assert.match(errors, /^Bad configuration:\n {2}DATABASE_URL must be a database on this machine/)
    assert.doesNotMatch(errors, /hunter2/)
  }
  for (const settings of remote) assertRefused(await runCommand(['dev'], { ...settings, PORT: '0' }))
  const temporary = freshFolder()
  assertRefused(await runProgram(['dev'], { settings: { ...remote[0], TMPDIR: temporary, PORT: '0' } }))
  assert.deepEqual(readdirSync(temporary), [])
})

test('dev takes a database on this machine', async () => {
  const port = await freePort()
  for (const DATABASE_URL of [`postgres://api@127.0.0.1:${port}/api`, `postgres://api@[::1]:${port}/api`]) {
    const { code, errors } = await runProgram(['dev'], { settings: { DATABASE_URL, PORT: '0' } })
    assert.equal(code, 69, 'it was taken and could not be reached')
    assert.match(errors, /^The database cannot be reached/)
  }
})
