import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { type AgentRuntime, startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { HOMES, type Home } from '../support/homes.ts'
import type { Settings } from '../support/program.ts'
import { type RuntimeFaultProxy, type Step, startRuntimeFaultProxy } from '../support/runtime-fault-proxy.ts'
import { type Served, sharedIssuer, startServe, untilAdmitted } from '../support/served.ts'
import { needsPostgres, sharedMigratedDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'

interface Job {
  id: string
  status: string
  settled_by: string | null
  output: unknown
  error: unknown
  run_id: string | null
  reconcile: { last_error: string | null }
}

const SECRET = 'a-secret-of-the-runtime'
const GET_RUN = 'GET /threads/{t}/runs/{r}'
const SETTINGS: Settings = {
  WEBHOOK_SECRET: SECRET,
  RATE_LIMIT_AUTHENTICATED: '1000000',
  RATE_LIMIT_UNAUTHENTICATED: '1000000',
  JOB_TYPES_FILE: fileURLToPath(new URL('../../job-types.json', import.meta.url)),
  LOG_LEVEL: 'info',
}

async function adminToken(): Promise<string> {
  return (await sharedIssuer()).mint({ sub: 'root', scopes: ['admin:*'] })
}

async function startJob(served: Served, title: string): Promise<Job> {
  const body = { type: 'report', input: { title, n: 42 } }
  const token = await adminToken()
  const answer = await untilAdmitted(() => served.request<Job>('POST', '/jobs', { token, body }))
  assert.equal(answer.status, 202, answer.text)
  return answer.body
}

describe('two nodes on one PostgreSQL', needsPostgres(), () => {
  let runtime: AgentRuntime
  let drop: (() => Promise<void>) | undefined
  const nodes: Served[] = []
  before(async () => {
    runtime = await startAgentRuntime()
    const database = await sharedMigratedDatabase()
    drop = database.drop
    const settings = { ...SETTINGS, DATABASE_URL: database.url, RUNTIME_URL: runtime.url }
    nodes.push(await startServe({ settings }), await startServe({ settings }))
  })
  after(async () => {
    await Promise.all(nodes.map(({ program }) => program.kill()))
    await runtime?.close()
    await drop?.()
  })

  test('two hundred reads of one stale job make one lookup, and all see its end', async () => {
    const token = await adminToken()
    const [one, two] = nodes as [Served, Served]
    runtime.setFaults({ drop_callbacks: 1, pending_ms: 1, running_ms: 10 })
    // Open the connections of both nodes first, so that the reads arrive together.
    await Promise.all(nodes.flatMap((node) => Array.from({ length: 50 }, () => node.request('GET', '/healthz'))))
    const job = await startJob(one, 'stale')
    await until(() => runtime.recentRuns[0]?.status === 'success')
    runtime.setFaults({ lookup_latency_ms: 300 })
    const before = runtime.stats.calls[GET_RUN] ?? 0
    const read = (node: Served) => untilAdmitted(() => node.request<Job>('GET', `/jobs/${job.id}`, { token }))
    const answers = await Promise.all(Array.from({ length: 200 }, (_, n) => read(n % 2 ? one : two)))
    for (const { status, text } of answers) assert.equal(status, 200, text)
    assert.deepEqual(new Set(answers.map(({ body }) => body.status)), new Set(['completed']))
    assert.equal((runtime.stats.calls[GET_RUN] ?? 0) - before, 1)
  })
})

// Most of their time they wait for the lease of the process that was killed.
describe('killed', { concurrency: true }, () => {
  for (const { engine, options, make } of HOMES) {
    describe(`on ${engine}`, { ...options, concurrency: 1 }, () => {
      let place: Home
      let runtime: AgentRuntime
      before(async () => {
        place = await make()
        runtime = await startAgentRuntime()
        runtime.setFaults({ pending_ms: 1, running_ms: 10 })
      })
      after(async () => {
        await runtime?.close()
        await place?.drop?.()
      })
      const start = (settings: Settings = {}) =>
        startServe({ folder: place.folder, settings: { ...SETTINGS, ...place.settings, ...settings } })

      test('a service that is killed right after it answered a callback has the callback and the settled job after the restart', async () => {
        const served = await start()
        const acknowledged = new Map<string, { run_id: string; n: number }>()
        let killed = false
        const post = async (n: number) => {
          const payload = {
            thread_id: randomUUID(),
            run_id: randomUUID(),
            status: 'success',
            values: { report: { n } },
          }
          try {
            const answer = await served.request<{ job_id: string }>('POST', '/webhooks/jobs/report', {
              body: payload,
              headers: { 'x-webhook-secret': SECRET },
            })
            if (answer.status === 200) acknowledged.set(answer.body.job_id, { run_id: payload.run_id, n })
          } catch (error) {
            // The node was killed during this request, so the callback was not acknowledged.
            if (!killed) throw error
          }
        }
        const senders = Array.from({ length: 20 }, async (_, sender) => {
          for (let n = 0; !killed; n++) await post(sender * 1_000 + n)
        })
        await until(() => acknowledged.size >= 60)
        killed = true
        served.program.signal('SIGKILL')
        await Promise.all(senders)
        await served.program.untilEnded()

        const again = await start()
        const token = await adminToken()
        for (const [id, { run_id, n }] of acknowledged) {
          const job = await untilAdmitted(() => again.request<Job>('GET', `/jobs/${id}`, { token }))
          assert.deepEqual([job.body.status, job.body.settled_by], ['completed', 'callback'], job.text)
          assert.deepEqual(job.body.output, { n })
          const path = `/v1/callbacks?job_id=${id}`
          const { body } = await again.request<{ data: { run_id: string; outcome: string }[] }>('GET', path, { token })
          assert.deepEqual(
            body.data.map((callback) => [callback.run_id, callback.outcome]),
            [[run_id, 'adopted']],
          )
        }
        await again.program.kill()
      })

      test('a job has exactly one run after the restart, if the service was killed between any two steps of its start', async () => {
        const proxy: RuntimeFaultProxy = await startRuntimeFaultProxy(runtime.url)
        const threads = { method: 'POST', path: /^\/threads$/ }
        const runs = { method: 'POST', path: /\/runs$/ }
        const steps: Step[] = [
          { when: 'before', ...threads },
          { when: 'after', ...threads },
          { when: 'before', ...runs },
          { when: 'after', ...runs },
        ]
        proxy.holdThreadsAt(steps)
        // A lease lasts longer than six of these calls: with a short timeout another process takes over sooner.
        const settings = { RUNTIME_URL: proxy.url, RUNTIME_TIMEOUT_MS: '1500' }
        const served = await start(settings)
        const jobs = await Promise.all(steps.map((_, n) => startJob(served, `killed ${n}`)))
        await until(() => proxy.held === steps.length)
        await served.program.kill()
        proxy.open()

        const again = await start(settings)
        const token = await adminToken()
        const look = (id: string) => again.request<Job>('GET', `/jobs/${id}`, { token })
        await until(async () => {
          const looks = await Promise.all(jobs.map(({ id }) => look(id)))
          return looks.every(({ body }) => body.status === 'completed')
        })
        for (const [n, { id }] of jobs.entries()) {
          const made = runtime.recentRuns.filter(({ metadata }) => metadata.job_id === id)
          assert.equal(made.length, 1, `${steps[n]?.when} ${steps[n]?.path}`)
          const { body } = await look(id)
          assert.equal(body.run_id, made[0]?.runId)
          assert.deepEqual(body.output, { title: `killed ${n}`, n: 42 })
        }
        await again.program.kill()
      })
    })
  }
})
