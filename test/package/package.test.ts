import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { globSync, mkdirSync, readdirSync, readFileSync, statSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { HttpClient } from '../support/http-client.ts'
import { START_PATIENCE_MS } from '../support/patience.ts'
import { descendantsOf } from '../support/process-tree.ts'
import { freshFolder, runProgram } from '../support/program.ts'
import { settingsWith, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'
import { needsPostgres, sharedPostgresDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'

const run = promisify(execFile)
const ROOT = fileURLToPath(new URL('../../', import.meta.url))
const MAX_BYTES = 40_000_000

interface Packed {
  filename: string
  version: string
  files: { path: string }[]
}

/** Packs a folder of this checkout, as `npm run tarball` does. */
async function pack(folder: string, target: string): Promise<Packed> {
  const args = ['pack', join(ROOT, folder), '--json', '--pack-destination', target]
  const { stdout } = await run('npm', args, { cwd: target, timeout: START_PATIENCE_MS })
  const printed = JSON.parse(stdout) as Packed[] | Record<string, Packed>
  const [packed] = Object.values(printed)
  assert.ok(packed)
  return packed
}

/** A machine with Node 24, npm and the tarball in an empty folder, and nothing else: no registry, no cache, no settings. */
async function install(): Promise<{ folder: string; home: string; env: NodeJS.ProcessEnv; packed: Packed }> {
  const machine = freshFolder()
  const at = (name: string) => {
    mkdirSync(join(machine, name))
    return join(machine, name)
  }
  const [folder, home, temporary, programs] = [at('app'), at('home'), at('tmp'), at('bin')]
  symlinkSync(process.execPath, join(programs, 'node'))
  const packed = await pack('dist', folder)
  const env = {
    PATH: `${programs}:${process.env.PATH}`,
    HOME: home,
    TMPDIR: temporary,
    npm_config_cache: at('npm-cache'),
    npm_config_update_notifier: 'false',
  }
  await run('npm', ['install', '--offline', '--no-audit', '--no-fund', `./${packed.filename}`], { cwd: folder, env })
  return { folder, home: machine, env, packed }
}

/** All files of the machine without those of npm, and without the compile cache of the service in the package's own folder. */
function filesOf(machine: string): string[] {
  const files = readdirSync(machine, { recursive: true, encoding: 'utf8' })
  return files
    .filter(
      (file) => !/^npm-cache|^tmp\/node-compile-cache|^app\/node_modules\/project-api\/node_modules(?:\/|$)/.test(file),
    )
    .sort()
}

describe('the packed service on a machine with Node alone', () => {
  let machine: Awaited<ReturnType<typeof install>>
  let main = ''
  before(async () => {
    machine = await install()
    main = join(machine.folder, 'node_modules/project-api/bin/project-api.js')
  })

  test('it is one package below 40 MB, without another Node and without what only tests need', () => {
    const modules = join(machine.folder, 'node_modules')
    assert.deepEqual(
      readdirSync(modules).filter((name) => !name.startsWith('.')),
      ['project-api'],
    )
    const installed = globSync('**/*', { cwd: modules, withFileTypes: true }).filter((entry) => entry.isFile())
    const bytes = installed.map((entry) => statSync(join(entry.parentPath, entry.name)).size)
    const total = bytes.reduce((sum, one) => sum + one, 0)
    assert.ok(total > 1_000_000 && total < MAX_BYTES, `${total} bytes`)
    assert.deepEqual(
      machine.packed.files.map(({ path }) => path).filter((path) => /internals|node_modules|\.ts$/.test(path)),
      [],
    )
    const { dependencies, engines, version } = JSON.parse(
      readFileSync(join(modules, 'project-api/package.json'), 'utf8'),
    ) as { dependencies?: object; engines: object; version: string }
    assert.deepEqual([dependencies, engines], [undefined, { node: '>=24' }])
    assert.equal(version, machine.packed.version)
  })

  test('the package has every file that its README shows or links', () => {
    const packed = new Set(machine.packed.files.map(({ path }) => path))
    const readme = readFileSync(join(machine.folder, 'node_modules/project-api/README.md'), 'utf8')
    const links = Array.from(readme.matchAll(/\]\((?!https?:|#)([^)#]+)/g), ([, path = '']) => path)
    assert.ok(links.length > 10)
    assert.deepEqual(
      links.filter((path) => !packed.has(path)),
      [],
    )
  })

  test('npx project-api dev runs a first job, and leaves nothing after Ctrl-C', async () => {
    const files = new Set(filesOf(machine.home))
    const port = await freePort()
    const env = { ...machine.env, PORT: String(port) }
    // A group of its own, as a terminal has one: Ctrl-C signals all processes of the group.
    const npx = spawn('npx', ['project-api', 'dev'], { cwd: machine.folder, env, detached: true, stdio: 'pipe' })
    const said = { output: '', errors: '' }
    npx.stdout.setEncoding('utf8').on('data', (text: string) => {
      said.output += text
    })
    npx.stderr.setEncoding('utf8').on('data', (text: string) => {
      said.errors += text
    })
    const exited = once(npx, 'exit') as Promise<[number | null, NodeJS.Signals | null]>
    try {
      await until(() => said.output.includes('Ctrl-C') || npx.exitCode !== null, START_PATIENCE_MS)
      assert.equal(npx.exitCode, null, said.errors)
      const start = /Start here +(http\S+)/.exec(said.output)?.[1] ?? ''
      const { API = '', ADA = '' } = (await (await fetch(`${start}/environment`)).json()) as Record<string, string>
      const api = new HttpClient(API)
      const body = { type: 'report', input: { title: 'Sales', n: 3 } }
      const created = await api.request<{ id: string }>('POST', '/jobs', { token: ADA, body })
      assert.equal(created.status, 202)
      const read = () => api.request<{ status: string }>('GET', `/jobs/${created.body.id}`, { token: ADA })
      await until(async () => (await read()).body.status === 'completed')
      for (const path of ['/console', '/docs', '/docs/reference.js', '/openapi.json']) {
        assert.equal((await api.request('GET', path)).status, 200, path)
      }
      api.close()
      const processes = descendantsOf(npx.pid ?? 0)
      assert.ok(processes.length > 0)
      process.kill(-(npx.pid ?? 0), 'SIGINT')
      await exited
      await until(() => !processes.some(isAlive))
      assert.equal(said.errors, '')
    } finally {
      if (npx.exitCode === null && npx.signalCode === null) process.kill(-(npx.pid ?? 0), 'SIGKILL')
    }
    assert.deepEqual(
      filesOf(machine.home).filter((file) => !files.has(file)),
      [],
    )
  })

  test('serve, doctor and copy to PostgreSQL work from it', needsPostgres(), async () => {
    const { folder } = machine
    const settings = { DATA_DIR: join(folder, 'data') }
    const served = await startServe({ main, folder, settings })
    const { status, body } = await served.request('GET', '/healthz')
    assert.deepEqual({ status, body }, { status: 200, body: { status: 'ok' } })
    served.program.signal('SIGTERM')
    assert.equal((await served.program.untilEnded()).code, 0)

    const all = await settingsWith(settings)
    const doctor = await runProgram(['doctor'], { main, folder, settings: all })
    assert.equal(doctor.code, 0, doctor.output + doctor.errors)
    const { url } = await sharedPostgresDatabase()
    const copy = await runProgram(['copy', '--to', url], { main, folder, settings: all })
    assert.equal(copy.code, 0, copy.output + copy.errors)
  })

  test('it prints its version', async () => {
    const ended = await runProgram(['--version'], { main })
    assert.deepEqual(ended, { code: 0, output: `${machine.packed.version}\n`, errors: '' })
  })
})

test('the client is a package of the same version', async () => {
  const client = await pack('client', freshFolder())
  const { version } = JSON.parse(readFileSync(join(ROOT, 'dist/package.json'), 'utf8')) as { version: string }
  assert.equal(client.version, version)
  const paths = client.files.map(({ path }) => path)
  for (const path of ['dist/index.js', 'dist/index.d.ts', 'LICENSE', 'README.md']) assert.ok(paths.includes(path), path)
})

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
