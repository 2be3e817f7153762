import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { systemClock } from '../../src/core/clock.ts'
import { startPostgres } from '../../test/support/postgres.ts'
import { freePort } from '../../test/support/server-process.ts'
import { call } from '../torture/workload/http-call.ts'
import { ClientLoad } from './client-load.ts'
import type { FailoverFigures, Scene } from './scene.ts'

const BEFORE_MS = 4_000
const AFTER_MS = 4_000
const RECOVERY_TIMEOUT_MS = 60_000

/** A master and a replica of Redis under three Sentinels. The master is killed under load. */
export async function sentinelFailover(scene: Scene): Promise<FailoverFigures> {
  const postgres = await startPostgres()
  scene.onClose(() => postgres.stop())
  const [masterPort, replicaPort] = [await freePort(), await freePort()]
  const master = await startRedisServer(scene, masterPort)
  await startRedisServer(scene, replicaPort, ['--replicaof', `127.0.0.1 ${masterPort}`])
  const sentinels: string[] = []
  for (let at = 0; at < 3; at++) sentinels.push(await startSentinel(scene, masterPort))
  const { identity, balancer } = await scene.startBalancedNodes({
    DATABASE_URL: await postgres.createDatabase(),
    REDIS_URL: `redis+sentinel://${sentinels.join(',')}/main`,
    REDIS_PREFIX: 'failover:',
  })
  const load = new ClientLoad(balancer.url, identity)
  await systemClock.sleep(BEFORE_MS)
  const killedMs = Date.now()
  await master.kill()
  const recovered = await untilRecovered(scene)
  const tookMs = Date.now() - killedMs
  await systemClock.sleep(AFTER_MS)
  await load.stop()
  const { lost, unfinished } = await load.audit()
  return [
    ['requests answered', load.answered],
    ['requests dropped or refused', load.failed],
    ...[...load.refusals].map(([why, count]): FailoverFigures[number] => [`  ${why}`, count]),
    ['nodes that noticed the loss', scene.count('limiter.redis_lost')],
    ['nodes that count on the new master', recovered ? scene.count('limiter.redis_recovered') : 'none in time'],
    ['time until both do', `${(tookMs / 1_000).toFixed(1)} s`],
    ['acknowledged changes', load.acknowledged.length],
    ['of them lost', lost],
    ['jobs that did not end', unfinished],
  ]
}

async function untilRecovered(scene: Scene): Promise<boolean> {
  const deadlineMs = Date.now() + RECOVERY_TIMEOUT_MS
  while (Date.now() < deadlineMs) {
    const states = await Promise.all(scene.nodes.map(({ url }) => call(`${url}/readyz`, { timeoutMs: 3_000 })))
    const lost = scene.count('limiter.redis_lost')
    if (lost >= scene.nodes.length && scene.count('limiter.redis_recovered') >= lost) return states.length > 0
    await systemClock.sleep(100)
  }
  return false
}

function startRedisServer(scene: Scene, port: number, more: string[] = []) {
  const args = ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', ...more]
  return scene.startServer('redis-server', () => ({
    args,
    ready: /Ready to accept connections/,
    stopSignal: 'SIGTERM',
  }))
}

async function startSentinel(scene: Scene, masterPort: number): Promise<string> {
  const port = await freePort()
  await scene.startServer('redis-sentinel', (folder) => {
    const file = join(folder, 'sentinel.conf')
    const rules = [
      `port ${port}`,
      'bind 127.0.0.1',
      `dir ${folder}`,
      `sentinel monitor main 127.0.0.1 ${masterPort} 2`,
      'sentinel down-after-milliseconds main 1000',
      'sentinel failover-timeout main 5000',
    ]
    writeFileSync(file, `${rules.join('\n')}\n`)
    return { args: [file], ready: /\+monitor master/, stopSignal: 'SIGTERM' }
  })
  return `127.0.0.1:${port}`
}
