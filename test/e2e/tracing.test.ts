import assert from 'node:assert/strict'
import { hostname } from 'node:os'
import { after, test } from 'node:test'
import { sharedIssuer, startServe } from '../support/served.ts'
import { attributeOf, startTraceCollector } from '../support/trace-collector.ts'
import { until } from '../support/until.ts'

const collector = await startTraceCollector()
after(() => collector.close())

test('serve sends its spans before it ends, and its log names their trace', async () => {
  const settings = { OTEL_EXPORTER_OTLP_ENDPOINT: `${collector.endpoint}/`, OTEL_SERVICE_NAME: 'orders' }
  const served = await startServe({ settings })
  const token = (await sharedIssuer()).mint({ sub: 'ada' })
  assert.equal((await served.request('GET', '/v1/users/me', { token })).status, 200)
  served.program.signal('SIGINT')
  assert.equal((await served.program.untilEnded()).code, 0)
  // It does not wait for the collector's answer for longer than a second.
  await until(() => collector.spans.length > 0)
  const [span, ...others] = collector.spans
  assert.ok(span)
  assert.deepEqual(others, [])
  assert.deepEqual([span.name, attributeOf(span, 'http.response.status_code')], ['GET /v1/users/me', 200])
  assert.deepEqual([...collector.services], ['orders'])
  const line = served.program.output.split('\n').find((text) => text.includes('"request.completed"')) ?? ''
  assert.equal(JSON.parse(line).traceId, span.traceId)
})

test('the spans and the log lines of a node have its id and its host, and another node has another id', async () => {
  const settings = { OTEL_EXPORTER_OTLP_ENDPOINT: collector.endpoint }
  const nodes = []
  for (let node = 0; node < 2; node++) {
    collector.resources.length = 0
    const served = await startServe({ settings })
    const token = (await sharedIssuer()).mint({ sub: 'ada' })
    assert.equal((await served.request('GET', '/v1/users/me', { token })).status, 200)
    served.program.signal('SIGINT')
    await served.program.untilEnded()
    await until(() => collector.resources.length > 0)
    const [resource] = collector.resources
    assert.ok(resource)
    const id = attributeOf(resource, 'service.instance.id')
    assert.match(String(id), /^[0-9a-f-]{36}$/)
    assert.equal(attributeOf(resource, 'host.name'), hostname())
    const lines = served.program.output.trimEnd().split('\n')
    for (const line of lines.map((text) => JSON.parse(text) as Record<string, unknown>)) {
      assert.deepEqual([line['service.instance.id'], line['host.name']], [id, hostname()], String(line.msg))
    }
    nodes.push(id)
  }
  assert.notEqual(nodes[0], nodes[1])
})

test('serve without a collector answers, and says once that spans cannot be sent', async () => {
  const settings = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1', OTEL_EXPORTER_OTLP_TIMEOUT: '200' }
  const served = await startServe({ settings: { ...settings, OTEL_BSP_SCHEDULE_DELAY: '1' } })
  const token = (await sharedIssuer()).mint({ sub: 'ada' })
  for (let request = 0; request < 5; request++) {
    assert.equal((await served.request('GET', '/v1/users/me', { token })).status, 200)
  }
  await served.program.untilSaid(/"traces\.export_failed"/)
  assert.equal((await served.request('GET', '/v1/users/me', { token })).status, 200)
  served.program.signal('SIGINT')
  assert.equal((await served.program.untilEnded()).code, 0)
  assert.equal(served.program.output.split('"traces.export_failed"').length, 2)
})
