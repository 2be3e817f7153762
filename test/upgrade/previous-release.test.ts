import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { HttpClient, type TestResponse } from '../support/http-client.ts'
import { previousRelease } from '../support/previous-release.ts'
import { needsPostgres, needsRedis } from '../support/services.ts'
import { startTwoNodes, type TwoNodes } from '../support/two-nodes.ts'
import { until } from '../support/until.ts'

const CLIENTS = 3
const REQUESTS_BETWEEN = 40

describe('an upgrade from the previous release', { skip: needsPostgres().skip || needsRedis().skip }, () => {
  for (const order of [['a', 'b'] as const, ['b', 'a'] as const]) {
    test(`node ${order[0]} first: both releases share the database under load, and no request or job is lost`, async () => {
      const { main, jobTypesFile } = previousRelease()
      const settings = { SHUTDOWN_TIMEOUT_MS: '4000', JOB_TYPES_FILE: jobTypesFile }
      const nodes = await startTwoNodes(settings, { main })
      const load = startLoad(nodes)
      for (const name of order) {
        const place = nodes[name]
        await load.more(REQUESTS_BETWEEN)
        place.served.program.signal('SIGTERM')
        assert.equal((await place.served.program.untilEnded()).code, 0)
        await place.startAgain()
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
      await nodes.close()
    })
  }
})

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
