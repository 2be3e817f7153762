import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Database } from '../../../src/db/database.ts'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { sql } from '../../../src/db/sql.ts'
import { startIdentityProvider } from '../../../src/sandbox/identity-provider/identity-provider.ts'
import { startPostgres } from '../../../test/support/postgres.ts'
import { median } from '../comparison.ts'
import { sendAll } from '../load.ts'
import { type Server, serviceSpec, startServer } from '../server.ts'
import { seeded } from './compare-callbacks.ts'
import { callbackRequest, SECRET } from './seed.ts'

export interface ConfirmedOutcome {
  ratio: number
  confirmedPerSecond: number
  unconfirmedPerSecond: number
}

const CONNECTIONS = 64
const RUNTIME_LATENCY_MS = 5
const TYPES = {
  report: { assistant_id: 'report', output_key: 'report', may_pause: false },
  draft: { assistant_id: 'draft', output_key: 'report', may_pause: true },
}
const GIVE_UP_MS = 60_000

/**
 * Ended jobs per second after callbacks that the runtime must confirm, because the graph may pause, as a share of those
 * after callbacks that prove the end. The runtime answers each question after 5 ms.
 */
export async function compareConfirmed({ rounds, size }: { rounds: number; size: number }): Promise<ConfirmedOutcome> {
  const postgres = await startPostgres()
  const issuer = await startIdentityProvider()
  const folder = mkdtempSync(join(tmpdir(), 'bench-confirmed-'))
  const servers: Server[] = []
  let db: Database | undefined
  try {
    const perType = size * (rounds + 1)
    const url = await seeded(
      await postgres.createDatabase(),
      { count: perType, type: 'report' },
      { count: perType, type: 'draft', from: perType },
    )
    db = await openPostgres({ url })
    const types = join(folder, 'job-types.json')
    writeFileSync(types, JSON.stringify({ types: TYPES }))
    const runtime = await startServer({
      script: './servers/slow-runtime.ts',
      env: { LATENCY_MS: String(RUNTIME_LATENCY_MS) },
    })
    servers.push(runtime)
    const service = await startServer(
      serviceSpec({
        NODE_ENV: 'development',
        DATABASE_URL: url,
        ISSUER_URL: issuer.issuer,
        WEBHOOK_SECRET: SECRET,
        JOB_TYPES_FILE: types,
        RUNTIME_URL: `http://127.0.0.1:${runtime.port}`,
      }),
    )
    servers.push(service)
    const unconfirmed: number[] = []
    const confirmed: number[] = []
    for (let round = 0; round <= rounds; round++) {
      const range = { from: round * size, size, service, db }
      const plain = await endedPerSecond({ ...range, type: 'report' })
      const asked = await endedPerSecond({ ...range, from: perType + range.from, type: 'draft' })
      // The first round warms up.
      if (round > 0) unconfirmed.push(plain)
      if (round > 0) confirmed.push(asked)
    }
    return {
      ratio: median(confirmed.map((rate, n) => rate / (unconfirmed[n] ?? 1))),
      confirmedPerSecond: median(confirmed),
      unconfirmedPerSecond: median(unconfirmed),
    }
  } finally {
    for (const server of servers.reverse()) await server.stop()
    await db?.close()
    await issuer.close()
    await postgres.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

interface Round {
  service: Server
  db: Database
  type: string
  from: number
  size: number
}

async function endedPerSecond({ service, db, type, from, size }: Round): Promise<number> {
  const requests = Array.from({ length: size }, (_, n) => callbackRequest(from + n, type))
  const startedMs = performance.now()
  const deadline = AbortSignal.timeout(GIVE_UP_MS)
  await sendAll({ port: service.port, requests, connections: CONNECTIONS })
  const ids = sql`select 'job_' || n from generate_series(${from}::bigint, ${from + size - 1}::bigint) as n`
  for (;;) {
    const [row] = await db.query<{ open: number }>(
      sql`select count(*) as open from jobs where id in (${ids}) and status <> 'completed'`,
    )
    if (row?.open === 0) return size / ((performance.now() - startedMs) / 1_000)
    deadline.throwIfAborted()
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}
