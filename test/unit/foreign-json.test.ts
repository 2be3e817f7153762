import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { atPointer, isJsonObject, isJsonTooDeep, parseForeignJson } from '../../src/core/json.ts'

const again = (text: string) => JSON.stringify(parseForeignJson(text))

describe('a document of somebody else’s making', () => {
  test('keeps numbers that JavaScript cannot hold, digit by digit', () => {
    const numbers = [
      '12345678901234567890',
      '-12345678901234567890',
      '1e400',
      '-1E+400',
      '1e-400',
      '-0',
      '-0.0',
      '0.1000000000000000055',
      '123456789.123456789',
      '9007199254740993',
      '3.14159265358979323846',
    ]
    for (const number of numbers) {
      assert.equal(again(number), number)
      assert.equal(again(`{"a":[${number},{"b":${number}}]}`), `{"a":[${number},{"b":${number}}]}`)
      assert.equal(again(`{"a" : ${number} }`), `{"a":${number}}`)
    }
  })

  test('has plain numbers where those hold the same', () => {
    for (const text of ['0', '42', '-1', '0.5', '1234567890', '9007199254740991', '-0.25']) {
      assert.equal(typeof parseForeignJson(text), 'number')
      assert.equal(again(text), text)
    }
    assert.deepEqual(parseForeignJson('{"n":42,"big":1e400}'), { n: 42, big: parseForeignJson('1e400') })
  })

  test('a number kept by its digits is no object', () => {
    assert.equal(isJsonObject(parseForeignJson('1e400')), false)
    assert.equal(atPointer({ big: parseForeignJson('1e400') }, '/big/rawJSON'), undefined)
  })

  test('says the same again in its strings, whatever they hold', () => {
    for (const text of [
      '"a\\u0000b"',
      '"\\ud800"',
      '"\\udc00x\\ud800"',
      '"日本 🧮"',
      '"-0"',
      '"1e400"',
      '"12345678901234567890"',
    ]) {
      const value = parseForeignJson(text)
      assert.equal(value, JSON.parse(text))
      assert.equal(again(text), text)
    }
  })

  test('loses keys that reach for prototypes, however they are spelt', () => {
    const poison = [
      '{"__proto__":{"admin":true},"a":1}',
      '{"\\u005f_proto__":{"admin":true},"a":1}',
      '{"__prot\\u006f__":{"admin":true},"a":1}',
      '{"__proto\\u005F_" : {"admin":true},"a":1}',
      '{"constructor":{"prototype":{"admin":true}},"a":1}',
      '{"\\u0063onstructor":{"prot\\u006ftype":{"admin":true}},"a":1}',
    ]
    for (const text of poison) {
      assert.equal(again(text), '{"a":1}', text)
      assert.equal(again(`{"deep":[${text}]}`), '{"deep":[{"a":1}]}', text)
      assert.equal((parseForeignJson(text) as { admin?: boolean }).admin, undefined)
    }
    assert.equal(({} as { admin?: boolean }).admin, undefined)
  })

  test('keeps keys that only look like it', () => {
    const harmless = [
      '{"constructor":"Ferrari"}',
      '{"prototype":"v2"}',
      '{"constructor":{"name":"x"}}',
      '{"proto":1,"toString":2,"hasOwnProperty":3}',
      '{"a":"__proto__","b":["constructor"]}',
    ]
    for (const text of harmless) assert.equal(again(text), text)
  })

  test('keeps both: poison is dropped and digits stay', () => {
    assert.equal(again('{"__proto__":1,"n":12345678901234567890}'), '{"n":12345678901234567890}')
  })

  test('that is no JSON is refused', () => {
    for (const text of ['', '{', '{a:1}', 'NaN', '01', '"a\u0000b"', '1e400x', '[1,]']) {
      assert.throws(() => parseForeignJson(text), SyntaxError, text)
    }
  })
})

describe('the depth of a document', () => {
  test('is counted in brackets, not in strings', () => {
    const nested = (depth: number) => '['.repeat(depth) + ']'.repeat(depth)
    assert.equal(isJsonTooDeep(nested(100)), false)
    assert.equal(isJsonTooDeep(nested(101)), true)
    assert.equal(isJsonTooDeep(`{"a":${nested(99)}}`), false)
    assert.equal(isJsonTooDeep(`{"a":${nested(100)}}`), true)
    assert.equal(isJsonTooDeep(JSON.stringify('['.repeat(1_000))), false)
    assert.equal(isJsonTooDeep(JSON.stringify({ a: `\\"${'{'.repeat(1_000)}` })), false)
    assert.equal(isJsonTooDeep('['.repeat(5_000_000)), true)
  })
})
