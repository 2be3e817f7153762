import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'

const IMPORT = /^(?:import|export) (?!type\b)[^'"()=]*?from '([^']+)'/gm
const ROOT = new URL('../../', import.meta.url)

/** The files and packages that a module loads: its static imports, followed to the end; type imports load nothing. */
function loadedBy(entry: string): { files: Set<string>; packages: Set<string> } {
  const files = new Set<string>()
  const packages = new Set<string>()
  const visit = (file: URL): void => {
    const path = file.href.slice(ROOT.href.length)
    if (files.has(path)) return
    files.add(path)
    for (const [, specifier = ''] of readFileSync(file, 'utf8').matchAll(IMPORT)) {
      if (!specifier.startsWith('.')) packages.add(specifier)
      else if (specifier.endsWith('.ts')) visit(new URL(specifier, file))
    }
  }
  visit(new URL(entry, ROOT))
  return { files, packages }
}

const { files, packages } = loadedBy('src/cli/serve.ts')

test('the imports are really followed: the routes and their packages are found', () => {
  assert.ok(files.has('src/jobs/api/job-routes.ts'))
  assert.ok(packages.has('fastify'))
})

const NOT_AT_START: { part: string; files?: string[]; packages?: string[] }[] = [
  { part: 'the PostgreSQL driver', files: ['src/db/postgres/postgres.ts'], packages: ['pg'] },
  { part: 'the Redis client', files: ['src/limits/redis-counter.ts', 'src/events/wake-ups.ts'], packages: ['ioredis'] },
  { part: 'the push provider', files: ['src/push/fcm/fcm-sender.ts'], packages: ['node:http2'] },
  { part: 'the reference page', packages: ['@scalar/fastify-api-reference'] },
  {
    part: 'the OpenAPI generator',
    files: ['src/ops/openapi/document.ts'],
    packages: ['@fastify/swagger'],
  },
  {
    part: 'tracing',
    files: ['src/tracing/open-tracing.ts'],
    packages: ['@opentelemetry/api', '@opentelemetry/sdk-trace-node', '@opentelemetry/exporter-trace-otlp-http'],
  },
  { part: 'the sandbox', files: ['src/sandbox/sandbox.ts'] },
]

for (const { part, files: itsFiles = [], packages: itsPackages = [] } of NOT_AT_START) {
  test(`serve starts without ${part}: it is loaded where it is used`, () => {
    for (const file of itsFiles) assert.ok(readFileSync(new URL(file, ROOT)).length > 0, `${file} exists`)
    assert.deepEqual(
      itsFiles.filter((file) => files.has(file)),
      [],
    )
    assert.deepEqual(
      itsPackages.filter((name) => packages.has(name)),
      [],
    )
  })
}
