import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { systemClock } from '../../src/core/clock.ts'
import { startPostgres } from '../../test/support/postgres.ts'
import { startRedis } from '../../test/support/redis.ts'
import { freePort } from '../../test/support/server-process.ts'
import { ClientLoad } from './client-load.ts'
import { type FailoverFigures, type Scene, untilReady } from './scene.ts'

const RESTARTS = 2
const BETWEEN_MS = 2_000

/** Every node is restarted in turn behind a real proxy, under load from clients that never retry. */
export async function rollingRestart(scene: Scene, proxy: 'nginx' | 'haproxy'): Promise<FailoverFigures> {
  const { identity, runtime } = await scene.startOutsideWorld()
  const postgres = await startPostgres()
  scene.onClose(() => postgres.stop())
  const redis = await startRedis()
  scene.onClose(() => redis.stop())
  const port = await freePort()
  const url = `http://127.0.0.1:${port}`
  await scene.startNodes({
    DATABASE_URL: await postgres.createDatabase(),
    REDIS_URL: redis.url,
    ISSUER_URL: identity.issuer,
    RUNTIME_URL: runtime.url,
    PUBLIC_URL: url,
    TRUST_PROXY: '127.0.0.1',
  })
  const targets = scene.nodes.map((node) => new URL(node.url).host)
  await (proxy === 'nginx' ? startNginx(scene, port, targets) : startHaproxy(scene, port, targets))
  await untilReady(url)
  const load = new ClientLoad(url, identity)
  let restarts = 0
  const exits = new Set<number | null>()
  for (let round = 0; round < RESTARTS; round++) {
    for (const node of scene.nodes) {
      await systemClock.sleep(BETWEEN_MS)
      exits.add(await node.stop())
      await node.start()
      await untilReady(node.url)
      restarts += 1
    }
  }
  await systemClock.sleep(BETWEEN_MS)
  await load.stop()
  const { lost, unfinished } = await load.audit()
  return [
    ['restarts', restarts],
    ['exit codes', [...exits].join(', ')],
    ['requests answered', load.answered],
    ['requests dropped or refused', load.failed],
    ...[...load.refusals].map(([why, count]): FailoverFigures[number] => [`  ${why}`, count]),
    ['acknowledged changes', load.acknowledged.length],
    ['of them lost', lost],
    ['jobs that did not end', unfinished],
  ]
}

async function startNginx(scene: Scene, port: number, targets: readonly string[]): Promise<void> {
  await scene.startServer('nginx', (folder) => {
    const servers = targets.map((target) => `    server ${target} max_fails=1 fail_timeout=1s;`).join('\n')
    const file = join(folder, 'nginx.conf')
    writeFileSync(
      file,
      `daemon off;
pid ${folder}/nginx.pid;
error_log stderr notice;
events {}
http {
  access_log off;
  client_body_temp_path ${folder}; proxy_temp_path ${folder}; fastcgi_temp_path ${folder};
  uwsgi_temp_path ${folder}; scgi_temp_path ${folder};
  upstream api {
${servers}
    keepalive 32;
    # Shorter than the drain of a node: nginx has closed an idle connection before the node does.
    keepalive_timeout 1s;
  }
  server {
    listen 127.0.0.1:${port};
    location / {
      proxy_pass http://api;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_next_upstream error timeout;
      proxy_buffering off;
    }
  }
}
`,
    )
    const args = ['-c', file, '-p', folder, '-e', 'stderr']
    return { args, ready: /start worker process/, stopSignal: 'SIGTERM' }
  })
}

async function startHaproxy(scene: Scene, port: number, targets: readonly string[]): Promise<void> {
  await scene.startServer('haproxy', (folder) => {
    const file = join(folder, 'haproxy.cfg')
    const servers = targets.map((target, at) => `  server node${at} ${target} check inter 300ms fall 2 rise 1`)
    writeFileSync(
      file,
      `defaults
  mode http
  timeout connect 2s
  timeout check 3s
  timeout client 1h
  timeout server 1h
  retries 3
  retry-on conn-failure
  option redispatch
  option forwardfor
frontend api
  bind 127.0.0.1:${port}
  default_backend nodes
backend nodes
  option httpchk GET /readyz
  http-check send hdr Host localhost
  http-check expect status 200
${servers.join('\n')}
`,
    )
    return { args: ['-W', '-db', '-f', file], ready: /Loading success|forked/, stopSignal: 'SIGTERM' }
  })
}
