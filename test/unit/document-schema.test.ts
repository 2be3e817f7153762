import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { JobTypesError, parseJobTypesFile } from '../../src/cli/startup/load-job-types.ts'
import { JsonText } from '../../src/core/json/json-text.ts'
import { DocumentSchema, MAX_CHECKED_VALUES, withTimeLimit } from '../../src/jobs/schemas/document-schema.ts'

const fault = (schema: object | boolean, text: string) =>
  new DocumentSchema(schema as { [keyword: string]: unknown }).faultOf(new JsonText(text), 'body/input')

describe('the schema of a document', () => {
  test('a fault is named with its place', () => {
    const schema = {
      type: 'object',
      required: ['title'],
      properties: { title: { type: 'string', minLength: 1 }, rows: { type: 'array', items: { type: 'integer' } } },
      additionalProperties: false,
    }
    assert.equal(fault(schema, '{"title":"Sales","rows":[1,2]}'), null)
    assert.equal(fault(schema, '{"title":7}'), 'body/input/title must be string')
    assert.equal(fault(schema, '{"title":""}'), 'body/input/title must not be empty')
    assert.equal(fault(schema, '{"title":"x","rows":[1,"2"]}'), 'body/input/rows/1 must be integer')
    assert.equal(fault(schema, '{}'), 'body/input must have the field "title"')
    assert.equal(fault(schema, '{"title":"x","more":1}'), 'body/input must not have the field "more"')
    assert.equal(fault(schema, '[]'), 'body/input must be object')
    assert.equal(fault(false, 'null'), 'body/input boolean schema is false')
    assert.equal(fault(true, 'null'), null)
  })

  test('a document has only its own fields, whatever every object has', () => {
    for (const name of ['constructor', 'toString', 'valueOf', 'hasOwnProperty', '__proto__']) {
      const field = JSON.stringify(name)
      const has = `{${field}:1}`
      assert.equal(fault({ required: [name] }, '{}'), `body/input must have the field ${field}`)
      assert.equal(fault({ required: [name] }, has), null)
      const schemas = JSON.parse(`{${field}:false}`) as object
      assert.equal(fault({ dependentSchemas: schemas }, '{}'), null)
      assert.equal(fault({ dependentRequired: { a: [name] } }, '{"a":1}') === null, false)
      if (name !== '__proto__') {
        assert.equal(fault({ properties: schemas }, '{}'), null)
        assert.equal(fault({ properties: schemas }, has), `body/input/${name} boolean schema is false`)
      }
      const own = JSON.parse(has) as object
      for (const equal of [{ const: own }, { enum: [own] }, { type: 'array', uniqueItems: true, maxItems: 2 }]) {
        const isArray = 'uniqueItems' in equal
        assert.equal(fault(equal, isArray ? `[${has},{}]` : has), null)
        assert.notEqual(fault(equal, isArray ? `[${has},${has}]` : '{}'), null)
      }
      assert.notEqual(fault({ const: {} }, has), null)
    }
  })

  test('the deepest fault of several alternatives is named', () => {
    const schema = { anyOf: [{ type: 'string' }, { type: 'array', items: { properties: { a: { type: 'number' } } } }] }
    assert.equal(fault(schema, '[{"a":1},{"a":"1"}]'), 'body/input/1/a must be number')
    assert.equal(fault(schema, '7'), 'body/input must match a schema in anyOf')
  })

  test('a schema may refer to itself as a whole', () => {
    const tree = (type: string) =>
      new DocumentSchema({ properties: { next: { $ref: '#' }, value: { type } }, $defs: { a: { $ref: '#' } } })
    const [texts, numbers] = [tree('string'), tree('number')]
    const document = new JsonText('{"next":{"next":{"value":1}}}')
    for (let n = 0; n < 2; n++) {
      assert.equal(texts.faultOf(document, 'input'), 'input/next/next/value must be string')
      assert.equal(numbers.faultOf(document, 'input'), null)
    }
  })

  test('a check that takes too long is a fault, and the next check works', () => {
    const half = { type: 'object', properties: { a: { $ref: '#/$defs/half' } }, required: ['a'] }
    const doubling = { $ref: '#/$defs/half', $defs: { half: { oneOf: [half, half, { type: 'number' }] } } }
    const deep = `${'{"a":'.repeat(40)}"x"${'}'.repeat(40)}`
    const slow: [schema: object, text: string][] = [
      [doubling, deep],
      [{ type: 'string', pattern: '^a*a*a*b$' }, JSON.stringify('a'.repeat(20_000))],
      [
        { items: { anyOf: Array.from({ length: 2_000 }, (_, n) => ({ const: n })) } },
        `[${'1999,'.repeat(40_000)}1999]`,
      ],
    ]
    assert.equal(fault({ allOf: [{ $ref: '#' }] }, '1'), 'body/input takes too long to check')
    for (const [schema, text] of slow) {
      assert.equal(fault(schema, text), 'body/input takes too long to check')
      assert.equal(fault(schema, '7'), schema === slow[1]?.[0] ? 'body/input must be string' : null)
    }
  })

  test('a check that got little of the processor is repeated, and one that used its time twice is not', () => {
    const attempt = (spentMs: number, endless: number) => {
      let [calls, usedMs] = [0, 0]
      const run = () => {
        calls += 1
        usedMs += spentMs
        return calls <= endless ? undefined : 'the fault'
      }
      return { result: withTimeLimit(() => null, 'too slow', { usedMs: () => usedMs, run }), calls }
    }
    assert.deepEqual(attempt(5, 1), { result: 'the fault', calls: 2 })
    assert.deepEqual(attempt(0, 1), { result: 'the fault', calls: 2 })
    assert.deepEqual(attempt(5, 2), { result: 'the fault', calls: 3 })
    assert.deepEqual(attempt(5, 30), { result: 'too slow', calls: 20 })
    assert.deepEqual(attempt(40, 1), { result: 'the fault', calls: 2 })
    assert.deepEqual(attempt(40, 2), { result: 'too slow', calls: 2 })
  })

  test('numbers that the parsed copy cannot represent are still numbers', () => {
    for (const text of ['1e400', '-0', '9007199254740993', '1E-400']) {
      assert.equal(fault({ type: 'number' }, text), null, text)
    }
    assert.equal(fault({ type: 'number', maximum: 10 }, '1e400'), 'body/input must be <= 10')
  })

  test('a fault that quotes the document is short and can be stored', () => {
    const key = `\\u0000\\ud800${'k'.repeat(5000)}`
    const long = fault({ additionalProperties: false }, `{"${key}":1}`) ?? ''
    assert.ok(long.length <= 300 && long.isWellFormed() && !long.includes('\u0000'))
  })

  test('a document with too many values is refused without being parsed; a long text is one value', () => {
    const many = `[${'1,'.repeat(MAX_CHECKED_VALUES)}1]`
    assert.equal(fault(true, many), `body/input must have at most ${MAX_CHECKED_VALUES} values`)
    assert.equal(fault({ type: 'string' }, JSON.stringify(',"\\[:'.repeat(200_000))), null)
  })
})

const faultsOf = (schema: unknown) => {
  const report = { assistant_id: 'report', output_key: 'report', input_schema: schema }
  try {
    parseJobTypesFile(JSON.stringify({ types: { report } }))
    return []
  } catch (error) {
    assert.ok(error instanceof JobTypesError, String(error))
    return error.message
      .split('\n')
      .slice(1)
      .map((line) => line.trim())
  }
}

describe('a schema in the job types’ file', () => {
  test('a schema is accepted if it is valid and bounded', () => {
    const taken = [
      true,
      {},
      { $schema: 'https://json-schema.org/draft/2020-12/schema', type: 'string', format: 'email', 'x-note': 1 },
      { properties: { next: { $ref: '#' } } },
      { properties: { a: { type: 'array', items: { type: 'string' } }, b: { $ref: '#/properties/a/items' } } },
      { allOf: [{ type: 'object' }], $ref: '#/allOf/0', $defs: { yes: true, all: { $ref: '#/$defs/yes' } } },
      { $ref: '#/$defs/a~1b%20%C3%A9~0', $defs: { 'a/b é~': { type: 'string' } } },
      { $ref: '#/$defs/default/properties/enum', $defs: { default: { properties: { enum: {} } } } },
      { $ref: '#/$defs/node', $defs: { node: { properties: { next: { $ref: '#/$defs/node' } } } } },
      { properties: { $ref: { type: 'string' }, $id: { type: 'string' } }, examples: [{ $ref: 'elsewhere' }] },
      { properties: { properties: { default: { pattern: '^(a+)+$' } }, uniqueItems: true } },
      { type: 'array', uniqueItems: true, maxItems: 100 },
      { type: 'array', uniqueItems: true, items: { type: 'string', pattern: '^[a-z]+$' } },
    ]
    for (const schema of taken) assert.deepEqual(faultsOf(schema), [], JSON.stringify(schema))
  })

  test('a schema that is invalid or unbounded is refused by its place', () => {
    const place = '/types/report/input_schema'
    const nested = (depth: number): object => (depth === 0 ? {} : { not: nested(depth - 1) })
    const refused: [schema: unknown, fault: RegExp][] = [
      ['object', /^\/types\/report\/input_schema must be a JSON Schema/],
      [null, /must be a JSON Schema/],
      [{ type: 'strin' }, /input_schema\/type must be /],
      [{ properties: { title: { minLength: -1 } } }, /input_schema\/properties\/title\/minLength must be >= 0/],
      [{ required: [1] }, /input_schema\/required\/0 must be string/],
      [{ pattern: '(' }, /is not a valid JSON Schema: .*[Ii]nvalid regular expression/],
      ...[
        '#/$defs/none',
        'https://example.com/schema.json',
        'file:///etc/passwd',
        'other.json#/$defs/a',
        '/$defs/a',
        '',
        '#a',
        '#/',
        '#/$defs',
        '#/$defs/a/type',
        '#/$defs/toString',
        '#/$defs/a/constructor',
        '#/default',
        '#/$defs/%zz',
        '#%2F$defs%2Fa',
      ].map(($ref): [unknown, RegExp] => [
        { properties: { a: { $ref } }, default: {}, $defs: { a: { type: 'string' } } },
        /properties\/a\/\$ref must be #, or #\/ with the JSON Pointer of a schema within this one/,
      ]),
      [{ unevaluatedProperties: false }, /unevaluatedProperties is not supported: use additionalProperties/],
      [{ allOf: [{ unevaluatedItems: { type: 'string' } }] }, /allOf\/0\/unevaluatedItems is not supported: use items/],
      [JSON.parse('{"properties":{"__proto__":{}}}'), /properties\/__proto__ is not supported/],
      [{ $id: 'https://example.com/schema.json' }, /\/\$id is not supported/],
      [{ $schema: 'http://json-schema.org/draft-07/schema#' }, /\/\$schema must be .*2020-12/],
      [{ properties: { a: { pattern: '^(a+)+$' } } }, /properties\/a has the pattern .* can take very long/],
      [{ patternProperties: { '(x+x+)+y': {} } }, /can take very long/],
      [{ properties: { default: { pattern: '^(a+)+$' } } }, /properties\/default has the pattern/],
      [{ $defs: { enum: { properties: { examples: { uniqueItems: true } } } } }, /examples\/uniqueItems needs/],
      [{ uniqueItems: true }, /uniqueItems needs maxItems of at most 100/],
      [{ uniqueItems: true, maxItems: 101, items: { type: 'object' } }, /uniqueItems needs maxItems/],
      [nested(60), /nested more than 50 levels/],
      [{ description: 'x'.repeat(70_000) }, /must be at most 64 KB/],
    ]
    for (const [schema, expected] of refused) {
      const faults = faultsOf(schema)
      assert.ok(faults.length > 0, JSON.stringify(schema).slice(0, 100))
      for (const one of faults) assert.ok(one.startsWith(place), one)
      assert.match(faults.join('\n'), expected)
    }
  })
})
