import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { describe, test } from 'node:test'
import { ApiError } from '../../src/core/errors.ts'
import { JsonText } from '../../src/core/json/json-text.ts'
import { fingerprintOf, fitAnswer, type GivenAnswer, isStillOpen } from '../../src/jobs/answers.ts'
import { DocumentSchema } from '../../src/jobs/schemas/document-schema.ts'
import type { ThreadState } from '../../src/runtime/runtime-types.ts'

const FIRST = { id: 'a'.repeat(32), value: 'Publish it?' }
const SECOND = { id: 'b'.repeat(32), value: 'To whom?' }
const asks = (...questions: object[]) => JSON.stringify(questions)
const input = (text: string): GivenAnswer => ({ input: new JsonText(text) })
const answers = (text: string): GivenAnswer => ({ answers: new JsonText(text) })
const printsOf = (...questions: object[]) => questions.map((question) => fingerprintOf(JsonText.of(question)))

function refuses(given: GivenAnswer, interrupts: string | null, message: RegExp): Promise<void> {
  return assert.rejects(fitAnswer(given, interrupts), (error) => {
    assert.ok(error instanceof ApiError)
    assert.equal(error.code, 'invalid_request')
    assert.match(error.message, message)
    return true
  })
}

describe('answers', () => {
  for (const text of ['false', '0', '""', 'null', '{"a":1e400}', '12345678901234567890', '-0', '[]']) {
    test(`${text} goes to a single question by its id, to the letter`, async () => {
      const answer = await fitAnswer(input(text), asks(FIRST))
      const given = `{"${FIRST.id}":${text}}`
      assert.deepEqual(answer, { command: `{"resume":${given}}`, questions: printsOf(FIRST), given })
      assert.deepEqual(await fitAnswer(answers(`{"${FIRST.id}":${text}}`), asks(FIRST)), answer)
    })
  }

  test('other work has a turn between the checks of two answers', async () => {
    let turns = 0
    const countTurns = () => setImmediate(() => ++turns < 2 && countTurns())
    countTurns()
    await fitAnswer(answers(`{"${FIRST.id}":1,"${SECOND.id}":2}`), asks(FIRST, SECOND), new DocumentSchema(true))
    assert.equal(turns, 2)
  })

  test('a large question is not parsed, and other work has turns while it is read', async (t) => {
    const MB = 1024 * 1024
    const question = `{"id":"large","value":[${'{}, '.repeat((10 * MB) / 4)}{}]}`
    const expected = fingerprintOf(new JsonText(question))
    const parse = t.mock.method(JSON, 'parse')
    let turns = 0
    const count = () => {
      turns += 1
      ticking = setImmediate(count)
    }
    let ticking = setImmediate(count)
    const answer = await fitAnswer(input('1'), `[${question}]`)
    clearImmediate(ticking)
    assert.deepEqual(answer, { command: '{"resume":{"large":1}}', questions: [expected], given: '{"large":1}' })
    const parsed = parse.mock.calls.map((call) => String(call.arguments[0]))
    assert.deepEqual(parsed, ['"large"'], 'only the id is parsed')
    // Every 256 K characters, once while the id is looked for and once for the fingerprint.
    assert.ok(turns >= 75, `${turns} turns`)
  })

  test('several answers go by the ids of their questions', async () => {
    const given = answers(`{"${SECOND.id}": {"n": 1.50}, "${FIRST.id}": false}`)
    assert.deepEqual(await fitAnswer(given, asks(FIRST, SECOND)), {
      command: `{"resume":{"${FIRST.id}":false,"${SECOND.id}":{"n": 1.50}}}`,
      questions: printsOf(FIRST, SECOND),
      given: `{"${FIRST.id}":false,"${SECOND.id}":{"n": 1.50}}`,
    })
    const repeated = answers(`{"${FIRST.id}":1,"${FIRST.id}":2}`)
    assert.equal((await fitAnswer(repeated, asks(FIRST))).command, `{"resume":{"${FIRST.id}":2}}`)
  })

  test('the older name of an id is understood, and a question without an id gets the plain answer', async () => {
    const older = { interrupt_id: 'older', value: 'Go on?' }
    assert.equal((await fitAnswer(input('0'), asks(older))).command, '{"resume":{"older":0}}')
    assert.equal((await fitAnswer(input('0'), asks({ id: null, ...older }))).command, '{"resume":{"older":0}}')
    assert.equal((await fitAnswer(input('0'), '[{"id":"a","id":"\\u0062"}]')).command, '{"resume":{"b":0}}')
    for (const nameless of [{ value: 'Go on?' }, { id: 7, ...older }, { value: { id: 'inner' } }, [{ id: 'inner' }]]) {
      const { command, given } = await fitAnswer(input('"yes"'), asks(nameless))
      assert.deepEqual([command, given], ['{"resume":"yes"}', '{"":"yes"}'])
    }
    assert.equal((await fitAnswer(input('"yes"'), '["Go on?"]')).command, '{"resume":"yes"}')
    for (const dropped of ['false', '0', '-0.0', '1e-400', '""', 'null']) {
      await refuses(
        input(dropped),
        '["Go on?"]',
        new RegExp(`^body/input must not be ${dropped}: the question has no id, and the runtime drops such an answer$`),
      )
    }
  })

  test('a breakpoint asks nothing: null continues, and so does an empty object', async () => {
    for (const interrupts of ['[]', null]) {
      // Null: the question was closed elsewhere.
      const questions = interrupts === null ? null : []
      assert.deepEqual(await fitAnswer(input('null'), interrupts), { command: 'null', questions, given: '{}' })
      assert.deepEqual(await fitAnswer(answers('{}'), interrupts), { command: 'null', questions, given: '{}' })
      await refuses(
        input('true'),
        interrupts,
        /^body\/input must be null: the job asks no question, it only waits to be continued$/,
      )
    }
  })

  test('an answer that does not fit is refused with the ids that would fit', async () => {
    const two = asks(FIRST, SECOND)
    await refuses(
      input('1'),
      two,
      new RegExp(
        `^body/input answers one question, and the job asks 2: use "answers" with "${FIRST.id}", "${SECOND.id}"$`,
      ),
    )
    await refuses(answers(`{"${FIRST.id}":1}`), two, new RegExp(`^body/answers must have "${SECOND.id}"$`))
    await refuses(
      answers('{"x":1}'),
      asks(FIRST),
      /^body\/answers must not have "x", which the job does not ask, and must have "a+"$/,
    )
    await refuses(
      answers(`{"${FIRST.id}":1,"x":1,"y":2}`),
      asks(FIRST),
      /^body\/answers must not have "x", "y", which the job does not ask$/,
    )
    await refuses(answers('{}'), asks({ value: 'Go on?' }), /^body\/answers must have a question without an id$/)
    const many = Array.from({ length: 20_000 }, (_, n) => `"k${n}":0`).join()
    await refuses(
      answers(`{${many}}`),
      asks(FIRST),
      /^body\/answers must have the ids of the open questions and no others, and must have "a+"$/,
    )
    const eleven = Array.from({ length: 11 }, (_, n) => `"k${n}":0`).join()
    await refuses(answers(`{"${FIRST.id}":1,${eleven}}`), asks(FIRST), /"k9" and 1 more, which the job does not ask$/)
    const long = 'z'.repeat(200)
    await refuses(answers(`{"${long}":1}`), '[]', new RegExp(`^body/answers must not have "${'z'.repeat(100)}", which`))
  })

  const left = (state: Partial<ThreadState>): ThreadState => ({
    values: null,
    next: [],
    isDone: false,
    checkpointId: null,
    runId: null,
    error: null,
    interrupts: [],
    traces: { traceId: null, tracerTraceId: null },
    ...state,
  })

  test('questions are open while the state asks each of them', () => {
    const state = left({ next: ['ask'], interrupts: [FIRST, SECOND].map((question) => JsonText.of(question)) })
    assert.ok(isStillOpen(printsOf(FIRST), state))
    assert.ok(isStillOpen(printsOf(SECOND, FIRST), state))
    assert.equal(isStillOpen(printsOf(FIRST, { ...SECOND, value: 'From whom?' }), state), false)
    assert.equal(isStillOpen(printsOf(FIRST), left({ next: ['ask'] })), false)
  })

  test('a breakpoint is open while a step is next and nothing is asked', () => {
    assert.ok(isStillOpen([], left({ next: ['write'] })))
    assert.equal(isStillOpen([], left({})), false)
    assert.equal(isStillOpen([], left({ next: ['ask'], interrupts: [JsonText.of(FIRST)] })), false)
  })

  test('a question is known by its content, however it is spelled', () => {
    const spelled = (text: string) => fingerprintOf(new JsonText(text))
    assert.equal(spelled('{"id":"q","value":1}'), spelled('{ "value": 1, "id": "q" }'))
    assert.notEqual(spelled('{"id":"q","value":1}'), spelled('{"id":"q","value":2}'))
    assert.equal(spelled('{"id":"q","value":1}').length, 22)
  })

  test('the fingerprint of a large question is that of its text without white space', async () => {
    const texts = ['a "quoted" \\ text ', '😀'].map((part) => part.repeat((1024 * 1024) / part.length))
    for (const value of [...texts, ...texts.map((text) => `-${text}`), texts.map((text) => ({ text, n: [1, {}] }))]) {
      const question = { id: 'q', value }
      const compact = JSON.stringify(question)
      const expected = createHash('sha256').update(compact).digest('base64url').slice(0, 22)
      for (const text of [compact, JSON.stringify(question, null, '\t\n\r ')]) {
        assert.equal(fingerprintOf(new JsonText(text)), expected)
        assert.deepEqual((await fitAnswer(input('1'), `[${text}]`)).questions, [expected])
      }
    }
  })
})
