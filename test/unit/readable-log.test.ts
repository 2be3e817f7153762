import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readableLine } from '../../src/ops/readable-log.ts'

const line = (fields: object) => readableLine(JSON.stringify({ time: '2026-11-15T22:10:05.123Z', ...fields }))

test('a log line for people has the time, the level, the event and its fields', () => {
  assert.equal(
    line({ level: 30, jobId: 'job_1', attempts: 2, reason: 'two words', empty: null, msg: 'job.settled' }),
    '22:10:05 info  job.settled jobId=job_1 attempts=2 reason="two words" empty=null',
  )
})

test('an error is below its line, with the first lines of its stack and its cause', () => {
  const err = { name: 'Error', message: 'outer', stack: 'Error: outer\n    at a\n    at b\n    at c\n    at d' }
  const cause = { name: 'TypeError', message: 'inner' }
  const indent = ' '.repeat(9)
  const expected = [
    '22:10:05 ERROR request.failed',
    'Error: outer',
    'at a',
    'at b',
    'at c',
    'caused by',
    'TypeError: inner',
  ]
  assert.equal(line({ level: 50, err: { ...err, cause }, msg: 'request.failed' }), expected.join(`\n${indent}`))
})
