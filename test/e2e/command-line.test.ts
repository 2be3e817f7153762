import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { userInfo } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { fillDisk } from '../support/almost-full-disk.ts'
import { runCommand } from '../support/command.ts'
import { freshFolder, runProgram, type Settings } from '../support/program.ts'
import { settingsWith, sharedIssuer, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'
import { needsPostgres, needsRedis, sharedPostgresDatabase, sharedRedis } from '../support/services.ts'
import { until } from '../support/until.ts'

type AuditEntry = { action: string; actor: { kind: string; id: string } }

const JOB_TYPES_FILE = fileURLToPath(new URL('../../job-types.json', import.meta.url))
const USAGE = 64
const UNAVAILABLE = 69
const CONFIG = 78

describe('the command line', { concurrency: 2 }, () => {
  test('the command line prints its commands, with and without --help', async () => {
    for (const [args, run] of [
      [[], runProgram],
      [['--help'], runCommand],
      [['-h'], runCommand],
      [['help'], runCommand],
    ] as const) {
      const { code, output, errors } = await run(args)
      assert.deepEqual({ code, errors }, { code: 0, errors: '' })
      for (const command of ['serve', 'dev', 'migrate', 'keys', 'doctor']) {
        assert.match(output, new RegExp(`^ +${command} +\\S`, 'm'))
      }
    }
  })

  test('the command line prints its version', async () => {
    const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'))
    assert.deepEqual(await runProgram(['--version']), { code: 0, output: `${version}\n`, errors: '' })
  })

  test('the command line caches compiled code beside the installed code, never in the temporary folder that every account can write', () => {
    const program = fileURLToPath(new URL('../../bin/project-api.js', import.meta.url))
    const TMPDIR = freshFolder()
    execFileSync(process.execPath, [program, '--version'], { env: { TMPDIR } })
    assert.deepEqual(readdirSync(TMPDIR), [])
    assert.notDeepEqual(readdirSync(new URL('../../node_modules/.cache/project-api/', import.meta.url)), [])
  })

  test('an unknown command is refused, also a name that every object has', async () => {
    for (const name of ['sevre', 'constructor', '--port']) {
      const { code, output, errors } = await (name === 'sevre' ? runProgram([name]) : runCommand([name]))
      assert.deepEqual({ code, output }, { code: USAGE, output: '' })
      assert.ok(errors.startsWith(`Unknown command "${name}"`))
      assert.match(errors, /serve/)
    }
  })

  test('each command prints its usage with --help, and does nothing else', async () => {
    for (const command of ['serve', 'dev', 'migrate', 'keys', 'jobs', 'callbacks', 'doctor']) {
      const folder = freshFolder()
      const settings = await settingsWith({ DATA_DIR: join(folder, 'data') })
      for (const args of [
        [command, '--help'],
        [command, 'create', '-h'],
      ]) {
        const { code, output, errors } = await runCommand(args, settings)
        assert.deepEqual({ code, errors }, { code: 0, errors: '' }, args.join(' '))
        assert.match(output, new RegExp(`^usage: ${command}\\b`))
      }
      assert.deepEqual(readdirSync(folder), [])
    }
  })

  test('arguments that a command does not take are refused before it does anything', async () => {
    const misuses: [args: string[], said: RegExp][] = [
      [['serve', '--port', '3000'], /^serve takes no arguments, not "--port 3000"\nusage: serve\n$/],
      [['dev', 'now'], /^Unexpected argument 'now'.*\nusage: dev \[--open\]/],
      [['migrate', '--dry-run'], /^migrate takes no arguments, not "--dry-run"\nusage: migrate\n$/],
      [['doctor', 'database'], /^Unexpected argument 'database'.*\nusage: doctor \[--url URL\]/],
      [['jobs'], /^jobs needs a subcommand: list, get, cancel, retry, tail, reconcile\nusage: jobs list /],
      [['jobs', 'get'], /^jobs get needs one id\nusage: jobs list /],
      [['jobs', 'cancel'], /^jobs cancel needs at least one id\nusage: jobs list /],
      [['jobs', 'list', '--status', 'odd'], /^--status must be one of processing/],
      [['jobs', 'list', '--limit', '0'], /^--limit must be a number from 1 to 100\n/],
      [['jobs', 'get', 'job_1', '--type', 'a'], /^jobs get takes no --type\n/],
      [['users', 'block'], /^users block needs one sub\nusage: users block /],
      [['users', 'forget', 'ada'], /^users needs a subcommand: block, unblock, export, erase\n/],
      [['audit', '--action', 'odd'], /^--action must be one of service_account\.created/],
      [['jobs', 'reconcile', '--all'], /^Unknown option '--all'\nusage: jobs list /],
      [['callbacks', 'replay'], /^callbacks needs the subcommand replay and at least one id\nusage: callbacks replay /],
      [['jobs', 'list', '--key', 'k'], /^--key needs --url\nusage: jobs list /],
      [['jobs', 'list', '--url', 'http://127.0.0.1:1'], /^--url needs a service key: --key KEY, or PROJECT_API_KEY/],
      [['audit', '--url', 'localhost:80', '--key', 'k'], /^--url must start with http/],
      [['callbacks', 'replay', '-f', 'cbk_1'], /^Unknown option '-f'\nusage: callbacks replay /],
    ]
    const folder = freshFolder()
    const settings = await settingsWith({ DATA_DIR: join(folder, 'data') })
    for (const [args, said] of misuses) {
      const { code, output, errors } = await runCommand(args, settings)
      assert.deepEqual({ code, output }, { code: USAGE, output: '' }, args.join(' '))
      assert.match(errors, said)
    }
    assert.deepEqual(readdirSync(folder), [])
  })

  test('the faults of the job types are named together with those of the settings', async () => {
    const folder = freshFolder()
    writeFileSync(join(folder, 'types.json'), '{"types":{"report":{"assistant_id":7}}}')
    const faults = (file: string) => ({ PORT: 'http', JOB_TYPES_FILE: join(folder, file) })
    const served = await runProgram(['serve'], { folder, settings: { PORT: 'http', JOB_TYPES_FILE: 'types.json' } })
    const erase = (file: string) => runCommand(['users', 'erase', 'ada'], { ...faults(file), DATA_DIR: folder })
    for (const broken of [served, await erase('types.json')]) {
      assert.deepEqual({ code: broken.code, output: broken.output }, { code: CONFIG, output: '' })
      assert.match(broken.errors, /^ {2}PORT /m)
      assert.match(broken.errors, /^ {2}ISSUER_URL /m)
      assert.match(broken.errors, /^ {2}JOB_TYPES_FILE \S*types\.json: .*\n +\/types\/report\/assistant_id /m)
    }
    assert.match(served.errors, /^ {2}JOB_TYPES_FILE types\.json: /m)
    writeFileSync(join(folder, 'odd.json'), '{"types":{"a\\nb":null,"__proto__":null}}')
    const odd = await erase('odd.json')
    assert.equal(odd.code, CONFIG)
    assert.match(odd.errors, /^ {2}JOB_TYPES_FILE \S+odd\.json: .*\n.*named "a\\nb".*\n.*named "__proto__"/m)
    const missing = await erase('nowhere.json')
    assert.equal(missing.code, CONFIG)
    assert.match(missing.errors, /^ {2}PORT [\s\S]*^ {2}JOB_TYPES_FILE cannot be read \(ENOENT\): \S+nowhere\.json$/m)
  })

  test('every fault of the settings is named at once, and no secret', async () => {
    const secret = 'hunter2'
    const settings = {
      PORT: 'http',
      API_VARIANT: 'C',
      DATABASE_URL: `mysql://root:${secret}@db/x`,
      PUSH_PRIVATE_KEY: secret,
      WEBHOOK_SECRET: `${secret},${secret},${secret}`,
      TRUST_PROXY: '10.0.0.0/33',
      LOG_LEVEL: 'loud',
      RUNTIME_URL: `https://admin:${secret}@runtime.example.com`,
      RUNTIME_API_KEY: `key\n${secret}`,
      PUBLIC_URL: `https://${secret}@api.example.com`,
    }
    const faults = [...Object.keys(settings), 'ISSUER_URL', 'PUSH_PROJECT_ID', 'PUSH_CLIENT_EMAIL']
    for (const command of [['serve'], ['migrate'], ['doctor'], ['keys', 'list']]) {
      const { code, output, errors } = await (command[0] === 'serve'
        ? runProgram(command, { settings })
        : runCommand(command, settings))
      assert.deepEqual({ code, output }, { code: CONFIG, output: '' })
      for (const name of faults) assert.match(errors, new RegExp(`^ +${name} `, 'm'))
      assert.doesNotMatch(errors, new RegExp(secret))
      assert.doesNotMatch(errors, / at .*\.ts/)
    }
  })

  test('serve refuses a secret that callbacks could be forged with, and does not show it', async () => {
    const ISSUER_URL = 'https://login.example.com/pool'
    for (const WEBHOOK_SECRET of ['whsec_', 'x', 'whsec_!!!!', 'whsec_c2hvcnQ=']) {
      const settings = { ISSUER_URL, TOKEN_AUDIENCE: 'none', WEBHOOK_SECRET, PORT: '0' }
      const { code, output, errors } = await runCommand(['serve'], settings)
      assert.deepEqual({ code, output }, { code: CONFIG, output: '' })
      assert.match(errors, /^Bad configuration:\n {2}WEBHOOK_SECRET must have [^\n]*\nEvery setting/)
      assert.doesNotMatch(errors, /!!!!|c2hvcnQ|"x"/)
    }
  })
})

/** The same on both engines, where `place` gives the settings of a fresh database. */
function onEngine(engine: 'sqlite' | 'postgres', place: () => Promise<Settings>): void {
  const run = async (args: string[], settings: Settings) => runCommand(args, await settingsWith(settings))

  test('migrate brings a database up to date, and then has nothing to do', async () => {
    const settings = await place()
    const first = await run(['migrate'], settings)
    assert.equal(first.code, 0)
    assert.match(first.output, /^applied 0001_\w+$/m)
    assert.deepEqual(await run(['migrate'], settings), {
      code: 0,
      output: 'Nothing to do: the schema is up to date\n',
      errors: '',
    })
  })

  test('a key created on the command line works, until it is revoked there', async () => {
    const settings = await place()
    const made = await run(['keys', 'create', '--name', 'robot', '--scopes', 'read:projects'], settings)
    assert.equal(made.code, 0)
    assert.match(made.output, /^pak_[0-9A-Za-z]{46}\n$/, 'the key stands alone, to be piped')
    const key = made.output.trim()
    const [, id = ''] = /^(\S+) {2}robot/.exec(made.errors) ?? []
    const list = async () => (await run(['keys', 'list'], settings)).output
    let audited: string[] = []
    const statuses = async () => {
      const served = await startServe({ settings })
      const read = await served.request('GET', '/v1/projects', { key })
      const write = await served.request('POST', '/v1/projects', { key, body: { name: 'no' } })
      const token = (await sharedIssuer()).mint({ sub: 'auditor', scopes: ['read:operations'] })
      const listed = await served.request<{ data: AuditEntry[] }>('GET', `/v1/audit?object=${id}`, { token })
      audited = listed.body.data.map(({ action, actor }) => `${actor.kind} ${actor.id} ${action}`)
      served.program.signal('SIGINT')
      assert.equal((await served.program.untilEnded()).code, 0)
      return [read.status, write.status]
    }

    assert.match(await list(), new RegExp(`^${id} +live +…${key.slice(-4)} +read:projects +never used +robot\n$`))
    const expiring = ['--name', 'old', '--scopes', 'read:projects', '--expires', '2020-01-01T00:00:00Z']
    assert.equal((await run(['keys', 'create', ...expiring], settings)).code, 0)
    assert.match(await list(), /^svc_\S+ +expired +.* expires 2020-01-01T00:00:00\.000Z +never used +old$/m)
    assert.deepEqual(await statuses(), [200, 403])
    assert.match(await list(), /used 20\d\d-/)
    const revoked = await run(['keys', 'revoke', id], settings)
    assert.deepEqual(revoked, { code: 0, output: `revoked ${id}\n`, errors: '' })
    assert.match(await list(), /revoked/)
    assert.doesNotMatch(await list(), new RegExp(key))
    assert.deepEqual(await statuses(), [401, 401])
    const operator = `command_line ${userInfo().username}`
    assert.deepEqual(audited, [`${operator} service_account.revoked`, `${operator} service_account.created`])

    const unknown = await run(['keys', 'revoke', 'svc_nobody'], settings)
    assert.deepEqual({ code: unknown.code, output: unknown.output }, { code: 1, output: '' })
    assert.match(unknown.errors, /^No such .*\n$/)
  })

  test('doctor reports no problem for a correct setup', async () => {
    const { code, output, errors } = await run(['doctor'], await place())
    assert.deepEqual({ code, errors }, { code: 0, errors: '' })
    assert.match(output, /^ok +issuer +1 usable key/m)
    assert.match(output, new RegExp(`^ok +database +${engine}`, 'm'))
    assert.match(output, /^ok +redis +not configured/m)
    assert.match(output, /^ok +disk +/m)
    assert.match(output, /^ok +job types +agent/m)
  })
}

describe('on sqlite', { concurrency: 2 }, () => onEngine('sqlite', async () => ({ DATA_DIR: freshFolder() })))

describe('on postgres', { concurrency: 2, ...needsPostgres() }, () => {
  const databases: { drop: () => Promise<void> }[] = []
  after(() => Promise.all(databases.map(({ drop }) => drop())))
  const place = async () => {
    const database = await sharedPostgresDatabase()
    databases.push(database)
    return { DATABASE_URL: database.url }
  }
  onEngine('postgres', place)

  test('a database that does not exist is reported with the server’s message', async () => {
    const { DATABASE_URL } = await place()
    const url = new URL(DATABASE_URL)
    url.pathname = '/nowhere'
    const settings = await settingsWith({ DATABASE_URL: url.href })
    const { code, errors } = await runCommand(['migrate'], settings)
    assert.equal(code, UNAVAILABLE)
    assert.match(errors, /^The database cannot be reached: database "nowhere" does not exist\n$/)
  })
})

describe('keys', { concurrency: 2 }, () => {
  const create = (...more: string[]) => ['create', '--name', 'r', '--scopes', 'admin:*', ...more]
  const misuses: [what: string, args: string[], said: RegExp][] = [
    ['nothing to do', [], /^keys needs a subcommand: create, list or revoke\nusage: keys create/],
    ['something it cannot do', ['delete'], /^keys needs a subcommand: create, list or revoke\nusage: keys create/],
    ['no name', ['create', '--scopes', 'read:projects'], /^--name is missing\nusage: keys create/],
    ['no scopes', ['create', '--name', 'robot'], /^--scopes is missing\nusage: keys create/],
    ['an empty name', create('--name', ''), /^--name must not be empty\n/],
    ['a name too long', create('--name', 'x'.repeat(201)), /^--name must be at most 200 characters long\n/],
    ['a scope there is not', create('--scopes', 'read:all'), /^Unknown scope read:all; the scopes are /],
    [
      'a scope named twice',
      create('--scopes', 'read:users read:users'),
      /^--scopes must not contain the same item twice\n/,
    ],
    ['a date that is none', create('--expires', 'soon'), /^--expires must be an RFC 3339 date and time/],
    ['a date of another form', create('--expires', '1 May 2030'), /^--expires must be an RFC 3339 date and time/],
    ['a day there is not', create('--expires', '2030-02-30T00:00:00Z'), /^--expires must be an RFC 3339 date and time/],
    ['a word too many', create('r2'), /^Unexpected argument 'r2'\nusage: keys create/],
    ['an option there is not', ['list', '--all'], /^Unknown option '--all'\nusage: keys create/],
    ['an option of another verb', ['list', '--name', 'r'], /^keys list takes no --name\nusage: keys create/],
    ['a word where none is due', ['list', 'foo'], /^Unexpected argument 'foo'\nusage: keys create/],
    ['no id', ['revoke'], /^keys revoke needs one id\nusage: keys create/],
    ['two ids', ['revoke', 'svc_1', 'svc_2'], /^keys revoke needs one id\nusage: keys create/],
  ]
  for (const [what, args, said] of misuses) {
    test(`the keys command refuses ${what}, before any other check`, async () => {
      const { code, output, errors } = await runCommand(['keys', ...args])
      assert.deepEqual({ code, output }, { code: USAGE, output: '' })
      assert.match(errors, said)
    })
  }
})

describe('serve', { concurrency: 2 }, () => {
  test('serve locks its data folder: the second process reports which process uses it', async () => {
    const dataDir = freshFolder()
    const served = await startServe({ settings: { DATA_DIR: dataDir } })
    const settings = await settingsWith({ DATA_DIR: dataDir })
    for (const command of [['serve'], ['migrate']]) {
      const { code, output, errors } = await (command[0] === 'serve'
        ? runProgram(command, { settings })
        : runCommand(command, settings))
      assert.deepEqual({ code, output }, { code: UNAVAILABLE, output: '' })
      assert.equal(
        errors,
        `The data folder ${dataDir} is in use by process ${served.program.pid}; stop it, or choose another folder\n`,
      )
    }
    assert.equal((await served.request('GET', '/readyz')).status, 200)
  })

  test('serve reports that its port is in use, and unlocks its data folder', async () => {
    const taken = createServer().listen(0, '127.0.0.1')
    await once(taken, 'listening')
    const { port } = taken.address() as { port: number }
    const settings = await settingsWith({ DATA_DIR: freshFolder() })
    const { code, errors } = await runProgram(['serve'], { settings: { ...settings, PORT: String(port) } }).finally(
      () => taken.close(),
    )
    assert.equal(code, CONFIG)
    assert.match(errors, new RegExp(`^Cannot listen on HOST and PORT: .*EADDRINUSE.*${port}\n$`))
    assert.equal((await runCommand(['migrate'], settings)).code, 0)
  })

  test('serve reports a data folder that cannot be used', async () => {
    const file = join(freshFolder(), 'file')
    writeFileSync(file, '')
    const { code, errors } = await runProgram(['serve'], { settings: await settingsWith({ DATA_DIR: file }) })
    assert.equal(code, CONFIG)
    assert.match(errors, /^DATA_DIR .*file cannot be used: /)
  })

  test('serve does not start without its database', async () => {
    const settings = await settingsWith({ DATABASE_URL: `postgres://user@127.0.0.1:${await freePort()}/x` })
    const { code, output, errors } = await runProgram(['serve'], { settings })
    assert.deepEqual({ code, output }, { code: UNAVAILABLE, output: '' })
    assert.match(errors, /^The database cannot be reached: connect ECONNREFUSED .*\n$/)
  })

  test('serve takes a secret from a file', async () => {
    const folder = freshFolder()
    writeFileSync(join(folder, 'secret'), 'whsec\n')
    const served = await startServe({ folder, settings: { WEBHOOK_SECRET_FILE: 'secret' } })
    assert.equal((await served.request('GET', '/healthz')).status, 200)
  })
})

describe('types', { concurrency: 2 }, () => {
  const schema = { type: 'object', required: ['title'], properties: { title: { type: 'string' } } }
  const writeTypes = (report: object = { input_schema: schema }) => {
    const file = join(freshFolder(), 'types.json')
    const types = { report: { assistant_id: 'report', output_key: 'report', ...report } }
    writeFileSync(file, JSON.stringify({ types }))
    return file
  }

  test('the commands list, show, cancel and repeat jobs, block users and print the audit trail, as text and as JSON', async () => {
    const runtime = await startAgentRuntime()
    const folder = freshFolder()
    const settings = await settingsWith({ DATA_DIR: folder, RUNTIME_URL: runtime.url, JOB_TYPES_FILE })
    const served = await startServe({ folder, settings })
    const token = (await sharedIssuer()).mint({ sub: 'ada' })
    const body = { type: 'report', input: { title: 'Done', n: 9_007_199_254_740_991 } }
    const { id } = (await served.request<{ id: string }>('POST', '/jobs', { token, body })).body
    await until(async () => {
      const read = await served.request<{ status: string }>('GET', `/jobs/${id}`, { token })
      return read.body.status === 'completed'
    })
    const run = async (...args: string[]) => {
      const { code, output, errors } = await runCommand(args, settings)
      assert.deepEqual([code, errors], [0, ''], `${args.join(' ')}: ${errors}`)
      return output.trimEnd()
    }
    assert.match(await run('jobs', 'list', '--status', 'completed'), new RegExp(`^${id}  completed  report  .*  ada$`))
    const shown = JSON.parse(await run('jobs', 'get', id, '--json')) as { id: string; input: object }
    assert.deepEqual([shown.id, shown.input], [id, body.input])
    assert.match(await run('jobs', 'get', id), /^status +completed$/m)
    const again = JSON.parse(await run('jobs', 'retry', id, '--json')) as { id: string; retry_of: string }
    assert.deepEqual([again.retry_of, again.id === id], [id, false])
    const repeated = await runCommand(['jobs', 'retry', id], settings)
    assert.equal(repeated.code, 1)
    assert.match(repeated.errors, new RegExp(`^The job was retried already, as ${again.id}: `))
    const third = JSON.parse(await run('jobs', 'retry', id, '--again', '--json')) as { id: string; retry_of: string }
    assert.deepEqual([third.retry_of, third.id === again.id], [id, false])
    const cancelled = await runCommand(['jobs', 'cancel', id], settings)
    assert.deepEqual([cancelled.code, cancelled.errors], [1, 'The job is completed already\n'])
    assert.match(await run('users', 'block', 'eve'), /^eve {2}blocked since 20/)
    assert.deepEqual(JSON.parse(await run('users', 'unblock', 'eve', '--json')), { sub: 'eve', blocked_at: null })
    const exported = JSON.parse(await run('users', 'export', 'ada')) as { sub: string; jobs: { id: string }[] }
    assert.deepEqual(
      [exported.sub, exported.jobs.map((job) => job.id).sort()],
      ['ada', [id, again.id, third.id].sort()],
    )
    const entries = (await run('audit', '--json')).split('\n').map((entry) => JSON.parse(entry) as AuditEntry)
    assert.deepEqual(
      entries.map(({ action, actor }) => [action, actor.kind]),
      [
        ['user.exported', 'command_line'],
        ['user.unblocked', 'command_line'],
        ['user.blocked', 'command_line'],
        ['job.retried', 'command_line'],
        ['job.retried', 'command_line'],
      ],
    )
    const newest = await run('audit', '--object', 'eve', '--limit', '1')
    assert.match(newest, new RegExp(` command_line ${userInfo().username}  user\\.unblocked  user eve$`))
    await runtime.close()
  })

  test('the types command prints the job types of a file, and the same of a running service', async () => {
    const file = writeTypes()
    const printed = await runCommand(['types', '--file', file])
    assert.deepEqual([printed.code, printed.errors], [0, ''])
    assert.match(
      printed.output,
      /export interface JobTypes \{[\s\S]* {2}report: \{\n {4}input: \{\n {6}title: string\n {4}\}/,
    )
    const served = await startServe({ settings: { JOB_TYPES_FILE: file } })
    const token = (await sharedIssuer()).mint({ scopes: ['admin:*'] })
    const account = { token, body: { name: 'types', scopes: [] } }
    const { body } = await served.request<{ key: string }>('POST', '/v1/service-accounts', account)
    const settings = { PROJECT_API_KEY: body.key }
    const live = await runCommand(['types', '--url', `${served.url}/`], settings)
    const withoutHead = (text: string) => text.slice(text.indexOf('\n'))
    assert.deepEqual([live.code, live.errors, withoutHead(live.output)], [0, '', withoutHead(printed.output)])
    const refused = await runCommand(['types', '--url', served.url, '--key', 'pak_wrong'])
    assert.equal(refused.code, 1)
    assert.match(refused.errors, /^http\S+ refuses the key: Invalid or expired API key\n$/)
    assert.ok(!refused.errors.includes('pak_wrong'))
  })

  test('the types command says what is wrong with its arguments, the file or the address', async () => {
    const unused = `http://127.0.0.1:${await freePort()}`
    const cases: [args: string[], code: number, errors: RegExp][] = [
      [['--file', 'a', '--url', 'b'], USAGE, /takes either --file or --url\nusage: types/],
      [['--key', 'k'], USAGE, /--key needs --url/],
      [['--url', unused], USAGE, /--url needs a service key/],
      [['--url', 'localhost', '--key', 'k'], USAGE, /must start with http/],
      [['--url', unused, '--key', 'k'], UNAVAILABLE, /cannot be reached: .*ECONNREFUSED/],
      [['--file', 'none.json'], CONFIG, /JOB_TYPES_FILE cannot be read \(ENOENT\): none\.json/],
      [['--file', writeTypes({ input_schema: { type: 'x' } })], CONFIG, /\/types\/report\/input_schema\/type must be/],
    ]
    for (const [args, code, errors] of cases) {
      const ran = await runCommand(['types', ...args])
      assert.deepEqual([ran.code, ran.output], [code, ''], ran.errors)
      assert.match(ran.errors, errors)
    }
  })

  test('a bad schema of a job type stops the start, by its place', async () => {
    const JOB_TYPES_FILE = writeTypes({ resume_schema: { $ref: 'https://example.com/x.json' } })
    const { code, errors } = await runProgram(['serve'], { settings: await settingsWith({ JOB_TYPES_FILE }) })
    assert.equal(code, CONFIG)
    assert.match(errors, /\/types\/report\/resume_schema\/\$ref must be #, or #\/ with the JSON Pointer/)
  })
})

describe('doctor', { concurrency: 2 }, () => {
  const examine = async (more: Settings) =>
    runCommand(['doctor'], await settingsWith({ DATA_DIR: freshFolder(), ...more }))

  test('doctor reports an issuer without keys, and still checks the rest', async () => {
    const { url } = await sharedIssuer()
    const { code, output } = await examine({ ISSUER_URL: `${url}/another_pool` })
    assert.equal(code, UNAVAILABLE)
    assert.match(output, /^FAIL +issuer +http.*another_pool.*404\n +→ .*ISSUER_URL/m)
    assert.match(output, /^ok +database/m)
  })

  test('doctor reports each dependency when all are missing', async () => {
    const closed = `127.0.0.1:${await freePort()}`
    const { code, output, errors } = await examine({
      ISSUER_URL: `http://${closed}/pool`,
      DATABASE_URL: `postgres://user:hunter2@${closed}/x`,
      REDIS_URL: `redis://:hunter2@${closed}`,
    })
    assert.deepEqual({ code, errors }, { code: UNAVAILABLE, errors: '' })
    assert.match(output, /^FAIL +issuer .*ECONNREFUSED.*\n +→ .*ISSUER_URL/m)
    assert.match(output, /^FAIL +database .*ECONNREFUSED.*\n +→ .*DATABASE_URL/m)
    assert.match(output, /^FAIL +redis .*ECONNREFUSED.*\n +→ .*REDIS_URL/m)
    assert.doesNotMatch(output, /hunter2/)
  })

  test('doctor warns of a disk that is almost full', async (t) => {
    fillDisk(t, 0.05)
    const { code, output } = await examine({})
    assert.equal(code, 0)
    assert.match(output, /^WARN +disk +almost full: 5 % of the disk of DATA_DIR is free\n +→ Enlarge the disk/m)
  })

  test('doctor says what is wrong with the job types', async () => {
    const folder = freshFolder()
    writeFileSync(join(folder, 'types.json'), '{"types":{"report":{"assistant_id":7}}}')
    const broken = await examine({ JOB_TYPES_FILE: join(folder, 'types.json') })
    assert.deepEqual({ code: broken.code, errors: broken.errors }, { code: UNAVAILABLE, errors: '' })
    assert.match(
      broken.output,
      /^FAIL +job types +JOB_TYPES_FILE .*types\.json.*\n +\/types\/report\/assistant_id.*\n +→ .*JOB_TYPES_FILE/m,
    )
    const missing = await examine({ JOB_TYPES_FILE: join(folder, 'nowhere.json') })
    assert.match(missing.output, /^FAIL +job types +JOB_TYPES_FILE cannot be read \(ENOENT\)/m)
  })

  test('doctor finds a Redis that answers', needsRedis(), async () => {
    const { code, output } = await examine({ REDIS_URL: (await sharedRedis()).url })
    assert.equal(code, 0)
    assert.match(output, /^ok +redis +answers$/m)
  })
})
