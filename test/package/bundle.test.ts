import assert from 'node:assert/strict'
import { existsSync, globSync, readFileSync } from 'node:fs'
import { SourceMap } from 'node:module'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { shippedFile } from '../../src/shipped-files.ts'

const DIST = fileURLToPath(new URL('../../dist/', import.meta.url))
const CODE = join(DIST, 'bundle')
const read = (file: string) => readFileSync(join(DIST, file), 'utf8')

/** The paths of the modules in a file of the build. A file without code of its own has no source map. */
function sourcesOf(file: string): string[] {
  const map = join(CODE, `${file}.map`)
  return existsSync(map) ? (JSON.parse(readFileSync(map, 'utf8')) as { sources: string[] }).sources : []
}

/** The modules in the files that this one imports statically, and in those that they import. */
function modulesLoadedBy(entry: string): Set<string> {
  const modules = new Set<string>()
  const seen = new Set<string>()
  const visit = (file: string): void => {
    if (seen.has(file)) return
    seen.add(file)
    const text = readFileSync(join(CODE, file), 'utf8')
    for (const module of sourcesOf(file)) modules.add(module)
    for (const [, next = ''] of text.matchAll(/(?:from|^import|;import)"\.\/([^"]+)"/gm)) visit(next)
  }
  visit(entry)
  return modules
}

describe('the build in dist', () => {
  test('these tests run on the build, not on the sources', () => {
    assert.equal(fileURLToPath(shippedFile('.')), DIST)
  })

  test('serve loads neither drivers, tracing, the reference, OpenAPI nor the sandbox before they are needed', () => {
    const modules = [...modulesLoadedBy('serve.js')]
    const has = (part: string) => modules.some((module) => module.includes(part))
    for (const part of ['node_modules/fastify/', 'src/app.ts']) assert.ok(has(part), `${part} is found at all`)
    const onDemand = ['pg', 'ioredis', '@opentelemetry', '@scalar', '@fastify/swagger'].map(
      (name) => `modules/${name}/`,
    )
    assert.deepEqual([...onDemand, 'src/sandbox/', 'src/db/postgres/postgres.ts', 'src/tracing/'].filter(has), [])
  })

  test('a source map leads from the build to the line of the source', () => {
    const file = globSync('*.js', { cwd: CODE }).find((name) =>
      readFileSync(join(CODE, name), 'utf8').includes('function shippedFile('),
    )
    const code = readFileSync(join(CODE, file ?? ''), 'utf8')
    const line = code.split('\n').findIndex((text) => text.includes('function shippedFile('))
    const map = new SourceMap(JSON.parse(readFileSync(join(CODE, `${file}.map`), 'utf8')) as never)
    const entry = map.findEntry(line, code.split('\n')[line]?.indexOf('shippedFile') ?? 0) as {
      originalSource?: string
    }
    assert.match(entry.originalSource ?? '', /src\/shipped-files\.ts$/)
  })

  test('the licences of all packages in the build are in it', () => {
    const text = read('THIRD-PARTY-LICENCES.txt')
    const modules = globSync('*.js', { cwd: CODE }).flatMap(sourcesOf)
    const found = modules.flatMap((module) => /.*node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(module)?.[1] ?? [])
    assert.ok(found.includes('fastify') && found.includes('pg'))
    const { devDependencies } = JSON.parse(
      readFileSync(new URL('../../console/package.json', import.meta.url), 'utf8'),
    ) as { devDependencies: Record<string, string> }
    const ofConsole = Object.keys(devDependencies).filter(
      (name) => name !== 'vite' && !name.startsWith('@project-api/'),
    )
    // Those that packages of the console bring along.
    const brought = ['@tanstack/query-core', 'regexparam']
    const missing = [...new Set([...found, ...ofConsole, ...brought])].filter((name) => !text.includes(`== ${name} `))
    assert.deepEqual(missing, [])
  })

  test('the console is in the build', () => {
    assert.ok(existsSync(join(DIST, 'console/dist/index.html')))
  })
})
