import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Ajv } from 'ajv'
import fc from 'fast-check'
import { faultsOfForm } from '../../src/core/form.ts'
import { Type } from '../../src/core/schema.ts'

const leaf = Type.Object(
  { title: Type.String({ minLength: 1, maxLength: 3 }), note: Type.Optional(Type.String()) },
  { additionalProperties: false },
)
const schema = Type.Object(
  {
    count: Type.Optional(Type.Integer({ minimum: 1, maximum: 10 })),
    flag: Type.Boolean(),
    leaf: Type.Optional(leaf),
    leaves: Type.Record(Type.String(), leaf),
    free: Type.Optional(Type.Object({ inner: Type.String() })),
  },
  { additionalProperties: false },
)

const validate = new Ajv({ allErrors: true }).compile(schema)
function faultsByAjv(document: unknown): string[] {
  validate(document)
  return (validate.errors ?? []).map((error) => `${error.instancePath || '/'} ${error.message}`)
}

/** Any value of JSON, and near misses of every field, for most arbitrary documents fail at their first one. */
const anything = fc.oneof(fc.jsonValue(), fc.constantFrom('', 'abc', 'abcd', '🙂🙂🙂', 0, 1, 1.5, 10, 11, true, {}))
const someLeaf = fc.oneof(
  { weight: 4, arbitrary: fc.record({ title: anything, note: anything, more: anything }, { requiredKeys: [] }) },
  anything,
)
const name = fc.oneof(fc.string(), fc.constantFrom('a/b', 'a~b', '', 'toString', 'a\nb'))
const someDocument = fc.oneof(
  {
    weight: 9,
    arbitrary: fc.record(
      {
        count: anything,
        flag: fc.oneof(fc.boolean(), anything),
        leaf: someLeaf,
        leaves: fc.oneof(fc.dictionary(name, someLeaf), anything),
        free: fc.oneof(fc.record({ inner: anything, more: anything }, { requiredKeys: [] }), anything),
        more: anything,
      },
      { requiredKeys: [] },
    ),
  },
  anything,
)

test('the same faults are found as by Ajv, in the same words and places', () => {
  fc.assert(
    fc.property(someDocument, (drawn) => {
      // As a file would bring it: without what JSON cannot say.
      const document: unknown = JSON.parse(JSON.stringify(drawn))
      const byAjv = faultsByAjv(document)
      // Of a fraction it is enough to say that it is one.
      const isFraction = byAjv.includes('/count must be integer')
      const expected = byAjv.filter((fault) => !(isFraction && /^\/count must be [<>]=/.test(fault)))
      assert.deepEqual(faultsOfForm(schema, document).sort(), expected.sort())
    }),
    { numRuns: 2_000 },
  )
})

test('a schema that says more than is checked is refused', () => {
  const more = Type.Object({ mail: Type.String({ format: 'email' }) })
  assert.throws(() => faultsOfForm(more, { mail: 'x' }), /The keyword format is not checked/)
})
