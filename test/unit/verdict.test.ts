import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { JsonText } from '../../src/core/json/json-text.ts'
import { fingerprintOf } from '../../src/jobs/answers.ts'
import type { Verdict } from '../../src/jobs/job.ts'
import { type JobType, toJobTypes } from '../../src/jobs/job-types.ts'
import { judgeCallback, judgeRun, needsState } from '../../src/jobs/settlement/verdict.ts'
import type { RuntimeRun, ThreadState } from '../../src/runtime/runtime-types.ts'
import { partOf } from '../support/json-parts.ts'

const TYPES = toJobTypes({
  report: { assistant_id: 'report', output_key: 'report', may_pause: false },
  pausing: { assistant_id: 'pausing', output_key: 'report' },
})
const REPORT = typeNamed('report')
const PAUSING = typeNamed('pausing')
const AGENT = typeNamed('agent')

const OUTPUT = { title: 'Done', n: 42 }
const VALUES = { report: OUTPUT }
const QUESTION = [JsonText.of({ id: 'q', value: { question: 'Publish it?' } })]
const NO_TOKENS = { input: 0, output: 0, total: 0 }
const COMPLETED: Verdict = { kind: 'completed', output: JsonText.of(OUTPUT), tokens: NO_TOKENS }

/** Judged as the first turn on its thread. */
const first = (type: JobType) => ({ type, isLaterTurn: false, cancelRequested: false, answered: [] })

function typeNamed(name: string): JobType {
  const type = TYPES.get(name)
  assert.ok(type)
  return type
}

describe('the verdict from an answer of the runtime', () => {
  const run = (status: string): RuntimeRun => ({
    runId: 'r',
    threadId: 't',
    status,
    metadata: {},
    checkpointId: null,
    traces: { traceId: null, tracerTraceId: null },
  })
  const left = ({
    values = {},
    ...state
  }: Partial<Omit<ThreadState, 'values'>> & { values?: object } = {}): ThreadState => ({
    values: partOf(values, REPORT.wantedValues),
    next: [],
    isDone: (state.next ?? []).length === 0 && (state.interrupts ?? []).length === 0,
    checkpointId: null,
    runId: 'r',
    error: null,
    interrupts: [],
    traces: { traceId: null, tracerTraceId: null },
    ...state,
  })
  const message = 'The run ended without the output "report"'
  const missing = { kind: 'failed', code: 'output_missing', message, confirm: 'output_missing' }
  const failedWithoutText = {
    kind: 'failed',
    code: 'run_failed',
    message: 'The run failed',
    confirm: 'error_text_missing',
  }
  const cancelledElsewhere = { kind: 'cancelled', confirm: 'question_missing' }
  const cases: [name: string, status: string, state: ThreadState | null, verdict: object][] = [
    ['pending: it waits', 'pending', null, { kind: 'pending' }],
    ['running: it runs', 'running', null, { kind: 'running' }],
    ['success, nothing next and the key: completed', 'success', left({ values: VALUES }), COMPLETED],
    [
      'success, something next and no key: it awaits input',
      'success',
      left({ values: { draft: 1 }, next: ['ask'], interrupts: QUESTION }),
      { kind: 'awaiting_input', interrupts: QUESTION },
    ],
    [
      'success, an open question and nothing next, as after a second question: it awaits input',
      'success',
      left({ interrupts: QUESTION }),
      { kind: 'awaiting_input', interrupts: QUESTION },
    ],
    [
      'success, something next without a question (a breakpoint): it awaits input',
      'success',
      left({ next: ['write'] }),
      { kind: 'awaiting_input', interrupts: [], confirm: 'unfinished_step' },
    ],
    ['success without the key: the output is missing', 'success', left({ values: { draft: 1 } }), missing],
    [
      'success with a null under the key: the output is missing',
      'success',
      left({ values: { report: null } }),
      missing,
    ],
    ['success that left no state: the output is missing', 'success', null, { ...missing, confirm: 'state_missing' }],
    [
      'error: the text of the task',
      'error',
      left({ values: VALUES, error: 'kaboom' }),
      { kind: 'failed', code: 'run_failed', message: 'kaboom' },
    ],
    ['error without a text', 'error', left(), failedWithoutText],
    ['error without a state', 'error', null, failedWithoutText],
    ['error with an empty text', 'error', left({ error: '' }), failedWithoutText],
    [
      'timeout',
      'timeout',
      left(),
      { kind: 'failed', code: 'run_timeout', message: 'The run timed out', confirm: 'error_text_missing' },
    ],
    [
      'timeout without a state',
      'timeout',
      null,
      { kind: 'failed', code: 'run_timeout', message: 'The run timed out', confirm: 'error_text_missing' },
    ],
    [
      'timeout with a text',
      'timeout',
      left({ error: 'node took 180 s' }),
      { kind: 'failed', code: 'run_timeout', message: 'node took 180 s' },
    ],
    ['interrupted: cancelled', 'interrupted', left({ values: VALUES, next: ['write'] }), cancelledElsewhere],
    ['interrupted without a state: cancelled', 'interrupted', null, cancelledElsewhere],
    [
      'interrupted with an open question: it awaits input',
      'interrupted',
      left({ next: ['ask'], interrupts: QUESTION }),
      { kind: 'awaiting_input', interrupts: QUESTION },
    ],
    ['rollback: cancelled', 'rollback', null, { kind: 'cancelled' }],
    ['a word of a newer runtime: unclear', 'thinking', null, { kind: 'unclear', reason: 'unknown status "thinking"' }],
  ]
  for (const [name, status, state, verdict] of cases) {
    test(name, () => assert.deepEqual(judgeRun(run(status), state, first(REPORT)), verdict))
  }

  test('a graph that writes its output and pauses: the type decides, as it does for the callback', () => {
    const paused = left({ values: VALUES, next: ['ask'], interrupts: QUESTION })
    assert.deepEqual(judgeRun(run('success'), paused, first(REPORT)), COMPLETED)
    assert.deepEqual(judgeRun(run('success'), paused, first(PAUSING)), {
      kind: 'awaiting_input',
      interrupts: QUESTION,
    })
  })

  test('an output beside an unfinished step must be seen twice: it may be a draft, or that of the turn before', () => {
    const state = left({ values: VALUES, next: ['write'] })
    assert.deepEqual(judgeRun(run('success'), state, first(REPORT)), { ...COMPLETED, confirm: 'unfinished_step' })
    assert.deepEqual(judgeRun(run('success'), left({ values: VALUES }), first(REPORT)), COMPLETED)
  })

  test('a draft beside a step that is not finished never completes a graph that may pause', () => {
    const unfinished = { kind: 'awaiting_input', interrupts: [], confirm: 'unfinished_step' }
    // All nodes of the step have run, so that `next` is empty.
    for (const next of [['ask'], []]) {
      const state = left({ values: VALUES, next, isDone: false })
      assert.deepEqual(judgeRun(run('success'), state, first(PAUSING)), unfinished)
    }
  })

  test('a question that the run was given the answer to must be seen twice; a new one beside it counts at once', () => {
    const asked = JsonText.of({ id: 'q', value: 'Are you sure?' })
    const answered = { ...first(PAUSING), answered: QUESTION.map(fingerprintOf) }
    for (const status of ['success', 'interrupted']) {
      const judge = (interrupts: JsonText[]) => judgeRun(run(status), left({ interrupts }), answered)
      assert.deepEqual(judge(QUESTION), { kind: 'awaiting_input', interrupts: QUESTION, confirm: 'unfinished_step' })
      assert.deepEqual(judge([asked]), { kind: 'awaiting_input', interrupts: [asked] })
      const both = [...QUESTION, asked]
      assert.deepEqual(judge(both), { kind: 'awaiting_input', interrupts: both })
    }
  })

  test('a question of a run that answered none is not read, because it may be large', () => {
    const large = new JsonText('{}')
    const text = () => assert.fail('the question was read')
    Object.defineProperty(large, 'text', { get: text })
    for (const status of ['success', 'interrupted']) {
      const verdict = judgeRun(run(status), left({ interrupts: [large] }), first(PAUSING))
      assert.equal(verdict.kind, 'awaiting_input')
      assert.equal('twice' in verdict, false)
    }
    const breakpoint = judgeRun(run('success'), left({ next: ['write'] }), first(PAUSING))
    assert.deepEqual(breakpoint, { kind: 'awaiting_input', interrupts: [], confirm: 'unfinished_step' })
  })

  test('an interrupted run is cancelled at once after a cancel request, with any state', () => {
    const cancelling = { ...first(PAUSING), cancelRequested: true }
    for (const state of [null, left(), left({ next: ['ask'], interrupts: QUESTION })]) {
      assert.deepEqual(judgeRun(run('interrupted'), state, cancelling), { kind: 'cancelled' })
    }
  })

  test('an agent that ends without a message fails because its output is missing', () => {
    assert.deepEqual(judgeRun(run('success'), left(), first(AGENT)), {
      kind: 'failed',
      code: 'output_missing',
      message: 'The run ended without an assistant message',
      confirm: 'output_missing',
    })
  })

  test('the state is asked for exactly when the run has ended', () => {
    const statuses = ['pending', 'running', 'success', 'error', 'timeout', 'interrupted', 'thinking']
    assert.deepEqual(statuses.filter(needsState), ['success', 'error', 'timeout', 'interrupted'])
  })
})

describe('the verdict from a callback', () => {
  interface Given {
    status: string
    values?: object
    error?: string | null
    type?: JobType
    cancelRequested?: boolean
    canAsk?: boolean
  }
  const judge = ({ status, values, error = null, type = REPORT, cancelRequested, canAsk }: Given) =>
    judgeCallback(
      { status, values: values ? partOf(values, type.wantedValues) : null, error },
      { ...first(type), cancelRequested: cancelRequested ?? false, canAsk: canAsk ?? true },
    )
  const missing = { kind: 'failed', code: 'output_missing', message: 'The run ended without the output "report"' }
  const cases: [name: string, given: Given, verdict: object][] = [
    ['success with the output: completed', { status: 'success', values: VALUES }, COMPLETED],
    [
      'success without the output: the runtime is asked',
      { status: 'success', values: { draft: 1 } },
      { kind: 'unclear', reason: 'success without the output' },
    ],
    [
      'success without values, as of a sender that strips fields: the runtime is asked',
      { status: 'success' },
      { kind: 'unclear', reason: 'success without the output' },
    ],
    [
      'success without the output and no runtime to ask: missing',
      { status: 'success', values: {}, canAsk: false },
      missing,
    ],
    ['success without values and no runtime to ask: missing', { status: 'success', canAsk: false }, missing],
    [
      'success of a graph that may pause: the runtime is asked, though the output is there',
      { status: 'success', values: VALUES, type: PAUSING },
      { kind: 'unclear', reason: 'success: done or paused?' },
    ],
    [
      'success of a graph that may pause and no runtime to ask: completed',
      { status: 'success', values: VALUES, type: PAUSING, canAsk: false },
      COMPLETED,
    ],
    [
      'success with the output of a type that does not pause: completed, whatever else the values hold',
      { status: 'success', values: { ...VALUES, __interrupt__: [{ id: 'q' }] } },
      COMPLETED,
    ],
    [
      'error: its text',
      { status: 'error', values: VALUES, error: 'kaboom' },
      { kind: 'failed', code: 'run_failed', message: 'kaboom' },
    ],
    [
      'error without a text: the state may have it',
      { status: 'error' },
      { kind: 'unclear', reason: 'error without its text' },
    ],
    [
      'timeout without a text: the state may have it',
      { status: 'timeout' },
      { kind: 'unclear', reason: 'timeout without its text' },
    ],
    [
      'error without a text and no runtime',
      { status: 'error', canAsk: false },
      { kind: 'failed', code: 'run_failed', message: 'The run failed' },
    ],
    [
      'timeout without a text and no runtime',
      { status: 'timeout', canAsk: false },
      { kind: 'failed', code: 'run_timeout', message: 'The run timed out' },
    ],
    [
      'timeout with a text',
      { status: 'timeout', error: 'too slow' },
      { kind: 'failed', code: 'run_timeout', message: 'too slow' },
    ],
    [
      'interrupted after our cancel: cancelled',
      { status: 'interrupted', cancelRequested: true },
      { kind: 'cancelled' },
    ],
    [
      'interrupted by another client: the runtime is asked',
      { status: 'interrupted' },
      { kind: 'unclear', reason: 'interrupted: cancelled or paused?' },
    ],
    ['interrupted and no runtime to ask: cancelled', { status: 'interrupted', canAsk: false }, { kind: 'cancelled' }],
    ['rollback: cancelled', { status: 'rollback' }, { kind: 'cancelled' }],
    ['running', { status: 'running' }, { kind: 'running' }],
    ['pending', { status: 'pending' }, { kind: 'pending' }],
    [
      'an unknown word: unclear, and only its beginning is repeated',
      { status: 'x'.repeat(200) },
      { kind: 'unclear', reason: `unknown status "${'x'.repeat(50)}"` },
    ],
  ]
  for (const [name, given, verdict] of cases) test(name, () => assert.deepEqual(judge(given), verdict))
})
