import assert from 'node:assert/strict'
import { test } from 'node:test'
import { addressKey } from '../../src/limits/client-address.ts'

test('an IPv4 address is its own key', () => {
  assert.equal(addressKey('203.0.113.9'), '203.0.113.9')
})

test('an IPv4 caller has one key, however a dual-stack socket reports it', () => {
  for (const ip of [
    '::ffff:203.0.113.9',
    '::FFFF:203.0.113.9',
    '::ffff:cb00:7109',
    '0:0:0:0:0:ffff:203.0.113.9',
    '0000:0000:0000:0000:0000:ffff:cb00:7109',
  ]) {
    assert.equal(addressKey(ip), '203.0.113.9', ip)
  }
})

test('an IPv6 caller is counted by its /64, in canonical text', () => {
  const keys: Record<string, string> = {
    '2001:db8:1:2:3:4:5:6': '2001:db8:1:2::/64',
    '2001:0DB8:0001:0002::': '2001:db8:1:2::/64',
    '2001:db8:1:2:ffff:ffff:ffff:ffff': '2001:db8:1:2::/64',
    '2001:db8:1:2::198.51.100.7': '2001:db8:1:2::/64',
    '2001:db8:1:3::1': '2001:db8:1:3::/64',
    '2001:db8::1': '2001:db8::/64',
    '2001:db8:0:1::1': '2001:db8:0:1::/64',
    '0:0:0:1::': '0:0:0:1::/64',
    '::1': '::/64',
    '::': '::/64',
    '1::': '1::/64',
  }
  for (const [ip, key] of Object.entries(keys)) assert.equal(addressKey(ip), key, ip)
})

test('a zone id does not make another caller', () => {
  assert.equal(addressKey('fe80::1%eth0'), 'fe80::/64')
  assert.equal(addressKey('fe80::2%1'), 'fe80::/64')
})

test('what is no address is anonymous', () => {
  const unusable = [
    undefined,
    '',
    ' ',
    'unknown',
    '1.2.3',
    '1.2.3.4:80',
    '[::1]',
    '1.2.3.4 ',
    '256.1.1.1',
    ':::',
    '1::2::3',
    'g::',
    '/run/x.sock',
  ]
  for (const ip of unusable) assert.equal(addressKey(ip), 'anonymous', String(ip))
})
