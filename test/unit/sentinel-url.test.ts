import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseSentinelUrl } from '../../src/limits/sentinel-url.ts'

test('a URL of Sentinels names all of them, the master, the credentials and the database', () => {
  assert.deepEqual(parseSentinelUrl('redis+sentinel://api:p%40ss@one:26380,two,[::1]:7/main/3'), {
    sentinels: [
      { host: 'one', port: 26_380 },
      { host: 'two', port: 26_379 },
      { host: '::1', port: 7 },
    ],
    name: 'main',
    username: 'api',
    password: 'p@ss',
    db: 3,
  })
  assert.deepEqual(parseSentinelUrl('redis+sentinel://:secret@one/main'), {
    sentinels: [{ host: 'one', port: 26_379 }],
    name: 'main',
    password: 'secret',
  })
})

test('any other URL is not one of Sentinels', () => {
  for (const url of [
    'redis://one',
    'redis+sentinel://one',
    'redis+sentinel:///main',
    'redis+sentinel://one:99999/main',
    'redis+sentinel://:50%@one/main',
  ]) {
    assert.equal(parseSentinelUrl(url), null, url)
  }
})
