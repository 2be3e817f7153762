import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Log } from '../../src/core/log.ts'
import type { Database } from '../../src/db/database.ts'
import { forEachService } from '../support/service.ts'
import { until } from '../support/until.ts'

interface Ready {
  status: string
  checks: Record<string, { state: string; detail: string | null }>
}

/** The database with a ping that is counted and can be made to fail. */
function probed(db: Database) {
  const state = { pings: 0, fault: null as Error | null }
  const ping = async () => {
    state.pings += 1
    if (state.fault) throw state.fault
    await db.ping()
  }
  const probedDb = new Proxy(db, {
    get: (target, name) => {
      if (name === 'ping') return ping
      const value = Reflect.get(target, name) as unknown
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
  return { state, db: probedDb }
}

describe('/readyz', () => {
  forEachService((under) => {
    const start = async (log?: Log) => {
      const { state, db } = probed((await under.shared()).db)
      const service = await under.start({ db, ...(log ? { log } : {}) })
      const ask = () => service.request<Ready>('GET', '/readyz')
      return { state, service, ask }
    }

    test('/readyz asks the dependencies once a second, for all callers together', async () => {
      const { state, service, ask } = await start()
      const answers = await Promise.all(Array.from({ length: 50 }, ask))
      for (const { status, body } of answers) assert.deepEqual([status, body.status], [200, 'ready'])
      assert.equal(state.pings, 1)
      await service.clock.leap(999)
      await ask()
      assert.equal(state.pings, 1)
      await service.clock.leap(1)
      await Promise.all(Array.from({ length: 50 }, ask))
      assert.equal(state.pings, 2)
    })

    test('/readyz has the same JSON when the service is not ready, with the checks that fail, and writes no stack to the log', async () => {
      const lines: unknown[] = []
      const write = (...line: unknown[]) => void lines.push(line)
      const { state, service, ask } = await start({ debug: write, info: write, warn: write, error: write })
      const ready = await ask()
      state.fault = new Error('connect ECONNREFUSED 10.1.2.3:5432')
      await service.clock.leap(1_000)
      lines.length = 0
      const down = await ask()
      assert.equal(down.status, 503)
      assert.match(String(down.headers['content-type']), /^application\/json; ?charset=utf-8$/)
      assert.equal(down.headers['retry-after'], '1')
      const database = { state: 'down', detail: null }
      assert.deepEqual(down.body, { status: 'not_ready', checks: { ...ready.body.checks, database } })
      assert.doesNotMatch(down.text, /ECONN|10\.1\.2\.3/)
      await until(() => JSON.stringify(lines).includes('request.completed'))
      const logged = JSON.stringify(lines, (_key, value: unknown) => (value instanceof Error ? value.stack : value))
      assert.doesNotMatch(logged, /ECONNREFUSED|\n +at /)
      assert.doesNotMatch(logged, /request\.refused/)

      state.fault = null
      assert.equal((await ask()).status, 503, 'for the rest of its second')
      await service.clock.leap(1_000)
      assert.equal((await ask()).status, 200)
    })

    test('/readyz shows a drain at once, even if a recent report is cached', async () => {
      const { service, ask } = await start()
      assert.equal((await ask()).status, 200)
      service.services.readiness.startDraining()
      const { status, body } = await ask()
      const checks = { process: { state: 'down', detail: 'shutting down' } }
      assert.deepEqual({ status, body }, { status: 503, body: { status: 'not_ready', checks } })
    })
  })
})
