import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type AddressInfo, connect, createServer } from 'node:net'
import { describe, test } from 'node:test'
import { UnavailableError } from '../../src/core/errors.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { sql } from '../../src/db/sql.ts'
import { psql } from '../support/postgres.ts'
import { needsPostgres, sharedPostgresDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'

/** Passes everything on, but holds the check of each new connection until `release` is called. */
async function startHoldingProxy(port: number) {
  let held: (() => void)[] | null = null
  const server = createServer((client) => {
    const upstream = connect(port, '127.0.0.1')
    upstream.pipe(client)
    client.on('data', (bytes: Buffer) => {
      const pass = () => upstream.write(bytes)
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
})
