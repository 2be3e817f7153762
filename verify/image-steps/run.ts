import { execFileSync, type SpawnSyncReturns, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, existsSync, mkdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, isAbsolute, join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { isIgnored, parseDockerfile, type Stage, UNDERSTOOD } from './dockerfile.ts'

const ROOT = fileURLToPath(new URL('../../', import.meta.url))
const SCRATCH = join(tmpdir(), 'project-api-image-steps')
const BASE = join(SCRATCH, 'base')
const SUITE = 'bookworm'
const TRUSTED = '/etc/ssl/certs/ca-certificates.crt'
const TRUSTED_INSIDE = '/etc/trusted-by-the-builder.crt'
const IGNORED = readFileSync(join(ROOT, '.dockerignore'), 'utf8')
const HEALTHY_WITHIN_MS = 60_000
const PORT = '18080'
/** What an operator gives. The issuer is not asked before the first token. */
const SETTINGS = {
  ISSUER_URL: 'https://issuer.example.com',
  TOKEN_AUDIENCE: 'none',
  WEBHOOK_SECRET: 'a-secret-of-the-image-check-only',
  PORT,
}

/**
 * Runs the steps of the Dockerfile without Docker, in a bare Debian made by debootstrap, and starts the result as Docker
 * would: as the image's user, as process 1, on a read-only file system with a writable /data. Needs root on Debian.
 */
async function main(): Promise<void> {
  if (process.getuid?.() !== 0) throw new Error('image-steps needs root: it makes and mounts file systems')
  const stages = parseDockerfile(readFileSync(join(ROOT, 'Dockerfile'), 'utf8'))
  makeBase()
  const roots = new Map<string, string>()
  for (const [index, stage] of stages.entries()) {
    const folder = join(SCRATCH, stage.name ?? 'image')
    report(`stage ${index + 1} of ${stages.length}: ${stage.name ?? 'the image'}`)
    buildStage(stage, folder, roots)
    if (stage.name) roots.set(stage.name, folder)
  }
  const last = stages.at(-1)
  if (!last) throw new Error('The Dockerfile has no stage')
  await startImage(last, join(SCRATCH, 'image'))
}

/** A bare Debian with the Node of this project in place of the one of the base image, and its user `node`. */
function makeBase(): void {
  if (existsSync(join(BASE, 'ready'))) return
  report(`debootstrap ${SUITE}`)
  rmSync(BASE, { recursive: true, force: true })
  mkdirSync(SCRATCH, { recursive: true })
  run('debootstrap', [
    '--variant=minbase',
    SUITE,
    BASE,
    ...(process.env.DEBIAN_MIRROR ? [process.env.DEBIAN_MIRROR] : []),
  ])
  cpSync(process.execPath, join(BASE, 'usr/local/bin/node'))
  const npm = realpathSync(execFileSync('sh', ['-c', 'command -v npm'], { encoding: 'utf8' }).trim())
  const target = join(BASE, 'usr/local/lib/node_modules/npm')
  cpSync(dirname(dirname(npm)), target, { recursive: true })
  writeFileSync(
    join(BASE, 'usr/local/bin/npm'),
    '#!/bin/sh\nexec node /usr/local/lib/node_modules/npm/bin/npm-cli.js "$@"\n',
    {
      mode: 0o755,
    },
  )
  run('chroot', [BASE, 'useradd', '--uid', '1000', '--create-home', 'node'])
  writeFileSync(join(BASE, 'ready'), '')
}

function buildStage({ steps }: Stage, folder: string, roots: ReadonlyMap<string, string>): void {
  rmSync(folder, { recursive: true, force: true })
  run('cp', ['-a', '--reflink=auto', BASE, folder])
  // The network of this machine, with the certificates that it trusts. Gone before the image starts.
  cpSync('/etc/resolv.conf', join(folder, 'etc/resolv.conf'))
  if (existsSync(TRUSTED)) cpSync(TRUSTED, join(folder, TRUSTED_INSIDE))
  let workdir = '/'
  const env: Record<string, string> = {}
  for (const { name, text } of steps) {
    if (!UNDERSTOOD.includes(name)) throw new Error(`image-steps does not know ${name} yet`)
    report(`  ${name} ${text}`)
    if (name === 'WORKDIR') {
      workdir = text
      mkdirSync(join(folder, workdir), { recursive: true })
    } else if (name === 'ENV') Object.assign(env, readEnv(text))
    else if (name === 'COPY') copy(text, { folder, workdir, roots })
    else if (name === 'RUN') runInside(folder, workdir, text, env)
  }
  rmSync(join(folder, 'etc/resolv.conf'))
  rmSync(join(folder, TRUSTED_INSIDE), { force: true })
}

function copy(
  text: string,
  { folder, workdir, roots }: { folder: string; workdir: string; roots: ReadonlyMap<string, string> },
): void {
  const words = text.split(/\s+/)
  const from = words[0]?.startsWith('--from=') ? words.shift()?.slice('--from='.length) : undefined
  const target = words.pop() ?? ''
  const source = from === undefined ? ROOT : roots.get(from)
  if (source === undefined) throw new Error(`COPY --from=${from}: there is no such stage before`)
  for (const word of words) {
    const isFolder = target.endsWith('/') || words.length > 1
    const place = isAbsolute(target) ? target : join(workdir, target)
    const to = join(folder, place, isFolder && word !== '.' ? (word.split('/').at(-1) ?? '') : '')
    const filter = from === undefined ? (path: string) => !isIgnored(path.slice(ROOT.length), IGNORED) : () => true
    cpSync(join(source, word), to, { recursive: true, filter, verbatimSymlinks: true })
  }
}

function runInside(folder: string, workdir: string, command: string, env: Record<string, string>): void {
  // A registry that this machine is set to use is used inside too.
  const registry = execFileSync('npm', ['config', 'get', 'registry'], { encoding: 'utf8' }).trim()
  const variables = {
    PATH: '/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin',
    HOME: '/root',
    npm_config_registry: registry,
    NODE_EXTRA_CA_CERTS: TRUSTED_INSIDE,
    ...env,
  }
  const pairs = Object.entries(variables).map(([name, value]) => `${name}=${value}`)
  const mounts = `mount --make-rprivate / && mount -t proc proc ${folder}/proc && mount --bind /dev ${folder}/dev && exec "$@"`
  const inside = ['chroot', folder, 'env', '-i', ...pairs, 'sh', '-c', `cd ${workdir} && ${command}`]
  run('unshare', ['--mount', '--pid', '--fork', 'sh', '-c', mounts, 'sh', ...inside])
}

function readEnv(text: string): Record<string, string> {
  return Object.fromEntries(Array.from(text.matchAll(/(\w+)=(\S+)/g), ([, name = '', value = '']) => [name, value]))
}

async function startImage({ steps }: Stage, image: string): Promise<void> {
  const last = (name: string) => steps.findLast((step) => step.name === name)?.text ?? ''
  const user = last('USER')
  if (!/^[1-9]\d*$/.test(user)) throw new Error('The image has no numeric user other than root')
  const env = { PATH: '/usr/local/bin:/usr/bin:/bin', ...readEnv(last('ENV')), ...SETTINGS }
  const pairs = Object.entries(env).map(([name, value]) => `${name}=${value}`)
  const data = join(SCRATCH, 'data')
  rmSync(data, { recursive: true, force: true })
  mkdirSync(data)
  run('chown', [user, data])
  const inside = (words: readonly string[]) => [
    'chroot',
    `--userspec=${user}:${user}`,
    image,
    'env',
    '-i',
    ...pairs,
    'sh',
    '-c',
    `cd ${last('WORKDIR')} && exec "$@"`,
    'sh',
    ...words,
  ]
  const mounts = `mount --make-rprivate / && mount --bind ${image} ${image} && mount -o remount,bind,ro ${image} && mount --bind ${data} ${image}/data && mount -t proc proc ${image}/proc && mount --bind /dev ${image}/dev && exec "$@"`
  const command = [
    '--mount',
    '--pid',
    '--fork',
    'sh',
    '-c',
    mounts,
    'sh',
    ...inside(JSON.parse(last('CMD')) as string[]),
  ]
  report(`start as user ${user}, process 1, read-only`)
  const service = spawn('unshare', command, { stdio: ['ignore', 'pipe', 'inherit'] })
  service.stdout.on('data', (text) => process.stdout.write(text))
  const ended = once(service, 'exit') as Promise<[number | null, string | null]>
  try {
    const [, health = ''] = /CMD (\[.*\])$/.exec(last('HEALTHCHECK')) ?? []
    await untilHealthy(
      () => spawnSync('unshare', ['--mount', 'sh', '-c', 'exec "$@"', 'sh', ...inside(JSON.parse(health) as string[])]),
      ended,
    )
    report('healthy')
    await assertConsole()
    const pid = childOf(service.pid ?? 0)
    assertReadOnly(pid, image, user)
    process.kill(pid, 'SIGTERM')
    const [code, signal] = await ended
    if (code !== 0) throw new Error(`After SIGTERM it ended with ${code ?? signal}, not 0`)
    report('SIGTERM: drained, exit code 0')
  } finally {
    if (service.exitCode === null && service.signalCode === null) process.kill(childOf(service.pid ?? 0), 'SIGKILL')
  }
}

async function untilHealthy(check: () => SpawnSyncReturns<Buffer>, ended: Promise<unknown>): Promise<void> {
  const deadlineMs = Date.now() + HEALTHY_WITHIN_MS
  let isOver = false
  void ended.then(() => {
    isOver = true
  })
  while (check().status !== 0) {
    if (isOver || Date.now() > deadlineMs) throw new Error('The health check of the image does not succeed')
    await pause(250)
  }
}

async function assertConsole(): Promise<void> {
  const response = await fetch(`http://127.0.0.1:${PORT}/console`, { signal: AbortSignal.timeout(10_000) })
  if (!(await response.text()).includes('/console/assets/')) throw new Error('The console is not built')
}

/** Tried in the file systems of the running service. */
function assertReadOnly(pid: number, image: string, user: string): void {
  const write = (place: string) =>
    spawnSync('nsenter', ['--target', String(pid), '--mount', 'touch', join(image, place)]).status === 0
  if (write('app/x') || write('tmp/x') || write('usr/x')) throw new Error('The file system is not read-only')
  if (!write('data/x')) throw new Error('/data is not writable')
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  if (!new RegExp(`^Uid:\\s+${user}\\s`, 'm').test(status)) throw new Error(`It does not run as user ${user}`)
  if (!/^NSpid:\s+\d+\s+1$/m.test(status)) throw new Error('It is not process 1')
  if (existsSync(join(image, 'app/node_modules'))) throw new Error('There are packages beside the build')
  report(`read-only but for /data, user ${user}, process 1`)
}

function childOf(pid: number): number {
  return Number(readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ')[0])
}

function run(program: string, args: readonly string[]): void {
  const { status, error } = spawnSync(program, args, { stdio: ['ignore', 'inherit', 'inherit'] })
  if (error || status !== 0) throw new Error(`${program} failed: ${error?.message ?? `exit code ${status}`}`)
}

function report(text: string): void {
  process.stdout.write(`${text}\n`)
}

await main()
