import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { canonicalJson, canonicalPieces, JsonText, writeJson } from '../../src/core/json/json-text.ts'

const NUMBERS = ['9007199254740993', '12345678901234567890', '1e400', '-1E+400', '-0', '-0.0', '1.0', '1E5', '0.1e-7']

describe('writing JSON', () => {
  test('written JSON has documents as they are, at any depth', () => {
    const document = new JsonText('{ "b":1e400,\n "a":[-0, 1.0] }')
    assert.equal(writeJson(document), document.text)
    assert.equal(writeJson({ n: 1, d: document, l: [document] }), `{"n":1,"d":${document.text},"l":[${document.text}]}`)
  })

  test('written JSON is that of JSON.stringify for everything else', () => {
    const values = [null, true, 'a"\u2028\ud800', 1.5, [], {}, { a: undefined, b: [null, { c: 'é' }], '"': 1 }]
    for (const value of values) assert.equal(writeJson(value), JSON.stringify(value))
  })

  test('a document given to JSON.stringify is an error, not an object', () => {
    assert.throws(() => JSON.stringify({ d: new JsonText('1') }), /use writeJson/)
  })
})

describe('the canonical text', () => {
  test('the canonical text is the same for equal values, whatever the order of their keys', () => {
    const one = { b: [{ y: 1, x: 2 }], a: { d: null, c: 'é' } }
    const other = { a: { c: 'é', d: null }, b: [{ x: 2, y: 1 }] }
    assert.equal(canonicalJson(one), '{"a":{"c":"é","d":null},"b":[{"x":2,"y":1}]}')
    assert.equal(canonicalJson(other), canonicalJson(one))
  })

  test('the canonical text is the same for equal documents, whatever their order and white space', () => {
    const one = new JsonText('{ "b" : [1e400, "a b\\n"],\n"a":{"y":1.0,"x":"\\u0041"} }')
    const other = new JsonText('{"a":{"x":"A","y":1.0},"b":[1e400,"a b\\u000a"]}')
    assert.equal(canonicalJson({ d: one }), '{"d":{"a":{"x":"A","y":1.0},"b":[1e400,"a b\\n"]}}')
    assert.equal(canonicalJson({ d: other }), canonicalJson({ d: one }))
  })

  test('the canonical text differs where values differ, also in the spelling of a number', () => {
    const values = [[1, 2], [2, 1], { a: 1 }, { a: '1' }, { a: null }, {}, [], null, '', 0, false]
    const texts = [...values.map(canonicalJson), ...NUMBERS.map((number) => canonicalJson(new JsonText(number)))]
    texts.push(canonicalJson(new JsonText('9007199254740992')))
    assert.equal(new Set(texts).size, texts.length)
  })

  test('the canonical text of a long document is its text without white space between values', () => {
    const items = Array.from({ length: 20_000 }, (_, n) => `{"b":"a \\" b\\\\", "a": ${n}.0}`)
    const spaced = new JsonText(` [${items.join('\n,\t')}\r\n] `)
    const compact = new JsonText(`[${items.join(',').replaceAll(', "a": ', ',"a":')}]`)
    assert.equal(canonicalJson(spaced), compact.text)
    assert.equal(canonicalJson(compact), compact.text)
  })

  test('the canonical text of a long document comes in pieces, none of which ends inside a character', () => {
    for (const start of [' "', ' "x']) {
      const text = `${start}${'😀'.repeat(500_000)}" `
      const pieces = Array.from(canonicalPieces(new JsonText(text)))
      assert.equal(pieces.join(''), text.trim())
      assert.ok(pieces.length > 3 && pieces.every((piece) => piece.isWellFormed() && piece.length < 300_000))
    }
  })

  test('a key named __proto__ stays a key', () => {
    const text = '{"b":1,"__proto__":{"z":1,"a":2}}'
    const canonical = '{"__proto__":{"a":2,"z":1},"b":1}'
    assert.equal(canonicalJson(JSON.parse(text)), canonical)
    assert.equal(canonicalJson(new JsonText(text)), canonical)
  })
})
