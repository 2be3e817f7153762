import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { startRedis } from '../support/redis.ts'
import { type Served, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'
import { needsRedis } from '../support/services.ts'
import { until } from '../support/until.ts'

interface Ready {
  checks: { rate_limits: { state: string; detail: string } }
}

async function stateOfLimits(served: Served): Promise<string> {
  const { status, body } = await served.request<Ready>('GET', '/readyz')
  assert.equal(status, 200, 'a service that counts alone is ready')
  return body.checks.rate_limits.state
}

test('a Redis that is down at the start is logged once and shown in /readyz; requests are counted locally and served', async () => {
  const served = await startServe({ settings: { REDIS_URL: `redis://127.0.0.1:${await freePort()}` } })
  await until(async () => (await stateOfLimits(served)) === 'degraded')
  const first = await served.request('GET', '/openapi.json')
  const second = await served.request('GET', '/openapi.json')
  assert.deepEqual([first.status, second.status], [200, 200])
  assert.equal(Number(second.headers['ratelimit-remaining']), Number(first.headers['ratelimit-remaining']) - 1)
  served.program.signal('SIGINT')
  const { code, output, errors } = await served.program.untilEnded()
  assert.deepEqual({ code, errors }, { code: 0, errors: '' })
  assert.equal(output.match(/"limiter\.redis_lost"/g)?.length, 1, output)
})

describe('Redis', needsRedis(), () => {
  test('no request is refused while Redis dies and comes back', async () => {
    const redis = await startRedis()
    try {
      const served = await startServe({ settings: { REDIS_URL: redis.url } })
      await until(async () => (await stateOfLimits(served)) === 'ok')
      await redis.kill()
      assert.equal((await served.request('GET', '/openapi.json')).status, 200)
      await until(async () => (await stateOfLimits(served)) === 'degraded')
      await redis.restart()
      await until(async () => (await stateOfLimits(served)) === 'ok')
      assert.equal((await served.request('GET', '/openapi.json')).status, 200)
    } finally {
      await redis.stop()
    }
  })
})
