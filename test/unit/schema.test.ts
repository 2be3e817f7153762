import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { test } from 'node:test'
import { Type as TypeBox } from 'typebox'
import { Type } from '../../src/core/schema.ts'

function everything(T: typeof Type): object {
  return T.Object(
    {
      text: T.String({ minLength: 1, format: 'text' }),
      count: T.Optional(T.Integer({ minimum: 1, default: 20 })),
      flag: T.Boolean(),
      nothing: T.Null({ description: 'It is gone.' }),
      kind: T.Union([T.Literal('a'), T.Literal(1), T.Literal(true)], { description: 'one of them' }),
      list: T.Array(T.Object({}), { maxItems: 3 }),
      map: T.Record(T.String(), T.Object({ only: T.Optional(T.String()) }, { additionalProperties: false })),
      free: T.Optional(T.Unsafe<string | null>({ type: ['string', 'null'] })),
    },
    { $id: 'Everything', additionalProperties: false },
  )
}

test('our schema builders write what TypeBox writes, in the same order', () => {
  assert.equal(JSON.stringify(everything(Type)), JSON.stringify(everything(TypeBox)))
})

test('a schema of TypeBox’s keeps its optional fields inside one of ours', () => {
  const mixed = Type.Object({ ours: Type.String(), theirs: TypeBox.Optional(TypeBox.String()) })
  assert.deepEqual(mixed.required, ['ours'])
})

test('the service loads none of TypeBox: it is four hundred modules, and a third of the start', () => {
  const loads = /^(?:import|export) (?!type\b).*from '(?:typebox|@fastify\/type-provider-typebox)/m
  const source = new URL('../../src/', import.meta.url).pathname
  const files = globSync('**/*.ts', { cwd: source })
  assert.ok(files.length > 100)
  assert.deepEqual(
    files.filter((file) => loads.test(readFileSync(`${source}${file}`, 'utf8'))),
    [],
  )
})
