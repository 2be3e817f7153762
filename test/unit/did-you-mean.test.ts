import assert from 'node:assert/strict'
import { test } from 'node:test'
import { didYouMean } from '../../src/core/did-you-mean.ts'

const NAMES = ['serve', 'dev', 'dev-env', 'migrate', 'keys', 'jobs', 'doctor']

test('a misspelt or shortened command is recognized, and another word is not', () => {
  const meant = (text: string) => didYouMean(text, NAMES)
  assert.deepEqual(['sevre', 'server', 'srve', 'Serve', 'ser'].map(meant), Array(5).fill('serve'))
  assert.deepEqual(['job', 'dotcor', 'key', 'migrations'].map(meant), ['jobs', 'doctor', 'keys', undefined])
  assert.deepEqual(['--port', 'constructor', 'x', ''].map(meant), [undefined, undefined, undefined, undefined])
})
