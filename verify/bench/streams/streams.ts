import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startIdentityProvider } from '../../../src/sandbox/identity-provider/identity-provider.ts'
import { startPostgres } from '../../../test/support/postgres.ts'
import { seeded } from '../callbacks/compare-callbacks.ts'
import { callbackRequest, SECRET, USERS } from '../callbacks/seed.ts'
import { applyLoad } from '../load.ts'
import { type Server, serviceSpec, startServer } from '../server.ts'
import { openViewer, type Viewer } from './viewers.ts'

export interface StreamOutcome {
  idleStreams: number
  kilobytesPerStream: number
  viewers: number
  eventsPerSecond: number
  /** Events that their owner did not get, or that another user got. */
  lost: number
  p99Ms: number
}

const IDLE = 10_000
const VIEWERS = 1_000
/** A thousand callbacks a second. */
const PACE = { connections: 100, everyMs: 100 }
const OPEN_AT_ONCE = 100
const SETTLE_MS = 3_000

/** Measures the memory of idle streams. Then sends 1,000 events a second to 1,000 viewers; each owner has two streams. */
export async function measureStreams({ durationMs }: { durationMs: number }): Promise<StreamOutcome> {
  const postgres = await startPostgres()
  const issuer = await startIdentityProvider()
  const folder = mkdtempSync(join(tmpdir(), 'bench-streams-'))
  let service: Server | undefined
  const open: Viewer[] = []
  try {
    const jobs = 2 * durationMs
    const url = await seeded(await postgres.createDatabase(), { count: jobs })
    const types = join(folder, 'job-types.json')
    const report = { assistant_id: 'report', output_key: 'report', may_pause: false }
    writeFileSync(types, JSON.stringify({ types: { report } }))
    service = await startServer(
      serviceSpec({
        NODE_ENV: 'development',
        DATABASE_URL: url,
        ISSUER_URL: issuer.issuer,
        WEBHOOK_SECRET: SECRET,
        JOB_TYPES_FILE: types,
        RATE_LIMIT_AUTHENTICATED: '1000000000',
      }),
    )
    const { port, pid } = service
    const tokens = Array.from({ length: USERS }, (_, n) => issuer.mint({ sub: `user-${n}` }))
    const tokenAt = (n: number) => tokens[n % USERS] ?? ''

    const latenciesMs: number[] = []
    let strayed = 0
    for (let n = 0; n < VIEWERS; n++) {
      const owner = n % USERS
      open.push(
        await openViewer({ port, token: tokenAt(n) }, (data) => {
          const event = JSON.parse(data) as { created_at: string; data: { job_id: string } }
          latenciesMs.push(Date.now() - Date.parse(event.created_at))
          if (Number(event.data.job_id.slice('job_'.length)) % USERS !== owner) strayed += 1
        }),
      )
    }
    const callbacks = Array.from({ length: jobs }, (_, n) => callbackRequest(n))
    const sample = await applyLoad({ port, requests: callbacks, durationMs, ...PACE })
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS))
    const expected = sample.requests * (VIEWERS / USERS)
    const p99Ms = latenciesMs.sort((a, b) => a - b)[Math.floor(latenciesMs.length * 0.99)] ?? Number.NaN

    const beforeKilobytes = residentKilobytes(pid)
    for (let from = 0; from < IDLE; from += OPEN_AT_ONCE) {
      const batch = Array.from({ length: OPEN_AT_ONCE }, (_, n) => openViewer({ port, token: tokenAt(from + n) }))
      open.push(...(await Promise.all(batch)))
    }
    return {
      idleStreams: IDLE,
      kilobytesPerStream: (residentKilobytes(pid) - beforeKilobytes) / IDLE,
      viewers: VIEWERS,
      eventsPerSecond: sample.requestsPerSecond,
      lost: Math.max(0, expected - latenciesMs.length) + strayed,
      p99Ms,
    }
  } finally {
    for (const viewer of open) viewer.close()
    await service?.stop()
    await issuer.close()
    await postgres.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Linux only. */
function residentKilobytes(pid: number): number {
  return Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
}
