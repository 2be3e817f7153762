import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { parse } from 'yaml'
import { parseConfig } from '../../src/config.ts'
import { SETTINGS } from '../../src/settings.ts'

const COMPOSE = readFileSync(new URL('../../compose.yaml', import.meta.url), 'utf8')
const GIVEN = { ISSUER_URL: 'https://issuer.example.com', WEBHOOK_SECRET: 'a'.repeat(32) }

test('the nodes of compose.yaml trust one address, that of the proxy', () => {
  const trusted = /^ +TRUST_PROXY: (\S+)$/m.exec(COMPOSE)?.[1]
  const proxy = /^ {2}proxy:\n(?: {4}.*\n)* {6}inside: \{ ipv4_address: (\S+) \}$/m.exec(COMPOSE)?.[1]
  assert.match(String(proxy), /^[\d.]+$/)
  assert.equal(trusted, proxy)
})

test('the proxy of compose.yaml writes no query to its logs, where the tokens of callbacks would be', () => {
  const config = COMPOSE.slice(COMPOSE.indexOf('content: |')).replaceAll('$$', '$')
  const [, name = '', format = ''] = /log_format (\w+) ([^;]*);/.exec(config) ?? []
  assert.match(format, /\$uri/)
  assert.doesNotMatch(format, /\$(?:request|request_uri|args|query_string|is_args|arg_\w+|http_referer)\b(?!_)/)
  const access = Array.from(config.matchAll(/access_log ([^;]*);/g), ([, rest = '']) => rest.split(' ').at(-1))
  assert.deepEqual(access, [name])
  assert.deepEqual(config.match(/error_log [^;]*;/g), ['error_log /dev/stderr emerg;'])
})

interface Service {
  environment?: Record<string, string | null>
  profiles?: string[]
  read_only?: boolean
  depends_on?: Record<string, unknown> | string[]
  networks?: Record<string, { ipv4_address?: string }>
}

test('plain compose up starts one node alone, and the cluster starts by its proxy without that node', () => {
  const { services } = parse(COMPOSE, { merge: true }) as { services: Record<string, Service> }
  const withoutProfile = Object.keys(services).filter((name) => services[name]?.profiles === undefined)
  assert.deepEqual(withoutProfile, ['api'])
  assert.deepEqual(services.proxy?.depends_on, ['api-1', 'api-2'])
  for (const name of ['api', 'api-1', 'api-2']) assert.equal(services[name]?.read_only, true)
})

test('the proxy of compose.yaml closes an idle connection before a stopping node does', () => {
  const [, seconds] = /keepalive_timeout (\d+)s;/.exec(COMPOSE) ?? []
  const { shutdownTimeoutMs } = parseConfig(GIVEN, () => '')
  // A node still answers for a quarter of this time.
  assert.ok(Number(seconds) * 1_000 < shutdownTimeoutMs / 4)
})

test('the nodes of compose.yaml keep their addresses when they are replaced, because nginx looks names up once', () => {
  const { services } = parse(COMPOSE, { merge: true }) as { services: Record<string, Service> }
  const upstreams = Array.from(COMPOSE.matchAll(/^ +server ([\w-]+):8080 /gm), ([, name = '']) => name)
  const addresses = ['proxy', ...upstreams].map((name) => services[name]?.networks?.inside?.ipv4_address)
  assert.deepEqual([upstreams.length, new Set(addresses).size, addresses.includes(undefined)], [2, 3, false])
})

test('the nodes of compose.yaml get every setting that is given, and no value of one that is not', () => {
  const { services } = parse(COMPOSE, { merge: true }) as { services: Record<string, Service> }
  // The image sets them: with another address or port, neither the health check nor the proxy would reach the service.
  const ofImage = ['HOST', 'PORT', 'DATA_DIR']
  const all = namesOf(SETTINGS).filter((name) => ![...ofImage, 'NODE_ENV'].includes(name))
  assert.ok(all.includes('COGNITO_REGION') && all.includes('PUSH_PRIVATE_KEY'))
  for (const node of ['api', 'api-1', 'api-2']) {
    const environment = services[node]?.environment ?? {}
    const has = (name: string) => name in environment || `${name}_FILE` in environment
    assert.deepEqual(
      all.filter((name) => !has(name)),
      [],
      node,
    )
    for (const name of [...ofImage, 'NODE_ENV']) assert.ok(!has(name), `${node}: ${name}`)
    const fixed = Object.entries(environment).filter(([, value]) => value !== null)
    const names = fixed.map(([name]) => name)
    const ofCluster = ['DATABASE_URL_FILE', 'REDIS_URL', 'TRUST_PROXY', 'WEBHOOK_SECRET_FILE']
    assert.deepEqual(names.sort(), node === 'api' ? [] : ofCluster)
    // A secret and its file together are refused.
    for (const name of names) assert.ok(!(name.replace(/_FILE$/, '') in environment) || !name.endsWith('_FILE'), name)
  }
})

/** The names in the table of settings, also of its groups. */
function namesOf(table: object): string[] {
  return Object.values(table).flatMap((entry: object) =>
    'name' in entry && typeof entry.name === 'string' ? [entry.name] : namesOf(entry),
  )
}
