import assert from 'node:assert/strict'
import { test } from 'node:test'
import { toBinaryArray } from '../../src/db/postgres/binary-array.ts'

test('an array has a header, and each value its length before it', () => {
  const header = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 25, 0, 0, 0, 2, 0, 0, 0, 1]
  assert.deepEqual([...toBinaryArray('text', ['ü', null])], [...header, 0, 0, 0, 2, 0xc3, 0xbc, 255, 255, 255, 255])
  const one = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0, 1]
  assert.deepEqual([...toBinaryArray('bigint', [-2])], [...one, 0, 0, 0, 8, 255, 255, 255, 255, 255, 255, 255, 254])
})

test('a value that would be stored as another one is refused', () => {
  assert.throws(() => toBinaryArray('text', ['a', 'half a pair: \ud83d']), /unpaired surrogate/)
  assert.throws(() => toBinaryArray('bigint', [0.5]), /0.5 is not a safe integer/)
  assert.throws(() => toBinaryArray('bigint', [2 ** 53]), /is not a safe integer/)
})
