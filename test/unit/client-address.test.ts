import assert from 'node:assert/strict'
import { test } from 'node:test'
import { addressKey, trustedProxies } from '../../src/limits/client-address.ts'

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

test('an address counts as the same with its port, brackets, quotes or blanks', () => {
  const keys: Record<string, string> = {
    '203.0.113.1:4112': '203.0.113.1',
    '203.0.113.1:1': '203.0.113.1',
    ' 203.0.113.1 ': '203.0.113.1',
    '"203.0.113.1:4112"': '203.0.113.1',
    '::ffff:203.0.113.1:4112': '203.0.113.1',
    '[::ffff:203.0.113.1]:4112': '203.0.113.1',
    '[::ffff:cb00:7101]:4112': '203.0.113.1',
    '[203.0.113.1]:4112': '203.0.113.1',
    '[2001:db8::1]:443': '2001:db8::/64',
    '[2001:db8::1]': '2001:db8::/64',
    '"[2001:db8::1]:443"': '2001:db8::/64',
    '[2001:DB8:0:0:ffff::2]:65535': '2001:db8::/64',
    '[fe80::1%eth0]:443': 'fe80::/64',
    'fe80::2%25en0': 'fe80::/64',
  }
  for (const [forwarded, key] of Object.entries(keys)) assert.equal(addressKey(forwarded), key, forwarded)
})

test('an IPv6 address that only seems to have a port is not changed', () => {
  assert.equal(addressKey('2001:db8::1:443'), '2001:db8::/64')
  assert.equal(addressKey('2001:db8:1:2:3:4:5:6'), '2001:db8:1:2::/64')
})

test('a proxy is trusted by its address or its network, however its address is written', () => {
  const isTrusted = trustedProxies(['172.30.0.10', '10.0.0.0/8', 'fd00::/8', '::1'])
  const trusted = [
    '172.30.0.10',
    '::ffff:172.30.0.10',
    '172.30.0.10:8080',
    '10.255.0.1',
    'fd12::1',
    '[fd12::1]:80',
    '::1',
  ]
  for (const address of trusted) assert.equal(isTrusted(address), true, address)
  for (const address of ['172.30.0.11', '172.30.0.1:10', '11.0.0.1', 'fe00::1', '::2', 'unknown', '', '10.0.0.0/8']) {
    assert.equal(isTrusted(address), false, address)
  }
})

test('a value that is no address is anonymous', () => {
  const unusable = [
    undefined,
    '',
    ' ',
    'unknown',
    '1.2.3',
    '1.2.3.4:',
    '1.2.3.4:http',
    '1.2.3.4:123456',
    '1.2.3.4:80:80',
    '[::1',
    '::1]:80',
    '[]:80',
    '[::1]80',
    '[unknown]:80',
    'unknown:80',
    '_hidden',
    '":80"',
    '256.1.1.1',
    ':::',
    '1::2::3',
    'g::',
    '/run/x.sock',
  ]
  for (const ip of unusable) assert.equal(addressKey(ip), 'anonymous', String(ip))
})
