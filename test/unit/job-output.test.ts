import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Json, JsonObject } from '../../src/core/json.ts'
import type { Tokens } from '../../src/jobs/job.ts'
import { extractOutput, extractTokens, wantedValues } from '../../src/jobs/output.ts'
import { DocumentSchema, type SchemaJson } from '../../src/jobs/schemas/document-schema.ts'
import { partOf, scanText } from '../support/json-parts.ts'

function at(outputKey: string | null, values: JsonObject): Json | undefined {
  const places = { outputKey, usageKey: null }
  const output = extractOutput(places, partOf(values, wantedValues(places)))
  return output && (JSON.parse(output.text) as Json)
}

function tokensIn(usageKey: string | null, values: object): Tokens {
  const places = { outputKey: null, usageKey }
  return extractTokens(places, partOf(values, wantedValues(places)))
}

describe('the output under a key', () => {
  test('the output is the value under the key, also a falsy one', () => {
    for (const value of [{ a: 1 }, [], '', 0, false, 'x']) assert.deepEqual(at('report', { report: value }), value)
  })

  test('the output is missing when there is no such key, or a null', () => {
    assert.equal(at('report', {}), undefined)
    assert.equal(at('report', { report: null }), undefined)
  })

  test('null under the key is an output where the output schema allows null', () => {
    const nullFor = (schema: SchemaJson | null, { outputKey = 'report' }: { outputKey?: string | null } = {}) => {
      const type = { outputKey, usageKey: null, outputSchema: schema === null ? null : new DocumentSchema(schema) }
      const values = { report: null, messages: [{ role: 'assistant', content: null }] }
      return extractOutput(type, partOf(values, wantedValues(type)))?.text
    }
    for (const schema of [true, {}, { type: ['object', 'null'] }, { anyOf: [{ type: 'string' }, { const: null }] }]) {
      assert.equal(nullFor(schema), 'null')
      assert.equal(nullFor(schema, { outputKey: null }), undefined, 'a message without content is no output')
    }
    for (const schema of [null, false, { type: 'object' }, { enum: ['a'] }]) assert.equal(nullFor(schema), undefined)
  })

  test('the output is never found on the prototype', () => {
    for (const key of ['constructor', 'toString', '__proto__', 'hasOwnProperty']) assert.equal(at(key, {}), undefined)
  })

  test('a key with a dot or a slash inside is still a key', () => {
    assert.equal(at('a.b', { 'a.b': 1, a: { b: 2 } }), 1)
    assert.equal(at('a/b', { 'a/b': 1, a: { b: 2 } }), 1)
  })
})

describe('the output', () => {
  const NUMBERS = ['9007199254740993', '1e400', '-0', '-0.0', '12345678901234567890', '0.1e-7', '1E5', '1.0']

  test('the output keeps the text of its numbers, and its white space', () => {
    for (const number of NUMBERS) {
      for (const output of [number, `{ "a" : [${number}, "${number}"] }`]) {
        const places = { outputKey: 'report', usageKey: null }
        const values = scanText(`{"x":1, "report" : ${output} }`, wantedValues(places))
        assert.equal(extractOutput(places, values)?.text, output)
      }
    }
  })

  test('the output may be inside the messages that report the tokens', () => {
    const places = { outputKey: '/messages/1/kwargs/content', usageKey: null }
    const message = {
      type: 'constructor',
      id: ['AIMessage'],
      kwargs: { content: 'b', usage_metadata: { input_tokens: 7 } },
    }
    const values = partOf({ messages: [{ type: 'human' }, message] }, wantedValues(places))
    assert.equal(extractOutput(places, values)?.text, '"b"')
    assert.equal(extractTokens(places, values).input, 7)
  })
})

describe('the output under a JSON Pointer', () => {
  const values = { result: { summary: 'short', list: ['a', { b: 2 }], none: null }, '': 1, 'a/b': 2, 'm~n': 3 }
  const cases: [pointer: string, found: Json | undefined][] = [
    ['/result/summary', 'short'],
    ['/result/list/0', 'a'],
    ['/result/list/1/b', 2],
    ['/', 1],
    ['/a~1b', 2],
    ['/m~0n', 3],
    ['/result/none', undefined],
    ['/result/none/deeper', undefined],
    ['/result/absent', undefined],
    ['/result/summary/length', undefined],
    ['/result/list/2', undefined],
    ['/result/list/-', undefined],
    ['/result/list/01', undefined],
    ['/result/list/length', undefined],
    ['/result/constructor', undefined],
  ]
  for (const [pointer, found] of cases) {
    test(`${pointer} is ${JSON.stringify(found)}`, () => assert.deepEqual(at(pointer, values), found))
  }
})

describe('the last assistant message', () => {
  const wrapped = (kind: string, kwargs: JsonObject): Json => ({
    lc: 1,
    type: 'constructor',
    id: ['langchain_core', 'messages', kind],
    kwargs,
  })
  const serialisations: [name: string, message: Json][] = [
    ['a plain message of the runtime', { type: 'ai', content: 'Hello', id: 'm1' }],
    ['a chat message', { role: 'assistant', content: 'Hello' }],
    ['a message named by its class', { type: 'AIMessage', content: 'Hello' }],
    ['a streamed message', { type: 'AIMessageChunk', content: 'Hello' }],
    ['one the framework wrapped', wrapped('AIMessage', { content: 'Hello' })],
    ['one the framework wrapped while streaming', wrapped('AIMessageChunk', { content: 'Hello' })],
    ['one wrapped with its type inside', wrapped('Message', { type: 'ai', content: 'Hello' })],
    ['one as LangChain stores it', { type: 'ai', data: { content: 'Hello' } }],
  ]
  for (const [name, message] of serialisations) {
    test(`the last assistant message is found as ${name}`, () => {
      const values = {
        messages: [{ type: 'human', content: 'Hi' }, message, wrapped('HumanMessage', { content: '?' })],
      }
      assert.equal(at(null, values), 'Hello')
    })
  }

  test('the last assistant message is the last of several', () => {
    const messages = [
      { type: 'ai', content: 'first' },
      { type: 'human', content: 'again' },
      { type: 'ai', content: 'second' },
      { type: 'tool', content: 'tool' },
    ]
    assert.equal(at(null, { messages }), 'second')
  })

  test('the last assistant message may be a list of content blocks', () => {
    const content = [{ type: 'text', text: 'Hello' }]
    assert.deepEqual(at(null, { messages: [{ type: 'ai', content }] }), content)
  })

  test('the last assistant message is missing without one, whatever else the messages are', () => {
    const lists: JsonObject[] = [
      {},
      { messages: [] },
      { messages: 'Hello' },
      { messages: [null, 1, 'ai', [], { type: 'human', content: 'Hi' }] },
      { messages: [{ type: 'ai' }] },
      { messages: [{ type: 'ai', content: null }] },
    ]
    for (const values of lists) assert.equal(at(null, values), undefined, JSON.stringify(values))
  })
})

describe('tokens', () => {
  const usage = (input: number, output: number, total?: number): JsonObject => ({
    input_tokens: input,
    output_tokens: output,
    ...(total === undefined ? {} : { total_tokens: total }),
  })

  test('tokens are summed over the assistant messages of this turn', () => {
    const messages = [
      { type: 'human', content: 'Hi' },
      { type: 'ai', content: 'a', usage_metadata: usage(1, 2, 3) },
      { lc: 1, type: 'constructor', id: ['AIMessage'], kwargs: { content: 'b', usage_metadata: usage(10, 20) } },
    ]
    assert.deepEqual(tokensIn(null, { messages }), { input: 11, output: 22, total: 33 })
  })

  test('tokens of the history are not counted again: those before the last human message', () => {
    const spent = { usage_metadata: usage(5, 10) }
    const human = [
      { type: 'human', content: 'again' },
      { role: 'user', content: 'again' },
      { lc: 1, type: 'constructor', id: ['langchain_core', 'messages', 'HumanMessage'], kwargs: { content: 'again' } },
      { type: 'human', data: { content: 'again' } },
    ]
    for (const message of human) {
      const history = [{ type: 'human' }, { type: 'ai', ...spent }, message]
      assert.deepEqual(tokensIn(null, { messages: history }), { input: 0, output: 0, total: 0 })
      const turn = [
        { type: 'ai', ...spent },
        { type: 'tool', content: 'x' },
        { role: 'assistant', ...spent },
      ]
      assert.deepEqual(tokensIn(null, { messages: [...history, ...turn] }), { input: 10, output: 20, total: 30 })
    }
  })

  test('tokens are read from a key or a pointer where the type names one, and then nowhere else', () => {
    const values = { tokens: usage(1, 2), meta: { used: usage(3, 4, 9) }, messages: [{ usage_metadata: usage(5, 5) }] }
    assert.deepEqual(tokensIn('tokens', values), { input: 1, output: 2, total: 3 })
    assert.deepEqual(tokensIn('/meta/used', values), { input: 3, output: 4, total: 9 })
    assert.deepEqual(tokensIn('absent', values), { input: 0, output: 0, total: 0 })
  })

  test('tokens that are not valid counts are ignored', () => {
    for (const bad of [-1, 1.5, Number.NaN, '7', null, true, {}, 1e13, 2 ** 53]) {
      const values = { tokens: { input_tokens: bad as Json, output_tokens: 2 } }
      assert.deepEqual(tokensIn('tokens', values), { input: 0, output: 2, total: 2 })
    }
    assert.deepEqual(tokensIn('tokens', { tokens: [1, 2] }), { input: 0, output: 0, total: 0 })
  })

  test('the tokens of a run are bounded, however many messages report them', () => {
    const messages = Array.from({ length: 2_000 }, () => ({ type: 'ai', usage_metadata: usage(1e12, 1e12, 1e12) }))
    const { input, output, total } = tokensIn(null, { messages })
    for (const sum of [input, output, total]) assert.ok(Number.isSafeInteger(sum) && sum <= 1e12, String(sum))
  })
})

describe('the output of a later turn of a conversation', () => {
  const AGENT = { outputKey: null, usageKey: null }
  const HISTORY = [
    { type: 'human', content: 'one' },
    { type: 'ai', content: 'the answer to one' },
    { type: 'human', content: 'two' },
  ]
  const outputOf = (messages: object[]) =>
    extractOutput(AGENT, partOf({ messages }, wantedValues(AGENT)), { isLaterTurn: true })?.text

  test('the output of a later turn is the assistant message after the last human one', () => {
    assert.equal(outputOf([...HISTORY, { type: 'ai', content: 'the answer to two' }]), '"the answer to two"')
  })

  test('the output of a later turn is missing when the run wrote none, whatever earlier turns answered', () => {
    assert.equal(outputOf(HISTORY), undefined)
  })
})
