import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buildApp } from '../../src/app.ts'
import { parseJobTypesFile } from '../../src/cli/startup/load-job-types.ts'
import { parseConfig, type Variant } from '../../src/config.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import { migrate } from '../../src/db/migrate.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { createServices } from '../../src/services.ts'

/** The text of `GET /openapi.json`, as a service of this variant with these job types gives it. */
export async function describeApi(variant: Variant, jobTypesFile: string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'openapi-'))
  const db = await openSqlite({ path: join(folder, 'main.db') })
  await migrate(db)
  const env = { NODE_ENV: 'test', ISSUER_URL: 'http://127.0.0.1:1', API_VARIANT: variant }
  const config = parseConfig(env, () => '')
  const outside = { clock: systemClock, random: systemRandom, log: silentLog, fetch, db }
  const services = await createServices(config, { ...outside, ...parseJobTypesFile(jobTypesFile) })
  const app = await buildApp(services)
  try {
    return (await app.inject('/openapi.json')).body
  } finally {
    await app.close()
    await services.close()
    await db.close()
    await rm(folder, { recursive: true, force: true })
  }
}
