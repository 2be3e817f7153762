import assert from 'node:assert/strict'
import { beforeEach, describe, test } from 'node:test'
import { LogBuffer } from '../../src/ops/log-buffer.ts'
import { createLogger } from '../../src/ops/logger.ts'
import { ManualClock } from '../support/manual-clock.ts'

describe('the log buffer', () => {
  let pieces: string[]
  let clock: ManualClock
  let buffer: LogBuffer

  beforeEach(() => {
    pieces = []
    clock = new ManualClock()
    buffer = new LogBuffer({ write: (text) => pieces.push(text), flush: (done) => done() }, clock)
  })

  test('lines are collected and written together, in order, 200 ms after the first', async () => {
    buffer.write('a\n')
    await clock.advance(150)
    buffer.write('b\n')
    assert.deepEqual(pieces, [])
    await clock.advance(50)
    assert.deepEqual(pieces, ['a\nb\n'])
  })

  test('a large piece does not wait', () => {
    const line = `${'x'.repeat(999)}\n`
    for (let n = 0; n < 33; n++) buffer.write(line)
    assert.deepEqual(pieces, [line.repeat(16), line.repeat(16)])
  })

  test('a warning is written at once, with all lines before it', () => {
    const log = createLogger({ level: 'info', destination: buffer })
    log.info({}, 'first')
    assert.equal(pieces.length, 0)
    log.warn({}, 'second')
    assert.deepEqual(
      pieces
        .join('')
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line).msg),
      ['first', 'second'],
    )
  })

  test('a flush leaves nothing behind', () => {
    buffer.write('a\n')
    let flushed = false
    buffer.flush(() => {
      flushed = true
    })
    assert.deepEqual(pieces, ['a\n'])
    assert.ok(flushed)
  })
})
