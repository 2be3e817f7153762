import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { type JobWorld, START_RUN, startJobWorld } from '../support/job-world.ts'
import { onOneService } from '../support/service.ts'
import { until } from '../support/until.ts'

/**
 * A fake runtime: every run has succeeded, and the test's `answer` gives its state or the answer to its start. With `all`,
 * `answer` handles every request.
 */
function scriptedRuntime({ all = false } = {}) {
  const script = { url: '', answer: ((_request, response) => void response.end()) as RequestListener }
  const server = createServer((request, response) => {
    response.setHeader('content-type', 'application/json')
    const [, , thread_id, what, run_id] = String(request.url).split('/')
    if (all || what === 'state' || (what === 'runs' && request.method === 'POST'))
      return void script.answer(request, response)
    response.end(JSON.stringify({ thread_id, run_id, status: 'success', metadata: {} }))
  })
  before(async () => {
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    script.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  })
  after(() => {
    server.closeAllConnections()
    server.close()
  })
  return script
}

describe('a gateway that does not know the runtime', () => {
  onOneService((under) => {
    test('a gateway that does not know the runtime fails no start: the start is retried, and the job runs once the runtime is back', async () => {
      const world = await startJobWorld(under)
      for (const status of [404, 405, 410]) {
        for (const beforeThread of [true, false]) {
          world.runtime.setFaults({ start_failure: 0.5, start_failure_status: status })
          world.chances.push(...(beforeThread ? [0.1] : [0.9, 0.1]))
          const starts = world.calls(START_RUN)
          const { id } = await world.start('report')
          assert.equal(world.calls(START_RUN) - starts, beforeThread ? 0 : 1)
          const waiting = await world.stored(id)
          assert.equal(waiting.status, 'processing', JSON.stringify(waiting.error))
          assert.equal(waiting.reconcile.last_error, `the runtime answered ${status}`)
          world.runtime.setFaults(NO_RUNTIME_FAULTS)
          await world.sweepUntil(async () => (await world.stored(id)).status === 'completed')
        }
      }
    })

    const runtime = scriptedRuntime()
    test('an error of a gateway fails no job, and an error of the runtime about the graph does', async () => {
      const world = await startJobWorld(under, { env: { RUNTIME_URL: runtime.url } })
      const answers: [text: string, status: string][] = [
        ['No assistant found for "report". Make sure the assistant ID is for a valid graph ID.', 'failed'],
        ['{"detail":"Assistant \'report\' not found"}', 'failed'],
        ['{"detail":"Graph report not found"}', 'failed'],
        ['{"detail":"Thread 4711 not found"}', 'processing'],
        ['{"message":"Route POST:/threads/4711/runs not found"}', 'processing'],
        ['Cannot POST /threads/4711/runs', 'processing'],
        ['{"message":"no Route matched with those values"}', 'processing'],
        ['', 'processing'],
      ]
      for (const [text, status] of answers) {
        runtime.answer = (_request, response) => void response.writeHead(404).end(text)
        const job = await world.stored((await world.start('report')).id)
        assert.deepEqual(
          [job.status, job.error?.code],
          [status, status === 'failed' ? 'start_rejected' : undefined],
          text,
        )
      }
    })
  })
})

describe('an answer of the runtime that cannot be stored', () => {
  onOneService((under) => {
    const runtime = scriptedRuntime()
    const adopt = async (world: JobWorld) => {
      const ids = { thread_id: randomUUID(), run_id: randomUUID() }
      const { body } = await world.callback('report', { ...ids, status: 'thinking' })
      await world.quiet()
      return world.get(body.job_id)
    }

    test('an answer of the runtime that cannot be stored fails the job at once, instead of being asked for again', async () => {
      const world = await startJobWorld(under, { env: { RUNTIME_URL: runtime.url, RUNTIME_TIMEOUT_MS: '60000' } })
      const megabyte = Buffer.alloc(1024 * 1024, ' ')
      const answers: [name: string, message: RegExp, listener: RequestListener][] = [
        [
          'too large',
          /is over 33554432 bytes$/,
          (_request, response) => void response.end(Buffer.concat(Array(33).fill(megabyte))),
        ],
        ['not UTF-8', /not UTF-8$/, (_request, response) => void response.end(Buffer.from([0x22, 0xff, 0x22]))],
        ['UTF-8 cut short', /not UTF-8$/, (_request, response) => void response.end(Buffer.from([0x22, 0xc3]))],
      ]
      for (const [name, message, listener] of answers) {
        runtime.answer = listener
        const job = await adopt(world)
        assert.deepEqual([job.status, job.error?.code], ['failed', 'output_invalid'], name)
        assert.match(String(job.error?.message), message)
      }
    })

    test('an answer of the runtime proves nothing if it is not a success, or is a web page', async () => {
      const world = await startJobWorld(under, { env: { RUNTIME_URL: runtime.url } })
      for (const [status, type] of [
        [502, 'application/json'],
        [404, 'application/json'],
        [200, 'text/html'],
      ] as const) {
        runtime.answer = (_request, response) =>
          void response.writeHead(status, { 'content-type': type }).end(Buffer.from([0xff]))
        const job = await adopt(world)
        assert.equal(job.status, 'processing', JSON.stringify(job.error))
        assert.match(String(job.reconcile.last_error), /not UTF-8$/)
      }
    })
  })
})

describe('a start that was aborted mid-request', () => {
  onOneService((under) => {
    const runtime = scriptedRuntime({ all: true })
    test('a job cancelled after its start was aborted mid-request waits for the run, and cancels it if it appears', async () => {
      const world = await startJobWorld(under, { env: { RUNTIME_URL: runtime.url, RUNTIME_TIMEOUT_MS: '10000' } })
      const created = Promise.withResolvers<{ id: string; thread_id: string }>()
      const run = { run_id: randomUUID(), thread_id: '', status: 'pending', metadata: { job_id: '', run_seq: 1 } }
      const seen = { starts: 0, stops: 0, runs: [] as object[] }
      runtime.answer = async ({ method, url = '' }, response) => {
        const { thread_id } = await created.promise
        const json = (value: object) => void response.end(JSON.stringify(value))
        if (url === '/threads') return json({ thread_id })
        if (url.includes('/cancel')) {
          seen.stops += 1
          run.status = 'interrupted'
          return json({})
        }
        if (url.endsWith('/state')) return json({ values: {}, metadata: { run_id: run.run_id } })
        if (url.includes(run.run_id)) return json(run)
        if (method === 'GET') return json(seen.runs)
        seen.starts += 1
      }
      const { body } = await world.request('POST', '/jobs', 'ada', { body: { type: 'report', input: {} } })
      const { id, thread_id } = body
      run.thread_id = thread_id
      run.metadata.job_id = id
      created.resolve(body)
      await until(() => seen.starts === 1)
      await world.service.services.jobs.cancel(id)
      // The start is cut off by its own timeout.
      await world.pass(60_000)
      await world.pass(1_000)
      assert.equal((await world.stored(id)).status, 'processing')
      seen.runs.push(run)
      await world.sweepUntil(async () => (await world.stored(id)).status !== 'processing')
      const job = await world.stored(id)
      assert.deepEqual([job.status, job.run_id], ['cancelled', run.run_id])
      assert.deepEqual([seen.starts, seen.stops], [1, 1])
    })
  })
})
