import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type AddressInfo, connect, createServer } from 'node:net'
import { describe, test } from 'node:test'
import { UnavailableError } from '../../src/core/errors.ts'
import { LockTimeout } from '../../src/db/database.ts'
import { meteredDatabase } from '../../src/db/metered-database.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { sql } from '../../src/db/sql.ts'
import { Metrics } from '../../src/ops/metrics/metrics.ts'
import { MetricsText } from '../support/metrics-text.ts'
import { PATIENCE_MS } from '../support/patience.ts'
import { psql } from '../support/postgres.ts'
import { needsPostgres, sharedPostgresDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'

/** Passes everything on, but changed by `edit`, and holds the check of each new connection until `release` is called. */
async function startHoldingProxy(port: number, edit = (bytes: Buffer) => bytes) {
  let held: (() => void)[] | null = null
  const server = createServer((client) => {
    const upstream = connect(port, '127.0.0.1')
    upstream.pipe(client)
    client.on('data', (bytes: Buffer) => {
      const pass = () => upstream.write(edit(bytes))
      if (held && bytes.includes('transaction_read_only')) held.push(pass)
      else pass()
    })
    for (const [socket, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      socket.on('error', () => {})
      socket.on('close', () => other.destroy())
    }
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    hold: () => {
      held = []
    },
    heldCount: () => held?.length ?? 0,
    release: () => {
      for (const pass of held ?? []) pass()
      held = null
    },
    close: () => server.close(),
  }
}

describe('the connections to PostgreSQL', needsPostgres(), () => {
  test('a new connection that is ready after its waiter has given up is not lost to the pool', async () => {
    const database = await sharedPostgresDatabase()
    const url = new URL(database.url)
    const proxy = await startHoldingProxy(Number(url.port))
    url.port = String(proxy.port)
    const db = await openPostgres({ url: url.href, poolSize: 1, connectTimeoutMs: 3_000 })
    const gate = Promise.withResolvers<void>()
    let pid = 0
    const first = db.transaction(async (tx) => {
      pid = (await tx.query<{ pid: number }>(sql`select pg_backend_pid() as pid`))[0]?.pid ?? 0
      await gate.promise
      await tx.query(sql`select 1 as one`)
    })
    await until(() => pid > 0)
    let hasGivenUp = false
    const waiting = db
      .transaction((tx) => tx.query(sql`select 1 as one`))
      .catch((error: unknown) => {
        hasGivenUp = true
        return error
      })
    proxy.hold()
    await psql(database.url, `select pg_terminate_backend(${pid})`)
    gate.resolve()
    await assert.rejects(first, UnavailableError)
    await until(() => proxy.heldCount() > 0 || hasGivenUp)
    assert.ok((await waiting) instanceof UnavailableError)
    proxy.release()
    await until(async () => {
      const rows = await db.transaction((tx) => tx.query(sql`select 1 as one`)).catch(() => [])
      return rows.length === 1
    })
    await db.close()
    proxy.close()
    await database.drop()
  })

  test('a statement that fails before it is prepared does not fail the equal ones behind it on the connection', async (t) => {
    const database = await sharedPostgresDatabase()
    const other = await openPostgres({ url: database.url })
    await other.query(sql`create table t (n integer)`)
    // Without a limit to the wait for a lock: the first statement ends because the test cancels it.
    const url = `${database.url}?lock_timeout=0`
    const db = await openPostgres({ url, readConnections: 1, queryTimeoutMs: PATIENCE_MS })
    t.after(async () => {
      await Promise.all([db.close(), other.close()])
      await database.drop()
    })
    const [pipeline] = await db.query<{ pid: number }>(sql`select pg_backend_pid() as pid`)
    const isWaiting = async () => {
      const waiting = sql`
        select 1 as one from pg_stat_activity where pid = ${pipeline?.pid ?? 0} and wait_event_type = 'Lock'`
      return (await other.query(waiting)).length === 1
    }
    const { answered } = await other.transaction(async (tx) => {
      await tx.query(sql`lock table t in access exclusive mode`)
      const [first, ...behind] = Array.from({ length: 5 }, () => db.query(sql`select count(*) as rows from t`))
      const failed = assert.rejects(first as Promise<unknown>, UnavailableError)
      await until(isWaiting)
      await other.query(sql`select pg_cancel_backend(${pipeline?.pid ?? 0})`)
      await failed
      const answered = Promise.all(behind)
      await Promise.race([answered, until(isWaiting)])
      return { answered }
    })
    assert.deepEqual(await answered, Array(4).fill([{ rows: 0 }]))
  })

  test('a lock that another transaction keeps is counted as a lock timeout, and not as an outage of the database', async (t) => {
    const database = await sharedPostgresDatabase()
    const metrics = new Metrics()
    const db = meteredDatabase(await openPostgres({ url: database.url }), metrics)
    t.after(async () => {
      await db.close()
      await database.drop()
    })
    await db.query(sql`create table t (n integer)`)
    const lock = sql`lock table t in access exclusive mode nowait`
    await db.transaction(async (tx) => {
      await tx.query(lock)
      await assert.rejects(
        db.transaction((other) => other.query(lock)),
        LockTimeout,
      )
    })
    const text = new MetricsText(await metrics.render())
    assert.equal(text.sum('database_lock_timeouts_total', { engine: 'postgres', kind: 'transaction' }), 1)
    assert.equal(text.sum('database_unavailable_total'), 0)
    assert.equal(db.transactionFailure, null)
  })

  test('a connection has the isolation level read committed, whatever the default of the role or the database is', async (t) => {
    const database = await sharedPostgresDatabase()
    const name = new URL(database.url).pathname.slice(1)
    await psql(
      database.url,
      `alter role current_user in database ${name} set default_transaction_isolation = serializable`,
    )
    assert.equal(await psql(database.url, 'show transaction_isolation'), 'serializable')
    const url = new URL(database.url)
    url.searchParams.set('options', '-c work_mem=5MB')
    const db = await openPostgres({ url: url.href })
    t.after(async () => {
      await db.close()
      await database.drop()
    })
    assert.deepEqual(await db.query(sql`select current_setting('work_mem') as kept`), [{ kept: '5MB' }])
    const level = sql`select current_setting('transaction_isolation') as level`
    const levels = await Promise.all([
      db.query(level),
      db.transaction((tx) => tx.query(level)),
      db.transaction((tx) => tx.query(level), { urgent: true }),
    ])
    assert.deepEqual(levels, Array(3).fill([{ level: 'read committed' }]))
  })

  test('a pooler that drops the options of connections is refused if the role has another isolation level', async (t) => {
    const database = await sharedPostgresDatabase()
    const url = new URL(database.url)
    // Of the same length, because the message has its length in front.
    const dropped = (bytes: Buffer) =>
      Buffer.from(
        bytes
          .toString('latin1')
          .replace('transaction_isolation=read\\ committed', 'transaction_isolation=serializable   '),
        'latin1',
      )
    const proxy = await startHoldingProxy(Number(url.port), dropped)
    url.port = String(proxy.port)
    t.after(async () => {
      proxy.close()
      await database.drop()
    })
    await assert.rejects(openPostgres({ url: url.href }), {
      name: 'UnfitServerError',
      message: /^Statements run with the isolation level serializable: set default_transaction_isolation of the role/,
    })
  })
})
