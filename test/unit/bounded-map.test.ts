import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BoundedMap } from '../../src/core/bounded-map.ts'

function filled(capacity: number, keys: string): BoundedMap<string, string> {
  const map = new BoundedMap<string, string>(capacity)
  for (const key of keys) map.set(key, key.toUpperCase())
  return map
}

const keysOf = (map: BoundedMap<string, string>) => Array.from(map.entries(), ([key]) => key).join('')

test('a bounded map never holds more than its capacity, and evicts the oldest entry', () => {
  const map = filled(3, 'abcde')
  assert.equal(map.size, 3)
  assert.equal(keysOf(map), 'cde')
  assert.equal(map.get('a'), undefined)
})

test('an entry that was read is kept longer than one that was not', () => {
  const map = filled(3, 'abc')
  assert.equal(map.get('a'), 'A')
  map.set('d', 'D')
  assert.equal(keysOf(map), 'cad')
})

test('an entry that is written again is the newest, and counts once', () => {
  const map = filled(3, 'abca')
  assert.equal(map.size, 3)
  map.set('d', 'D')
  assert.equal(keysOf(map), 'cad')
})

test('a deleted entry makes room', () => {
  const map = filled(2, 'ab')
  map.delete('a')
  map.set('c', 'C')
  assert.equal(keysOf(map), 'bc')
  map.clear()
  assert.equal(map.size, 0)
})
