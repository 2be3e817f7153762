import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ApiError } from '../../src/core/errors.ts'
import { etagOf, readIfMatch } from '../../src/http/etag.ts'

test('a version goes out as a strong tag and comes back from it', () => {
  for (const version of [0, 1, 3, 999_999_999_999_999]) assert.deepEqual(readIfMatch(etagOf(version)), [version])
})

test('no header, or a star, allows any version', () => {
  assert.equal(readIfMatch(undefined), null)
  assert.equal(readIfMatch('*'), null)
  assert.equal(readIfMatch(' * '), null)
})

test('a list allows each of its versions', () => {
  assert.deepEqual(readIfMatch('"1", "3" ,"5"'), [1, 3, 5])
})

test('weak tags and tags of another making match nothing, and are no fault', () => {
  assert.deepEqual(readIfMatch('W/"1"'), [])
  assert.deepEqual(readIfMatch('"abc", "1.0", "-1", "", "1e3", "9999999999999999999"'), [])
  assert.deepEqual(readIfMatch('"abc", "2"'), [2])
})

test('a header that is no list of tags is a 400', () => {
  for (const header of ['', '3', '"3', '"1",', '"1" "2"', '*, "1"', 'w/"1"', '"a b"', "'1'"]) {
    assert.throws(
      () => readIfMatch(header),
      (error) => error instanceof ApiError && error.code === 'invalid_request',
      header,
    )
  }
})
