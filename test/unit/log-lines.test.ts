import assert from 'node:assert/strict'
import { beforeEach, describe, test } from 'node:test'
import { LogLines } from '../../src/ops/log-lines.ts'
import { createLogger } from '../../src/ops/logger.ts'
import { ManualClock } from '../support/manual-clock.ts'

describe('log lines', () => {
  let pieces: string[]
  let clock: ManualClock
  let lines: LogLines

  beforeEach(() => {
    pieces = []
    clock = new ManualClock()
    lines = new LogLines({ write: (text) => pieces.push(text), flush: (done) => done() }, clock)
  })

  test('lines gather and go on together, in order, a fifth of a second after the first', async () => {
    lines.write('a\n')
    await clock.advance(150)
    lines.write('b\n')
    assert.deepEqual(pieces, [])
    await clock.advance(50)
    assert.deepEqual(pieces, ['a\nb\n'])
  })

  test('a large piece does not wait', () => {
    const line = `${'x'.repeat(999)}\n`
    for (let n = 0; n < 33; n++) lines.write(line)
    assert.deepEqual(pieces, [line.repeat(16), line.repeat(16)])
  })

  test('a warning takes what gathered before it along, at once', () => {
    const log = createLogger('info', lines)
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
    lines.write('a\n')
    let flushed = false
    lines.flush(() => {
      flushed = true
    })
    assert.deepEqual(pieces, ['a\n'])
    assert.ok(flushed)
  })
})
