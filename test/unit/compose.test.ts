import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'

const COMPOSE = readFileSync(new URL('../../docs/compose.yaml', import.meta.url), 'utf8')

test('the nodes of docs/compose.yaml trust one address, that of the proxy', () => {
  const trusted = /^ +TRUST_PROXY: (\S+)$/m.exec(COMPOSE)?.[1]
  const proxy = /^ {2}proxy:\n(?: {4}.*\n)* {6}inside: \{ ipv4_address: (\S+) \}$/m.exec(COMPOSE)?.[1]
  assert.match(String(proxy), /^[\d.]+$/)
  assert.equal(trusted, proxy)
})

test('the proxy of docs/compose.yaml writes no query to its logs, where the tokens of callbacks would be', () => {
  const config = COMPOSE.slice(COMPOSE.indexOf('content: |')).replaceAll('$$', '$')
  const [, name = '', format = ''] = /log_format (\w+) ([^;]*);/.exec(config) ?? []
  assert.match(format, /\$uri/)
  assert.doesNotMatch(format, /\$(?:request|request_uri|args|query_string|is_args|arg_\w+|http_referer)\b(?!_)/)
  const access = Array.from(config.matchAll(/access_log ([^;]*);/g), ([, rest = '']) => rest.split(' ').at(-1))
  assert.deepEqual(access, [name])
  assert.deepEqual(config.match(/error_log [^;]*;/g), ['error_log /dev/stderr emerg;'])
})
