import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { parseJobTypesFile } from '../../src/cli/startup/load-job-types.ts'
import { toJobType } from '../../src/jobs/api/present-job.ts'
import { printJobTypes } from '../../src/jobs/schemas/print-types.ts'

const print = (schema: unknown) => {
  const text = printJobTypes([{ name: 'x', description: null, input_schema: schema }])
  return text.replace(/\s+/g, ' ')
}
const inputOf = (schema: unknown) =>
  / x: \{ input: (.*) output: unknown resume: unknown \} \}$/.exec(print(schema))?.[1]

describe('TypeScript types of job types', () => {
  test('every kind of schema has its type', () => {
    const table: [schema: unknown, type: string][] = [
      [undefined, 'unknown'],
      [true, 'unknown'],
      [false, 'never'],
      [{ type: 'integer' }, 'number'],
      [{ type: ['string', 'null'] }, 'string | null'],
      [{ enum: ['a', 1, null, { b: [true] }] }, '"a" | 1 | null | { b: [true] }'],
      [{ const: 'a' }, '"a"'],
      [{ type: 'array', items: { type: ['string', 'number'] } }, '(string | number)[]'],
      [{ items: { anyOf: [{ properties: { a: {} } }, { type: 'null' }] } }, '({ a?: unknown } | null)[]'],
      [{ prefixItems: [{ type: 'string' }], items: false }, '[string?]'],
      [{ prefixItems: [{ type: 'string' }], items: { type: 'number' } }, '[string?, ...number[]]'],
      [{ type: 'object' }, '{ [key: string]: unknown }'],
      [{ type: 'object', additionalProperties: { type: 'number' } }, '{ [key: string]: number }'],
      [{ properties: { 'a-b': { type: 'string' } }, required: ['a-b'] }, '{ "a-b": string }'],
      [{ properties: { a: {} }, additionalProperties: true }, '{ a?: unknown [key: string]: unknown }'],
      [{ allOf: [{ type: 'string' }, { enum: ['a', 'b'] }] }, 'string & ("a" | "b")'],
      [{ oneOf: [{ type: 'string' }, true] }, 'unknown'],
      [{ properties: { a: { description: 'Ends */ here' } } }, '{ /** Ends * / here */ a?: unknown }'],
    ]
    for (const [schema, type] of table) assert.equal(inputOf(schema), type, JSON.stringify(schema))
  })

  test('a configuration has a type where the job type allows one', () => {
    const type = { name: 'x', description: null, resume_schema: false }
    const configurable_schema = { properties: { language: { enum: ['de', 'en'] } }, additionalProperties: false }
    const text = (more: object) => printJobTypes([{ ...type, ...more }]).replace(/\s+/g, ' ')
    assert.match(text({ configurable_schema }), /resume: never configurable: \{ language\?: "de" \| "en" \} \} \}$/)
    assert.match(text({ configurable_schema: null }), /resume: never \} \}$/)
  })

  test('definitions have names, also those that contain themselves', () => {
    const node = { properties: { next: { $ref: '#/$defs/tree-node' } } }
    const text = print({ type: 'array', items: { $ref: '#/$defs/tree-node' }, $defs: { 'tree-node': node } })
    assert.match(text, /^export type XInputTreeNode = \{ next\?: XInputTreeNode \} export interface JobTypes/)
    assert.match(text, /input: XInputTreeNode\[\]/)
    assert.match(print({ properties: { next: { $ref: '#' } } }), /export type XInput = \{ next\?: XInput \}/)
    assert.match(print({ items: { $ref: '#/$defs/a%20b' }, $defs: { 'a b': { type: 'null' } } }), /XInputA20b = null/)
    assert.match(print({ items: { $ref: '#/$defs/100%' }, $defs: { '100%': { type: 'null' } } }), /XInputT100 = null/)
  })

  test('a type never consists of itself, which TypeScript refuses', () => {
    assert.equal(inputOf({ anyOf: [{ $ref: '#' }, { type: 'string' }] }), 'unknown')
    assert.equal(inputOf({ allOf: [{ $ref: '#' }, { type: 'string' }] }), 'string')
    const loop = { a: { oneOf: [{ $ref: '#/$defs/b' }] }, b: { $ref: '#/$defs/a' } }
    assert.match(print({ items: { $ref: '#/$defs/a' }, $defs: loop }), /XInputB = unknown .*XInputA = XInputB /)
  })

  test('the printed types of the shipped job types compile under strict, and mean what the schemas say', () => {
    const file = readFileSync(new URL('../../job-types.json', import.meta.url), 'utf8')
    const types = [...parseJobTypesFile(file).jobTypes.values()].map(toJobType)
    const use = `
const report: JobTypes['report'] = { input: { title: 'Sales', n: 3 }, output: { title: 'x', n: 1 }, resume: null }
// @ts-expect-error: a number is not a title
const wrong: JobTypes['report']['input'] = { title: 7 }
const agent: JobTypes['agent']['input'] = { messages: [{ role: 'user', content: 'x' }] }
const answer: JobTypes['agent']['resume'] = 'Yes'
// @ts-expect-error: no such role
const unknownRole: JobTypes['agent']['input'] = { messages: [{ role: 'unknown', content: 'x' }] }
export { report, wrong, agent, answer, unknownRole }`
    const folder = mkdtempSync(join(tmpdir(), 'print-types-'))
    try {
      writeFileSync(join(folder, 'types.ts'), printJobTypes(types) + use)
      const tsc = fileURLToPath(new URL('../../node_modules/.bin/tsc', import.meta.url))
      const args = ['--strict', '--noEmit', '--ignoreConfig', '--types', '', join(folder, 'types.ts')]
      execFileSync(tsc, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
    } finally {
      rmSync(folder, { recursive: true, force: true })
    }
  })
})
