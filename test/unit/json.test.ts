import assert from 'node:assert/strict'
import { test } from 'node:test'
import { canonicalJson, isJsonTooDeep, MAX_JSON_DEPTH } from '../../src/core/json.ts'

const nested = (depth: number) => `${'['.repeat(depth)}${']'.repeat(depth)}`

test('a document may be nested to the limit and not one level deeper', () => {
  assert.equal(isJsonTooDeep(nested(MAX_JSON_DEPTH)), false)
  assert.equal(isJsonTooDeep(nested(MAX_JSON_DEPTH + 1)), true)
  assert.equal(isJsonTooDeep('{"a":'.repeat(3), 2), true)
  assert.equal(isJsonTooDeep('[{"a":[1]}]', 3), false)
})

test('siblings are not depth', () => {
  assert.equal(isJsonTooDeep(`[${Array(1_000).fill('[]').join()}]`, 2), false)
})

test('brackets in strings are not depth, whatever is escaped around them', () => {
  assert.equal(isJsonTooDeep(JSON.stringify(['[[[[', '{{{{', '"[[', '\\', '\\"[[[']), 1), false)
  assert.equal(isJsonTooDeep('["\\\\",[[', 2), true)
})

test('half a million levels are told without recursion', () => {
  assert.equal(isJsonTooDeep('['.repeat(500_000)), true)
})

test('equal documents have one canonical text, whatever the order of their keys', () => {
  const one = { b: [{ y: 1, x: 2 }], a: { d: null, c: 'é' } }
  const other = { a: { c: 'é', d: null }, b: [{ x: 2, y: 1 }] }
  assert.equal(canonicalJson(one), '{"a":{"c":"é","d":null},"b":[{"x":2,"y":1}]}')
  assert.equal(canonicalJson(other), canonicalJson(one))
})

test('documents that differ have different canonical texts', () => {
  const texts = [[1, 2], [2, 1], { a: 1 }, { a: '1' }, { a: null }, {}, [], null, '', 0, false].map(canonicalJson)
  assert.equal(new Set(texts).size, texts.length)
})

test('a key named __proto__ stays a key', () => {
  assert.equal(canonicalJson(JSON.parse('{"b":1,"__proto__":{"z":1,"a":2}}')), '{"__proto__":{"a":2,"z":1},"b":1}')
})
