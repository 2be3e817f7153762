import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startIdentityProvider } from '../../../src/sandbox/identity-provider/identity-provider.ts'
import { startPostgres } from '../../../test/support/postgres.ts'
import { seeded } from '../callbacks/compare-callbacks.ts'
import { SECRET } from '../callbacks/seed.ts'
import { median } from '../comparison.ts'
import { type Server, serviceSpec, startServer } from '../server.ts'

export interface LargeOutputOutcome {
  /** The longest time for which a callback with an output of 9 MB, and its read, blocked the event loop. */
  loopHeldMs: number
  /** The most memory that they added, as a multiple of the output. */
  memoryFactor: number
  /** From the callback with an output of 3 MB to the last byte of the job at the client. */
  threeMegabytesMs: number
}

const MB = 1024 * 1024
const ROUNDS = 5
const TIMEOUT_MS = 20_000

/** A callback with a large output, and the read of its job, on PostgreSQL. */
export async function measureLargeOutputs(): Promise<LargeOutputOutcome> {
  const postgres = await startPostgres()
  const issuer = await startIdentityProvider()
  const folder = mkdtempSync(join(tmpdir(), 'bench-outputs-'))
  let service: Server | undefined
  try {
    const url = await seeded(await postgres.createDatabase(), { count: 3 * ROUNDS })
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
        METRICS_PUBLIC: 'true',
      }),
    )
    const { port, pid } = service
    const token = issuer.mint({ sub: 'admin', scopes: ['admin:*'] })
    const deliver = async (n: number, bytes: number) => {
      const startedMs = performance.now()
      const signal = AbortSignal.timeout(TIMEOUT_MS)
      const headers = { 'x-webhook-secret': SECRET, 'content-type': 'application/json' }
      const sent = await fetch(`http://127.0.0.1:${port}/webhooks/jobs/report`, {
        method: 'POST',
        headers,
        body: callbackBody(n, bytes),
        signal,
      })
      if (sent.status !== 200) throw new Error(`The callback was answered ${sent.status}: ${await sent.text()}`)
      await sent.arrayBuffer()
      const read = await fetch(`http://127.0.0.1:${port}/jobs/job_${n}`, {
        headers: { authorization: `Bearer ${token}` },
        signal,
      })
      const { byteLength } = await read.arrayBuffer()
      if (byteLength < bytes) throw new Error(`The job has ${byteLength} bytes of ${bytes}`)
      return performance.now() - startedMs
    }
    const threes: number[] = []
    for (let n = 0; n < ROUNDS; n++) threes.push(await deliver(n, 3 * MB))
    const beforeBytes = residentBytes(pid)
    let peakBytes = beforeBytes
    const sampling = setInterval(() => {
      peakBytes = Math.max(peakBytes, residentBytes(pid))
    }, 5)
    for (let n = ROUNDS; n < 2 * ROUNDS; n++) await deliver(n, 9 * MB)
    // The loop is measured when the code is warm, the memory from the first large output on.
    await loopHeldMs(port)
    for (let n = 2 * ROUNDS; n < 3 * ROUNDS; n++) await deliver(n, 9 * MB)
    clearInterval(sampling)
    return {
      loopHeldMs: await loopHeldMs(port),
      memoryFactor: (peakBytes - beforeBytes) / (9 * MB),
      threeMegabytesMs: median(threes.slice(1)),
    }
  } finally {
    await service?.stop()
    await issuer.close()
    await postgres.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Many small values, which are the slowest to read. */
function callbackBody(n: number, bytes: number): string {
  const digits = String(n).padStart(12, '0')
  const item = '{"id":1234567890123456,"ok":true,"text":"some words of a row"},'
  const items = item.repeat(Math.floor(bytes / item.length)).slice(0, -1)
  const ids = `"run_id":"00000000-0000-4000-8000-${digits}","thread_id":"00000000-0000-4000-9000-${digits}"`
  return `{${ids},"status":"success","values":{"report":[${items},"${'x'.repeat(2 * item.length)}"]}}`
}

/** The longest delay of the event loop since the last call. */
async function loopHeldMs(port: number): Promise<number> {
  const response = await fetch(`http://127.0.0.1:${port}/metrics`, { signal: AbortSignal.timeout(TIMEOUT_MS) })
  const seconds = /nodejs_eventloop_lag_seconds\{quantile="1"\} (\S+)/.exec(await response.text())?.[1]
  return 1_000 * Number(seconds)
}

/** Linux only. */
function residentBytes(pid: number): number {
  return 1024 * Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
}
