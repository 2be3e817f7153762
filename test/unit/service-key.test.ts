import assert from 'node:assert/strict'
import { test } from 'node:test'
import { crc32 } from 'node:zlib'
import { createServiceKey, hashServiceKey, hintOf, isWellFormedServiceKey } from '../../src/auth/service-key.ts'
import { systemRandom } from '../../src/core/random.ts'

test('a key is pak_, 40 letters or digits and six of their CRC32', () => {
  const key = createServiceKey(systemRandom)
  assert.match(key, /^pak_[0-9A-Za-z]{46}$/)
  const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
  const check = Array.from(key.slice(44)).reduce((sum, char) => sum * 62 + alphabet.indexOf(char), 0)
  assert.equal(check, crc32(key.slice(4, 44)))
})

test('every key made is well formed, and no two are the same', () => {
  const keys = Array.from({ length: 1_000 }, () => createServiceKey(systemRandom))
  assert.ok(keys.every(isWellFormedServiceKey))
  assert.equal(new Set(keys).size, keys.length)
})

test('no letter is likelier than another: bytes that would favour the first ones are left out', () => {
  const draws = [248, 255, 247]
  const scripted = { bytes: (count: number) => new Uint8Array(count).fill(draws.shift() ?? 0), fraction: () => 0 }
  assert.equal(createServiceKey(scripted).slice(4, 44), 'z'.repeat(40))
})

test('a typo, a missing letter, another case or anything around it is no key', () => {
  const key = createServiceKey(systemRandom)
  for (let at = 4; at < key.length; at++) {
    const typo = `${key.slice(0, at)}${key[at] === 'x' ? 'y' : 'x'}${key.slice(at + 1)}`
    assert.equal(isWellFormedServiceKey(typo), false, `at ${at}`)
  }
  const others = [
    '',
    'pak_',
    key.slice(0, -1),
    `${key}0`,
    ` ${key}`,
    `${key}\n`,
    key.replace('pak_', 'PAK_'),
    key.slice(4),
  ]
  for (const other of others) assert.equal(isWellFormedServiceKey(other), false, JSON.stringify(other))
})

test('the stored form of a key is a SHA-256, and the shown form is its last four letters', () => {
  const key = createServiceKey(systemRandom)
  assert.match(hashServiceKey(key), /^[0-9a-f]{64}$/)
  assert.equal(hashServiceKey('abc'), 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad')
  assert.equal(hintOf(key), key.slice(-4))
})
