import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { isTerminal, isWatched, JOB_STATUSES, type JobStatus } from '../../src/jobs/job.ts'
import { type JobMove, nextStatus } from '../../src/jobs/job-machine.ts'

const MOVES: readonly JobMove[] = [
  'pending',
  'running',
  'unclear',
  'awaiting_input',
  'completed',
  'failed',
  'cancelled',
  'resumed',
  'given_up',
]

/** The whole table, column by column in the order of MOVES; a dash is a move that changes nothing. */
const TABLE: Record<JobStatus, string> = {
  processing: '- generating - awaiting_input completed failed cancelled - failed',
  generating: '- - - awaiting_input completed failed cancelled - failed',
  awaiting_input: '- - - - - - cancelled processing failed',
  completed: '- - - - - - - - -',
  failed: '- - - - - - - - -',
  cancelled: '- - - - - - - - -',
}

describe('the job machine', () => {
  for (const from of JOB_STATUSES) {
    TABLE[from].split(' ').forEach((to, column) => {
      const move = MOVES[column] as JobMove
      test(`${from}, ${move}: ${to === '-' ? 'stays' : `becomes ${to}`}`, () => {
        assert.equal(nextStatus(from, move), to === '-' ? null : to)
      })
    })
  }

  test('no move leaves a final status, and a watched status is never final', () => {
    const final = JOB_STATUSES.filter(isTerminal)
    assert.deepEqual(final, ['completed', 'failed', 'cancelled'])
    for (const from of final) for (const move of MOVES) assert.equal(nextStatus(from, move), null)
    assert.deepEqual(JOB_STATUSES.filter(isWatched), ['processing', 'generating'])
  })
})
