import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { OutgoingHttpHeaders } from 'node:http'
import { after, describe, test } from 'node:test'
import { silentLog } from '../../src/core/log.ts'
import { sql } from '../../src/db/sql.ts'
import { openTracing } from '../../src/tracing/open-tracing.ts'
import { startJobWorld } from '../support/job-world.ts'
import { type ScriptedAnswer, startScriptedServer } from '../support/scripted-server.ts'
import { forEachService, onOneService, type ServiceUnderTest } from '../support/service.ts'
import { startTraceCollector } from '../support/trace-collector.ts'

const TRACE = '12345678901234567890123456789012'
const SPAN = '1234567890123456'
const traceparent = (flags = '00', trace = TRACE, span = SPAN) => `00-${trace}-${span}-${flags}`

/** A runtime that starts every run at once. */
const startsRuns: ScriptedAnswer = (response, { body }) => {
  const { thread_id = randomUUID() } = JSON.parse(body || '{}') as { thread_id?: string }
  const run = { run_id: randomUUID(), thread_id, status: 'pending' }
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(run))
}

const opened: { close(): Promise<void> }[] = []
after(async () => {
  for (const one of opened.reverse()) await one.close()
})

async function startTracedWorld(under: ServiceUnderTest) {
  const runtime = await startScriptedServer(startsRuns)
  const collector = await startTraceCollector()
  const tracer = openTracing({ endpoint: collector.endpoint, version: '0', node: {}, log: silentLog })
  opened.push(collector, tracer)
  const world = await startJobWorld(under, { tracer, env: { RUNTIME_URL: runtime.url } })
  return { world, runtime }
}

/** The cases of https://github.com/w3c/trace-context/blob/main/test/test.py: headers, and what is passed on. */
const CONTINUED: [name: string, headers: OutgoingHttpHeaders, tracestate: string | undefined, flags?: string][] = [
  ['traceparent_included_tracestate_missing', { traceparent: traceparent('01') }, undefined, '01'],
  ['traceparent_header_name_valid_casing', { TrAcEpArEnT: traceparent() }, undefined],
  ['traceparent_version_0xcc', { traceparent: `cc-${TRACE}-${SPAN}-01` }, undefined, '01'],
  ['traceparent_version_0xcc, longer', { traceparent: `cc-${TRACE}-${SPAN}-01-what-the-future` }, undefined, '01'],
  ['traceparent_version_0xcc, other flags', { traceparent: `cc-${TRACE}-${SPAN}-fe` }, undefined, '00'],
  ['traceparent_trace_flags_random', { traceparent: traceparent('02') }, undefined, '02'],
  ['traceparent_trace_flags_random_and_sampled', { traceparent: traceparent('03') }, undefined, '03'],
  ['traceparent_trace_flags_unknown', { traceparent: traceparent('fd') }, undefined, '01'],
  ['traceparent_ows_handling', { traceparent: ` \t${traceparent()}\t ` }, undefined],
  ['tracestate_included_traceparent_included', { tracestate: 'foo=1,bar=2' }, 'foo=1,bar=2'],
  ['tracestate_header_name', { 'trace-state': 'foo=1' }, undefined],
  ['tracestate_header_name_valid_casing', { TRACESTATE: 'foo=1' }, 'foo=1'],
  ['tracestate_empty_header', { tracestate: '' }, undefined],
  ['tracestate_empty_header, last', { tracestate: ['foo=1', ''] }, 'foo=1'],
  ['tracestate_empty_header, first', { tracestate: ['', 'foo=1'] }, 'foo=1'],
  [
    'tracestate_multiple_headers_different_keys',
    { tracestate: ['foo=1,bar=2', 'rojo=1,congo=2', 'baz=3'] },
    'foo=1,bar=2,rojo=1,congo=2,baz=3',
  ],
  ['tracestate_duplicated_keys', { tracestate: 'foo=1,foo=1' }, undefined],
  ['tracestate_duplicated_keys, other values', { tracestate: 'foo=1,foo=2' }, undefined],
  ['tracestate_duplicated_keys, two headers', { tracestate: ['foo=1', 'foo=2'] }, undefined],
  ['tracestate_all_allowed_characters', { tracestate: `${allowedKey()}=${allowed()}` }, `${allowedKey()}=${allowed()}`],
  ['tracestate_all_allowed_characters, tenant', { tracestate: `${tenant()}=1` }, `${tenant()}=1`],
  ['tracestate_ows_handling', { tracestate: '\t foo=1 \t , \t bar=2,\t \tbaz=3 ' }, 'foo=1,bar=2,baz=3'],
  ...['foo =1', 'FOO=1', 'foo.bar=1'].map((one) => discarded('tracestate_key_illegal_characters', one)),
  ...['foo@=1', '@foo=1', 'foo@@bar=1', 'foo@bar@baz=1'].map((one) =>
    discarded('tracestate_key_illegal_vendor_format', `${one},bar=2`),
  ),
  ['tracestate_member_count_limit', { tracestate: members(32) }, members(32)],
  discarded('tracestate_member_count_limit, too many', members(33)),
  ['tracestate_key_length_limit', { tracestate: `foo=1,${'z'.repeat(256)}=1` }, `foo=1,${'z'.repeat(256)}=1`],
  discarded('tracestate_key_length_limit, too long', `foo=1,${'z'.repeat(257)}=1`),
  discarded('tracestate_key_length_limit, tenant', `foo=1,${'t'.repeat(242)}@v=1`),
  discarded('tracestate_key_length_limit, vendor', `foo=1,t@${'v'.repeat(15)}=1`),
  discarded('tracestate_value_illegal_characters', 'foo=bar=baz'),
  discarded('tracestate_value_illegal_characters, empty', 'foo=,bar=3'),
]

const NOT_CONTINUED: [name: string, headers: OutgoingHttpHeaders][] = [
  ['both_traceparent_and_tracestate_missing', {}],
  ['traceparent_duplicated', { traceparent: [traceparent('01'), traceparent('01', `${TRACE.slice(0, -1)}1`)] }],
  ['traceparent_header_name', { 'trace-parent': traceparent() }],
  ['tracestate_included_traceparent_missing', { tracestate: 'foo=1' }],
  ...[
    ['traceparent_version_0x00', `${traceparent('01')}.`],
    ['traceparent_version_0x00, longer', `${traceparent('01')}-what-the-future-will-be-like`],
    ['traceparent_version_0xcc, wrong separator', `cc-${TRACE}-${SPAN}-01.what-the-future-will-be-like`],
    ['traceparent_version_0xff', `ff-${TRACE}-${SPAN}-01`],
    ['traceparent_version_illegal_characters', `.0-${TRACE}-${SPAN}-01`],
    ['traceparent_version_too_long', `000-${TRACE}-${SPAN}-01`],
    ['traceparent_version_too_short', `0-${TRACE}-${SPAN}-01`],
    ['traceparent_trace_id_all_zero', traceparent('01', '0'.repeat(32))],
    ['traceparent_trace_id_illegal_characters', traceparent('01', `${TRACE.slice(1)}.`)],
    ['traceparent_trace_id_too_long', traceparent('01', `${TRACE}3`)],
    ['traceparent_trace_id_too_short', traceparent('01', TRACE.slice(1))],
    ['traceparent_parent_id_all_zero', traceparent('01', TRACE, '0'.repeat(16))],
    ['traceparent_parent_id_illegal_characters', traceparent('01', TRACE, `.${SPAN.slice(1)}`)],
    ['traceparent_parent_id_too_long', traceparent('01', TRACE, `${SPAN}7`)],
    ['traceparent_parent_id_too_short', traceparent('01', TRACE, SPAN.slice(1))],
    ['traceparent_trace_flags_illegal_characters', traceparent('.0')],
    ['traceparent_trace_flags_too_long', traceparent('001')],
    ['traceparent_trace_flags_too_short', traceparent('1')],
  ].map(([name = '', given = '']): [string, OutgoingHttpHeaders] => [
    name,
    { traceparent: given, tracestate: 'foo=1' },
  ]),
]

function discarded(name: string, tracestate: string): (typeof CONTINUED)[number] {
  return [name, { tracestate }, undefined]
}

function members(count: number): string {
  return Array.from({ length: count }, (_, n) => `bar${n}=${n}`).join(',')
}

function allowedKey(): string {
  return 'abcdefghijklmnopqrstuvwxyz0123456789_-*/'
}

function tenant(): string {
  return `${allowedKey()}@a-z0-9_-*/`
}

function allowed(): string {
  const printable = Array.from({ length: 0x7e - 0x20 + 1 }, (_, n) => String.fromCharCode(0x20 + n)).join('')
  return printable.replace(/[,=]/g, '')
}

describe('trace context', () => {
  onOneService((under) => {
    test('a trace is continued, passed on or begun anew as the tests of W3C demand', async () => {
      const { world, runtime } = await startTracedWorld(under)
      const passedOn = async (headers: OutgoingHttpHeaders) => {
        runtime.requests.length = 0
        const body = { type: 'report', input: {} }
        assert.equal((await world.request('POST', '/jobs', 'ada', { body, headers })).status, 202)
        await world.quiet()
        assert.equal(runtime.requests.length, 2)
        const spans = runtime.requests.map((request) => request.headers.traceparent?.slice(36, 52))
        assert.equal(new Set([SPAN, ...spans]).size, 3, 'each call has a span of its own')
        return runtime.requests.map((request) => request.headers)
      }
      for (const [name, headers, tracestate, flags = '00'] of CONTINUED) {
        const hasOwn = Object.keys(headers).some((key) => key.toLowerCase() === 'traceparent')
        for (const sent of await passedOn(hasOwn ? headers : { traceparent: traceparent(), ...headers })) {
          assert.match(String(sent.traceparent), new RegExp(`^00-${TRACE}-[0-9a-f]{16}-${flags}$`), name)
          assert.equal(sent.tracestate, tracestate, name)
        }
      }
      const begun = new Set<string>()
      for (const [name, headers] of NOT_CONTINUED) {
        for (const sent of await passedOn(headers)) {
          assert.match(String(sent.traceparent), /^00-[0-9a-f]{32}-[0-9a-f]{16}-01$/, name)
          assert.ok(!String(sent.traceparent).includes(TRACE.slice(1, -1)), name)
          assert.equal(sent.tracestate, undefined, name)
          begun.add(String(sent.traceparent).slice(3, 35))
        }
      }
      assert.equal(begun.size, NOT_CONTINUED.length)
    })
  })

  forEachService((under) => {
    test('each of many jobs that are started at the same time keeps the trace of its own request', async () => {
      const { world } = await startTracedWorld(under)
      // One caller may have 50 changes in progress.
      const traces = Array.from({ length: 40 }, (_, n) => String(n + 1).padStart(32, '0'))
      const started = await Promise.all(
        traces.map(async (trace) => {
          const headers = { traceparent: traceparent('01', trace), tracestate: `job=${trace}` }
          const answer = await world.request('POST', '/jobs', 'ada', { body: { type: 'report', input: {} }, headers })
          assert.equal(answer.status, 202, answer.text)
          return [answer.body.id, trace] as const
        }),
      )
      await world.quiet()
      for (const [id, trace] of started) {
        const [row] = await world.db.query<{ trace_context: string }>(
          sql`select trace_context from jobs where id = ${id}`,
        )
        assert.match(row?.trace_context ?? '', new RegExp(`^00-${trace}-[0-9a-f]{16}-01 job=${trace}$`))
      }
    })
  })
})
