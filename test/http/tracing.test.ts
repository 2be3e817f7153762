import assert from 'node:assert/strict'
import { after, describe, test } from 'node:test'
import type { Log } from '../../src/core/log.ts'
import { traceFields } from '../../src/core/tracing.ts'
import { sql } from '../../src/db/sql.ts'
import { createLogger } from '../../src/ops/logger.ts'
import { type OpenTracer, openTracing } from '../../src/tracing/open-tracing.ts'
import { type JobWorld, RUN_MS, startJobWorld } from '../support/job-world.ts'
import { ScriptedSender } from '../support/scripted-sender.ts'
import { forEachService, onOneService, type ServiceUnderTest } from '../support/service.ts'
import { attributeOf, startTraceCollector, type TraceCollector, treeOf } from '../support/trace-collector.ts'

interface TracedWorld extends JobWorld {
  collector: TraceCollector
  tracer: OpenTracer
  lines: { msg: string; traceId?: string; level: number }[]
}

const opened: { close(): Promise<void> }[] = []
after(async () => {
  for (const one of opened.reverse()) await one.close()
})

async function startTracedWorld(under: ServiceUnderTest): Promise<TracedWorld> {
  const collector = await startTraceCollector()
  const lines: TracedWorld['lines'] = []
  const write = (line: string) => lines.push(JSON.parse(line))
  const log: Log = createLogger({ level: 'debug', destination: { write }, mixin: () => traceFields(tracer.current) })
  const tracer = openTracing({ endpoint: collector.endpoint, version: '0', node: {}, log })
  opened.push(collector, tracer)
  const world = await startJobWorld(under, { tracer, log, pushSender: new ScriptedSender() })
  return Object.assign(world, { collector, tracer, lines })
}

const DEVICE = { token: 'a-device-token', platform: 'web' }
const CALLER = { traceId: 'a'.repeat(32), traceparent: `00-${'a'.repeat(32)}-${'b'.repeat(16)}-01` }

async function finishOneJob(world: TracedWorld): Promise<string> {
  await world.request('POST', '/v1/devices', 'ada', { body: DEVICE })
  const body = { type: 'report', input: { title: 'Done' } }
  const headers = { traceparent: CALLER.traceparent }
  const { id } = (await world.request('POST', '/jobs', 'ada', { body, headers })).body
  await world.quiet()
  await world.pass(RUN_MS)
  await world.sweepUntil(() => world.lines.some(({ msg }) => msg === 'callback.received'))
  await world.sweepUntil(async () => {
    await world.tracer.flush()
    return world.collector.spans.some(({ name }) => name === 'push.send')
  })
  return id
}

describe('traces', () => {
  forEachService((under) => {
    test('a job is one trace, from the request that starts it to the push, with links where time lies between', async () => {
      const world = await startTracedWorld(under)
      const id = await finishOneJob(world)
      assert.deepEqual(treeOf(world.collector.spans, CALLER.traceId), [
        'POST /jobs',
        '  job.start',
        '    POST /threads',
        '    POST /threads/{id}/runs',
        '    ~ POST /webhooks/jobs/:type',
        '      ~ job.settle',
        '        event job.completed',
        '        ~ push.send',
      ])
      assert.deepEqual([...world.collector.services], ['project-api'])
      const settled = world.collector.spans.find(({ name }) => name === 'job.settle')
      assert.ok(settled)
      assert.equal(attributeOf(settled, 'job.id'), id)
      assert.equal(attributeOf(settled, 'job.status'), 'completed')
      assert.equal(attributeOf(settled, 'job.via'), 'callback')
      const timeline = await world.request<{ data: { kind: string; detail: object }[] }>(
        'GET',
        `/jobs/${id}/timeline`,
        'ada',
      )
      const created = timeline.body.data.find(({ kind }) => kind === 'created')
      assert.deepEqual(created?.detail, { type: 'report', request_trace_id: CALLER.traceId })
      assert.equal((await world.get(id)).trace_id, null)
    })
  })

  onOneService((under) => {
    test('the log lines of a traced request name the trace, and those of other requests do not', async () => {
      const world = await startTracedWorld(under)
      await finishOneJob(world)
      const named = world.lines.filter(({ traceId }) => traceId === CALLER.traceId).map(({ msg }) => msg)
      assert.deepEqual(named.toSorted(), ['callback.received', 'request.completed', 'request.completed'])
      const others = world.lines.filter(({ traceId, msg }) => msg === 'request.completed' && traceId !== CALLER.traceId)
      assert.ok(others.length > 0)
    })

    test('a check finds the end of a job whose callback is lost, in the same trace', async () => {
      const world = await startTracedWorld(under)
      world.runtime.setFaults({ drop_callbacks: 1 })
      const body = { type: 'report', input: {} }
      const headers = { traceparent: CALLER.traceparent }
      const { id } = (await world.request('POST', '/jobs', 'ada', { body, headers })).body
      await world.sweepUntil(async () => (await world.stored(id)).status === 'completed')
      await world.tracer.flush()
      const tree = treeOf(world.collector.spans, CALLER.traceId)
      const check = tree.indexOf('  ~ job.check')
      assert.deepEqual(tree.slice(check, check + 5), [
        '  ~ job.check',
        '    GET /threads/{id}/runs/{id}',
        '    GET /threads/{id}/state',
        '    ~ job.settle',
        '      event job.completed',
      ])
    })

    test('a job that a bulk operation repeats is one trace, from its start to the push', async () => {
      const world = await startTracedWorld(under)
      const id = await finishOneJob(world)
      world.collector.spans.length = 0
      const body = { action: 'retry', ids: [id] }
      const answer = await world.service.request('POST', '/v1/operations', { token: world.admin, body })
      assert.equal(answer.status, 202, answer.text)
      await world.sweepUntil(async () => {
        await world.tracer.flush()
        return world.collector.spans.some(({ name }) => name === 'push.send')
      })
      const started = world.collector.spans.find(({ name }) => name === 'job.start')
      assert.ok(started)
      assert.deepEqual(treeOf(world.collector.spans, started.traceId), [
        'job.start',
        '  POST /threads',
        '  POST /threads/{id}/runs',
        '  ~ POST /webhooks/jobs/:type',
        '    job.settle',
        '      event job.completed',
        '      ~ push.send',
      ])
    })

    test('the log line of a check that fails names the trace of the job', async () => {
      const world = await startTracedWorld(under)
      world.runtime.setFaults({ drop_callbacks: 1 })
      const body = { type: 'report', input: {} }
      await world.request('POST', '/jobs', 'ada', { body, headers: { traceparent: CALLER.traceparent } })
      await world.quiet()
      await world.db.query(sql`alter table job_timeline rename to job_timeline_away`)
      await world.sweepUntil(() => world.lines.some(({ msg }) => msg === 'job.check_failed'))
      await world.db.query(sql`alter table job_timeline_away rename to job_timeline`)
      const failed = world.lines.filter(({ msg }) => msg === 'job.check_failed')
      assert.deepEqual([...new Set(failed.map(({ traceId }) => traceId))], [CALLER.traceId])
    })

    test('a collector that refuses spans costs one log line and no request', async () => {
      const world = await startTracedWorld(under)
      world.collector.refuseWith(400)
      for (let round = 0; round < 3; round++) {
        const job = await world.start('report')
        assert.equal((await world.get(job.id)).id, job.id)
        await world.tracer.flush().catch(() => {})
      }
      assert.ok(world.collector.requests() >= 3)
      assert.equal(world.lines.filter(({ msg }) => msg === 'traces.export_failed').length, 1)
      world.collector.refuseWith(null)
      await world.start('report')
      await world.tracer.flush()
      assert.equal(world.lines.filter(({ msg }) => msg === 'traces.export_recovered').length, 1)
    })

    test('a public route and a malformed traceparent continue no trace', async () => {
      const world = await startTracedWorld(under)
      await world.service.request('GET', '/healthz', { headers: { traceparent: CALLER.traceparent } })
      const headers = { traceparent: `00-${'0'.repeat(32)}-${'b'.repeat(16)}-01` }
      await world.request('GET', '/jobs', 'ada', { headers })
      await world.tracer.flush()
      assert.deepEqual(
        world.collector.spans.map(({ name, parentSpanId = '' }) => [name, parentSpanId]),
        [['GET /jobs', '']],
      )
    })
  })
})
