import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isLoopbackAuthority, isLoopbackHost } from '../../src/core/loopback.ts'

test('loopback is localhost, ::1 and 127.0.0.0/8, and no name that DNS could point there', () => {
  for (const host of ['localhost', 'LOCALHOST', '127.0.0.1', '127.1.2.3', '::1', '[::1]']) {
    assert.equal(isLoopbackHost(host), true, host)
  }
  const others = [
    '',
    '0.0.0.0',
    '::',
    '127.0.0.1.example.com',
    'localhost.example.com',
    '127.evil',
    '10.0.0.1',
    '1270.0.0.1',
  ]
  for (const host of others) assert.equal(isLoopbackHost(host), false, host)
})

test('a Host header is loopback with any port, and nothing else in it', () => {
  for (const host of ['localhost', 'localhost:8080', '127.0.0.1:80', '[::1]:8080', '[::1]']) {
    assert.equal(isLoopbackAuthority(host), true, host)
  }
  const others = [
    undefined,
    '',
    ':8080',
    'evil.example',
    'evil.example:8080',
    'localhost@evil.example',
    'evil.example#@localhost',
  ]
  for (const host of [...others, 'localhost:port', 'local host', 'x'])
    assert.equal(isLoopbackAuthority(host), false, host)
})
