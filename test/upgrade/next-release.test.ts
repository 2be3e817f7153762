import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { HttpClient, type TestResponse } from '../support/http-client.ts'
import { NEXT_MIGRATION, nextRelease } from '../support/next-release.ts'
import { psql } from '../support/postgres.ts'
import { runProgram } from '../support/program.ts'
import { settingsWith } from '../support/served.ts'
import { needsPostgres, needsRedis } from '../support/services.ts'
import { startTwoNodes, type TwoNodes } from '../support/two-nodes.ts'
import { until } from '../support/until.ts'

const CLIENTS = 3
const REQUESTS_BETWEEN = 40

describe('an upgrade to the next release', { skip: needsPostgres().skip || needsRedis().skip }, () => {
  const main = nextRelease()
  for (const order of [['a', 'b'] as const, ['b', 'a'] as const]) {
    test(`node ${order[0]} first: both releases share the database under load, and no request or job is lost`, async () => {
      // A node that stops listens for a quarter of this time: until then the balancer must have seen that it drains.
      const nodes = await startTwoNodes({ SHUTDOWN_TIMEOUT_MS: '12000' })
      const load = startLoad(nodes)
      for (const name of order) {
        const place = nodes[name]
        await load.more(REQUESTS_BETWEEN)
        place.served.program.signal('SIGTERM')
        assert.equal((await place.served.program.untilEnded()).code, 0)
        await place.startAgain({ main })
        await until(() => nodes.balancer.isReady(place.name))
      }
      await load.more(REQUESTS_BETWEEN)
      await load.stop()
      assert.deepEqual(load.failed, [])
      const token = nodes.token({ sub: 'root', scopes: ['admin:*'] })
      await until(async () => {
        const answer = await nodes.a.served.request<{ counts: Record<string, number> }>('GET', '/v1/jobs/counts', {
          token,
        })
        return answer.body.counts.completed === load.jobs
      })
      await checkMigrated(nodes)
      await nodes.close()
    })
  }
})

/** The migration ran once, the running nodes built its index, and this release refuses the database from now on. */
async function checkMigrated({ databaseUrl }: TwoNodes): Promise<void> {
  const applied = `select name from schema_migrations where name = '${NEXT_MIGRATION}'`
  assert.equal(await psql(databaseUrl, applied), NEXT_MIGRATION)
  assert.equal(await psql(databaseUrl, 'select color, uses from colors'), 'red|0')
  const isBuilt = `select indisvalid from pg_index where indexrelid = to_regclass('projects_by_color')`
  await until(async () => (await psql(databaseUrl, isBuilt)) === 't')
  const refused = await runProgram(['serve'], { settings: await settingsWith({ DATABASE_URL: databaseUrl }) })
  assert.equal(refused.code, 78)
  assert.match(
    refused.errors,
    new RegExp(`^The database has migration ${NEXT_MIGRATION}, unknown to this release: .*\n$`),
  )
}

/** Clients that read and write through the balancer, and start jobs, until they are stopped. */
function startLoad(nodes: TwoNodes) {
  const requests: [method: string, path: string, body?: object][] = [
    ['GET', '/v1/projects'],
    ['POST', '/v1/projects', { name: 'during an upgrade' }],
    ['POST', '/jobs', { type: 'report', input: { title: 'during an upgrade', n: 1 } }],
    ['GET', '/jobs'],
  ]
  const load = { goesOn: true, answered: 0, jobs: 0, failed: [] as unknown[] }
  const ask = async (client: number) => {
    const http = new HttpClient(nodes.balancer.url)
    for (let n = client; load.goesOn; n++) {
      const [method, path, body] = requests[n % requests.length] ?? ['GET', '/jobs']
      // A user for every fifty requests keeps the rate limit out of it.
      const token = nodes.token({
        sub: `busy-${client}-${Math.floor(n / 50)}`,
        scopes: ['read:projects', 'write:projects'],
      })
      const answer = await http.request(method, path, { token, ...(body && { body }) }).catch((error: unknown) => error)
      const { status = 0 } = answer as Partial<TestResponse>
      load.answered += 1
      if (status === 202) load.jobs += 1
      if (status < 200 || status > 299) load.failed.push(answer)
    }
    http.close()
  }
  const clients = Array.from({ length: CLIENTS }, (_, client) => ask(client))
  return {
    get jobs() {
      return load.jobs
    },
    failed: load.failed,
    more: async (count: number) => {
      const before = load.answered
      await until(() => load.answered > before + count)
    },
    stop: async () => {
      load.goesOn = false
      await Promise.all(clients)
    },
  }
}
