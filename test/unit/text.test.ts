import assert from 'node:assert/strict'
import { test } from 'node:test'
import { asStorableText, isStorableText } from '../../src/core/text.ts'

test('text that both engines can hold is storable, empty and beyond the basic plane too', () => {
  for (const text of ['', 'a', '\n\t\u0001', 'é', '東京', '👩‍👩‍👧', '\ufffd', '\uffff', '\ud83d\ude00']) {
    assert.equal(isStorableText(text), true, JSON.stringify(text))
    assert.equal(asStorableText(text, 100), text)
  }
})

test('a NUL or half of a surrogate pair is not, wherever it stands', () => {
  for (const bad of ['\u0000', '\ud83d', '\ude00', '\ude00\ud83d']) {
    for (const text of [bad, `a${bad}`, `${bad}a`, `a${bad}a`]) {
      assert.equal(isStorableText(text), false, JSON.stringify(text))
      assert.equal(isStorableText(asStorableText(text, 100)), true)
    }
  }
  assert.equal(asStorableText('a\u0000b\ud83dc', 100), 'a\ufffdb\ufffdc')
})

test('text that is too long is cut to the length, and not within a pair', () => {
  assert.equal(asStorableText('abcdef', 6), 'abcdef')
  assert.equal(asStorableText('abcdefg', 6), 'abcde…')
  const cut = asStorableText('abcd😀fg', 6)
  assert.equal(isStorableText(cut), true)
  assert.ok(cut.length <= 6)
})
