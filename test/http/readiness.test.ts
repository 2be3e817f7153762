import assert from 'node:assert/strict'
import { after, describe, test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import { toRfc3339 } from '../../src/core/clock.ts'
import { UnavailableError } from '../../src/core/errors.ts'
import type { Log } from '../../src/core/log.ts'
import { type Database, LockTimeout } from '../../src/db/database.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { sql } from '../../src/db/sql.ts'
import { fillDisk } from '../support/almost-full-disk.ts'
import { MetricsText } from '../support/metrics-text.ts'
import { forEachService } from '../support/service.ts'
import { sharedMigratedDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'

interface Ready {
  status: string
  checks: Record<string, { state: string; detail: string | null; since: string | null }>
}

/** The database with a ping that is counted and can be made to fail, as its transactions can. */
function probed(db: Database) {
  const state = { pings: 0, fault: null as Error | null, transactionFault: null as Error | null }
  const ping = async () => {
    state.pings += 1
    if (state.fault) throw state.fault
    await db.ping()
  }
  const probedDb = new Proxy(db, {
    get: (target, name) => {
      if (name === 'ping') return ping
      if (name === 'transaction' && state.transactionFault) return () => Promise.reject(state.transactionFault)
      const value = Reflect.get(target, name) as unknown
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
  return { state, db: probedDb }
}

/** From now on the database answers reads, and refuses the heartbeat of every node; until the result is called. */
async function refuseHeartbeats(db: Database): Promise<() => Promise<unknown>> {
  if (db.engine === 'sqlite') {
    await db.query(sql`pragma query_only = on`)
    return () => db.query(sql`pragma query_only = off`)
  }
  await db.query(sql`
    create function refuse() returns trigger language plpgsql
    as 'begin raise exception using errcode = ''53100''; end'`)
  await db.query(sql`create trigger refuse before update on nodes execute function refuse()`)
  return () => db.query(sql`drop trigger refuse on nodes`)
}

const closing: (() => Promise<void>)[] = []
after(async () => {
  for (const close of closing) await close()
})

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
      const since = toRfc3339(service.clock.calendar())
      const database = { state: 'down', detail: null, since }
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

    test('/readyz says since when a dependency is not ok, until it is ok again', async () => {
      const { state, service, ask } = await start()
      const since = async () => {
        await service.clock.leap(1_000)
        return (await ask()).body.checks.database?.since
      }
      assert.equal(await since(), null)
      state.fault = new Error('gone')
      const began = await since()
      assert.equal(began, toRfc3339(service.clock.calendar()))
      assert.equal(await since(), began, 'the time of the first failure')
      state.fault = null
      assert.equal(await since(), null)
      state.fault = new Error('gone again')
      assert.notEqual(await since(), began)
    })

    test('/readyz is degraded, with the reason, while the database answers reads and takes no write of this node', async () => {
      const db = await under.engine.openDatabase()
      const service = await under.start({ db })
      const database = async () => {
        await service.clock.leap(1_000)
        const { status, body } = await service.request<Ready>('GET', '/readyz')
        assert.deepEqual([status, body.status], [200, 'ready'])
        return body.checks.database
      }
      const ageSeconds = async () => {
        const text = new MetricsText(await service.services.metrics.render())
        return text.sum('node_last_write_age_seconds')
      }
      assert.deepEqual(await database(), { state: 'ok', detail: db.engine, since: null })
      assert.ok((await ageSeconds()) < 9)
      const allow = await refuseHeartbeats(db)
      const reason = db.engine === 'sqlite' ? 'the database is read-only' : 'the disk is full'
      const degraded = new RegExp(`^this node has written no heartbeat for \\d+ s: ${reason}$`)
      await until(async () => {
        const { state, detail } = (await database()) ?? {}
        return state === 'degraded' && degraded.test(detail ?? '')
      })
      assert.ok((await ageSeconds()) >= 9)
      await allow()
      await until(async () => (await database())?.state === 'ok')
    })

    test('/readyz is degraded, with the reason, while transactions fail', async () => {
      const { state, service, ask } = await start()
      const database = async () => {
        await service.clock.leap(1_000)
        return (await ask()).body.checks.database
      }
      const cause = Object.assign(new Error('too many clients at 10.1.2.3'), { code: '53300' })
      state.transactionFault = new UnavailableError('The database is unavailable', { cause })
      const detail = 'changes fail: all connections of the server are in use'
      await until(async () =>
        isDeepStrictEqual({ ...(await database()), since: null }, { state: 'degraded', detail, since: null }),
      )
      state.transactionFault = null
      await until(async () => (await database())?.state === 'ok')
    })

    test('/readyz does not blame the database for a transaction whose own work was refused', async () => {
      const { service, ask } = await start()
      const { db } = service.services
      const refused = db.transaction(async () => {
        throw new UnavailableError('No agent runtime is configured')
      })
      await assert.rejects(refused)
      await service.clock.leap(1_000)
      assert.equal((await ask()).body.checks.database?.state, 'ok')
    })

    test('/readyz is degraded for a minute after several statements gave up waiting for a lock', async () => {
      const { state, service, ask } = await start()
      const database = async () => {
        await service.clock.leap(1_000)
        return (await ask()).body.checks.database?.state
      }
      const { db } = service.services
      const giveUp = async () => {
        state.transactionFault = new LockTimeout(undefined)
        const failed = db.transaction(async () => {})
        // The transactions of the service itself go on.
        state.transactionFault = null
        await assert.rejects(failed)
      }
      for (let count = 0; count < 4; count++) await giveUp()
      assert.equal(await database(), 'ok', 'single locked rows')
      await giveUp()
      await until(async () => (await database()) === 'degraded')
      await service.clock.leap(60_000)
      // The heartbeat was too late as well.
      await until(async () => (await database()) === 'ok')
    })

    if (under.engine.name === 'postgres') {
      test('/readyz is degraded, with the reason, while another session locks the jobs, until a minute after', async () => {
        const { url, drop } = await sharedMigratedDatabase()
        closing.push(drop)
        const open = async (queryTimeoutMs: number) => {
          const db = await openPostgres({ url, queryTimeoutMs })
          closing.unshift(() => db.close())
          return db
        }
        const [other, service] = [await open(40_000), await under.start({ db: await open(5_000) })]
        const listJobs = async () => (await service.request('GET', '/jobs', { token: service.tokenFor() })).status
        const database = async () => {
          await service.clock.leap(1_000)
          const { status, body } = await service.request<Ready>('GET', '/readyz')
          assert.deepEqual([status, body.status], [200, 'ready'])
          return body.checks.database
        }
        assert.deepEqual([await listJobs(), (await database())?.state], [200, 'ok'])
        await other.transaction(async (tx) => {
          await tx.query(sql`lock table jobs in access exclusive mode`)
          const statuses = await Promise.all(Array.from({ length: 5 }, listJobs))
          assert.deepEqual(new Set(statuses), new Set([503]))
          await until(async () => {
            await tx.query(sql`select 1 as not_idle`)
            const { state, detail } = (await database()) ?? {}
            return state === 'degraded' && detail === 'another session holds a lock: statements give up waiting'
          })
        })
        assert.deepEqual([await listJobs(), (await database())?.state], [200, 'degraded'])
        await service.clock.leap(60_000)
        // The heartbeat was too late as well.
        await until(async () => (await database())?.state === 'ok')
      })
    }

    test('/readyz is degraded while less than a tenth of the disk of the embedded database is free', async (t) => {
      const { service, ask } = await start()
      const disk = async () => {
        await service.clock.leap(5_000)
        const { status, body } = await ask()
        assert.deepEqual([status, body.status], [200, 'ready'])
        return body.checks.disk
      }
      const isEmbedded = service.db.engine === 'sqlite'
      fillDisk(t, 0.099)
      const detail = 'almost full: 9 % of the disk of DATA_DIR is free'
      const filled = await disk()
      assert.partialDeepStrictEqual(filled, isEmbedded ? { state: 'degraded', detail } : { state: 'ok', detail: null })
      fillDisk(t, 0.1)
      assert.deepEqual(await disk(), { state: 'ok', detail: isEmbedded ? '10 % free' : null, since: null })
    })

    test('/readyz shows a drain at once, even if a recent report is cached', async () => {
      const { service, ask } = await start()
      assert.equal((await ask()).status, 200)
      service.services.readiness.startDraining()
      const { status, body } = await ask()
      const since = toRfc3339(service.clock.calendar())
      const checks = { process: { state: 'down', detail: 'shutting down', since } }
      assert.deepEqual({ status, body }, { status: 503, body: { status: 'not_ready', checks } })
    })
  })
})
