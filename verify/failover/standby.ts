import { execFile } from 'node:child_process'
import { chownSync } from 'node:fs'
import { connect, createServer, type Socket } from 'node:net'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { systemClock } from '../../src/core/clock.ts'
import { findPostgres } from '../../test/support/binaries.ts'
import { psql, serverUser, startPostgres } from '../../test/support/postgres.ts'
import { freePort, ServerProcess } from '../../test/support/server-process.ts'
import { until } from '../../test/support/until.ts'
import { ClientLoad } from './client-load.ts'
import type { FailoverFigures, Scene } from './scene.ts'

const run = promisify(execFile)
const BEFORE_MS = 6_000
const AFTER_MS = 6_000

/** A synchronous standby is promoted in the middle, after the primary was killed as by a power cut. */
export async function promoteStandby(scene: Scene): Promise<FailoverFigures> {
  const primary = await startPostgres()
  scene.onClose(() => primary.stop())
  const database = new URL(await primary.createDatabase())
  const standby = await startStandby(scene, Number(database.port))
  await psql(primary.url, `alter system set synchronous_standby_names = '*'`)
  await psql(primary.url, 'select pg_reload_conf()')
  const isSync = `select count(*) from pg_stat_replication where sync_state = 'sync'`
  await until(async () => (await psql(primary.url, isSync)) === '1')
  const address = await startAddress(scene, Number(database.port))
  const followed = new URL(database.href)
  followed.port = String(address.port)
  const { identity, balancer } = await scene.startBalancedNodes({
    DATABASE_URL: followed.href,
  })
  const load = new ClientLoad(balancer.url, identity)
  await systemClock.sleep(BEFORE_MS)
  const before = load.acknowledged.length
  const killedMs = Date.now()
  await primary.kill()
  const promoted = new URL(database.href)
  promoted.port = String(standby)
  await psql(promoted.href, 'select pg_promote(true, 30)')
  address.moveTo(standby)
  for (const node of scene.nodes) await balancer.untilReady(node.name, 60_000)
  const tookMs = Date.now() - killedMs
  await systemClock.sleep(AFTER_MS)
  await load.stop()
  const { lost, unfinished } = await load.audit()
  return [
    ['requests answered', load.answered],
    ['refused while there was no primary', load.failed],
    ...[...load.refusals].map(([why, count]): FailoverFigures[number] => [`  ${why}`, count]),
    ['from the kill until both nodes were ready', `${(tookMs / 1_000).toFixed(1)} s`],
    ['changes acknowledged before, after', `${before}, ${load.acknowledged.length - before}`],
    ['of them lost', lost],
    ['jobs that did not end', unfinished],
  ]
}

/** A copy of the primary that follows it. Returns its port. */
async function startStandby(scene: Scene, primaryPort: number): Promise<number> {
  const bin = findPostgres() ?? ''
  const user = serverUser()
  const server = new ServerProcess('failover-standby')
  scene.onClose(() => server.stop())
  if (user) chownSync(server.folder, user.uid, user.gid)
  const data = join(server.folder, 'data')
  const from = ['-h', '127.0.0.1', '-p', String(primaryPort), '-U', 'postgres']
  await run(join(bin, 'pg_basebackup'), [...from, '-D', data, '-R', '-X', 'stream', '-c', 'fast'], {
    cwd: server.folder,
    ...user,
  })
  const port = await freePort()
  const settings = ['listen_addresses=127.0.0.1', `unix_socket_directories=${server.folder}`, 'max_connections=200']
  await server.start({
    command: join(bin, 'postgres'),
    args: ['-D', data, '-p', String(port), ...settings.map((setting) => `--${setting}`)],
    ready: /ready to accept read-only connections/,
    stopSignal: 'SIGINT',
    user,
  })
  return port
}

/** The address that follows the primary, as a virtual IP or a managed service gives it. */
async function startAddress(scene: Scene, firstPort: number) {
  let target = firstPort
  const sockets = new Set<Socket>()
  const server = createServer((client) => {
    const upstream = connect(target, '127.0.0.1')
    for (const [socket, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(socket)
      socket.on('error', () => other.destroy())
      socket.on('close', () => {
        sockets.delete(socket)
        other.destroy()
      })
      socket.pipe(other)
    }
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  scene.onClose(async () => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('The system gave no port')
  return {
    port: address.port,
    moveTo: (port: number) => {
      target = port
    },
  }
}
