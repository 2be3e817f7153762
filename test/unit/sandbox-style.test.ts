import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'

const variablesOf = (file: string) => {
  const text = readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8')
  return new Map(Array.from(text.matchAll(/^\s*(--[\w-]+): (.+);$/gm), ([, name = '', value = '']) => [name, value]))
}

test('the pages of the sandbox have the colours of the console', () => {
  const console = variablesOf('console/src/styles/base.css')
  const sandbox = variablesOf('src/sandbox/page.html')
  assert.ok(sandbox.size > 10)
  for (const [name, value] of sandbox) assert.equal(value, console.get(name), name)
})
