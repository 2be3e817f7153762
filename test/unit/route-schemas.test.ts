import assert from 'node:assert/strict'
import { globSync } from 'node:fs'
import { test } from 'node:test'
import { compileValidator } from '../../src/http/validation.ts'

const SOURCE = new URL('../../src/', import.meta.url)
const PARTS = ['body', 'querystring', 'params', 'headers'] as const

/** The validators compile on first use, so a schema with an unknown keyword would fail only the first request. */
test('the schemas of all routes compile', async () => {
  let compiled = 0
  for (const file of globSync('**/*-schema.ts', { cwd: SOURCE })) {
    const exported = Object.entries((await import(new URL(file, SOURCE).href)) as Record<string, unknown>)
    for (const [name, route] of exported) {
      if (typeof route !== 'object' || route === null || !('response' in route)) continue
      for (const httpPart of PARTS) {
        const schema = (route as Partial<Record<typeof httpPart, object>>)[httpPart]
        if (schema === undefined) continue
        const validate = compileValidator({ schema, method: 'GET', url: '/', httpPart })
        assert.doesNotThrow(() => validate({}), `${file} ${name} ${httpPart}`)
        compiled += 1
      }
    }
  }
  assert.ok(compiled > 50, `only ${compiled} schemas were found`)
})
