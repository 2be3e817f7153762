import { createHash } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buildApp } from '../../src/app.ts'
import { parseConfig } from '../../src/config.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import { migrate } from '../../src/db/migrate.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { createServices } from '../../src/services.ts'

interface ApiDocument {
  openapi: string
  info: object
  paths: Record<string, Record<string, { responses: Record<string, { description: string; content?: object }> }>>
  components: { schemas: Record<string, { examples?: unknown }> }
}

/** The part of the service's OpenAPI document that the client's types come from: no errors, no headers, no security. */
export async function readDocument(): Promise<ApiDocument> {
  const { openapi, info, paths, components } = await askService()
  for (const operation of Object.values(paths).flatMap((methods) => Object.values(methods))) {
    const successes = Object.entries(operation.responses).filter(([status]) => status.startsWith('2'))
    operation.responses = Object.fromEntries(
      successes.map(([status, { description, content }]) => [status, { description, ...(content && { content }) }]),
    )
  }
  for (const schema of Object.values(components.schemas)) delete schema.examples
  return { openapi, info, paths, components: { schemas: components.schemas } }
}

/** The mark in the generated file. A test compares it with the service's document of today. */
export function fingerprintOf(document: ApiDocument): string {
  return createHash('sha256').update(JSON.stringify(document)).digest('hex')
}

async function askService(): Promise<ApiDocument> {
  const folder = await mkdtemp(join(tmpdir(), 'client-codegen-'))
  const db = await openSqlite({ path: join(folder, 'main.db') })
  try {
    await migrate(db)
    // The document needs no provider: nothing calls it.
    const config = parseConfig({ NODE_ENV: 'test', ISSUER_URL: 'http://127.0.0.1:1' }, () => '')
    const services = await createServices(config, {
      clock: systemClock,
      random: systemRandom,
      log: silentLog,
      fetch,
      db,
    })
    const app = await buildApp(services)
    const { body } = await app.inject('/openapi.json')
    await app.close()
    await services.close()
    return JSON.parse(body) as ApiDocument
  } finally {
    await db.close()
    await rm(folder, { recursive: true, force: true })
  }
}
