import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { UnavailableError } from '../../src/core/errors.ts'
import { COUNTERS, HISTOGRAMS } from '../../src/core/metrics/metric-table.ts'
import { meteredDatabase } from '../../src/db/metered-database.ts'
import { sql } from '../../src/db/sql.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { cacheReading } from '../../src/ops/metrics/cached-reading.ts'
import { watchEventLoop } from '../../src/ops/metrics/event-loop.ts'
import { formatMetric } from '../../src/ops/metrics/metric-text.ts'
import { Metrics } from '../../src/ops/metrics/metrics.ts'
import { READINGS } from '../../src/ops/metrics/reading-table.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { MetricsText } from '../support/metrics-text.ts'

const read = async (metrics: Metrics) => new MetricsText(await metrics.render())

describe('the registry', () => {
  test('a counter adds up per combination of labels', async () => {
    const metrics = new Metrics()
    metrics.count('tier_charges_total', { tier: 'service', exceeded: 'false' })
    metrics.count('tier_charges_total', { exceeded: 'false', tier: 'service' }, 4)
    metrics.count('tier_charges_total', { tier: 'service', exceeded: 'true' })
    const text = await read(metrics)
    assert.deepEqual(text.metrics.get('project_api_tier_charges_total'), {
      type: 'counter',
      help: COUNTERS.tier_charges_total.help,
      samples: [
        { name: 'project_api_tier_charges_total', labels: { tier: 'service', exceeded: 'false' }, value: 5 },
        { name: 'project_api_tier_charges_total', labels: { tier: 'service', exceeded: 'true' }, value: 1 },
      ],
    })
  })

  test('a counter without labels is there before its first event, one with labels only after it', async () => {
    const text = await read(new Metrics())
    assert.equal(text.metrics.get('project_api_streams_opened_total')?.samples[0]?.value, 0)
    assert.equal(text.metrics.has('project_api_http_requests_total'), false)
  })

  test('a histogram counts a value into every bucket whose bound it does not exceed', async () => {
    const metrics = new Metrics()
    for (const size of [1, 2, 3, 501]) metrics.observe('group_commit_batch_size', size, { queue: 'callbacks' })
    const text = await read(metrics)
    const samples = text.metrics.get('project_api_group_commit_batch_size')?.samples ?? []
    const buckets = samples.filter(({ name }) => name.endsWith('_bucket'))
    assert.deepEqual(
      buckets.map(({ labels, value }) => `${labels.le}:${value}`),
      ['1:1', '2:2', '5:3', '10:3', '25:3', '50:3', '100:3', '200:3', '500:3', '+Inf:4'],
    )
    assert.equal(text.sum('group_commit_batch_size_sum'), 507)
    assert.equal(text.sum('group_commit_batch_size_count'), 4)
  })

  test('the series of a metric stay few with any number of label values, and everything is counted', async () => {
    const metrics = new Metrics()
    for (let i = 0; i < 5_000; i++) metrics.count('credentials_refused_total', { reason: `made up ${i}` })
    const text = await read(metrics)
    const { samples = [] } = text.metrics.get('project_api_credentials_refused_total') ?? {}
    assert.ok(samples.length <= 1_001, `${samples.length} series`)
    assert.equal(text.sum('credentials_refused_total'), 5_000)
    assert.equal(text.sum('credentials_refused_total', { reason: 'other' }), 4_000)
  })

  test('a gauge is read anew for each scrape, and a null leaves it out', async () => {
    const metrics = new Metrics()
    let open: number | null = 3
    metrics.gauge('streams_open', () => open)
    assert.equal((await read(metrics)).sum('streams_open'), 3)
    open = null
    assert.equal((await read(metrics)).metrics.has('project_api_streams_open'), false)
  })

  test('a gauge that cannot be read is left out and counted, and all others are present', async () => {
    const metrics = new Metrics()
    metrics.gauge('outbox_depth', () => Promise.reject(new Error('down')))
    metrics.gauge('outbox_in_flight', () => {
      throw new Error('broken')
    })
    metrics.gauge('streams_open', () => 1)
    const text = await read(metrics)
    assert.equal(text.metrics.has('project_api_outbox_depth'), false)
    assert.equal(text.sum('streams_open'), 1)
    assert.equal(text.sum('readings_failed_total', { gauge: 'outbox_depth' }), 1)
    assert.equal(text.sum('readings_failed_total', { gauge: 'outbox_in_flight' }), 1)
  })
})

describe('the text format', () => {
  test('the text format escapes what would end a label or a line', () => {
    const labels = { path: 'a"b\\c\nd' }
    assert.equal(
      formatMetric({ name: 'x', help: 'a \\ and\na line', type: 'gauge', samples: [{ labels, value: 1 }] }),
      '# HELP x a \\\\ and\\na line\n# TYPE x gauge\nx{path="a\\"b\\\\c\\nd"} 1\n',
    )
  })

  test('the text format writes every number as Prometheus reads it', () => {
    const values = [0, -1, 0.1, 1e21, 1e-7, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, Number.NaN]
    const samples = values.map((value, i) => ({ labels: { i: String(i) }, value }))
    const text = new MetricsText(formatMetric({ name: 'x', help: 'x', type: 'gauge', samples }))
    assert.deepEqual(
      text.samples.map(({ value }) => value),
      values,
    )
  })

  test('the text format omits a metric without samples', () => {
    assert.equal(formatMetric({ name: 'x', help: 'x', type: 'gauge', samples: [] }), '')
  })
})

describe('the tables', () => {
  const all = { ...COUNTERS, ...HISTOGRAMS, ...READINGS }

  test('no name is used twice, and each is one Prometheus takes', () => {
    const tables = [COUNTERS, HISTOGRAMS, READINGS]
    assert.equal(Object.keys(all).length, tables.flatMap((table) => Object.keys(table)).length)
    for (const [name, { labels, help }] of Object.entries(all)) {
      assert.match(name, /^[a-z][a-z_]+$/)
      assert.ok(help.length > 0 && !help.endsWith('.'), name)
      for (const label of labels) assert.match(label, /^(?!le$)[a-z_]+$/, name)
    }
  })

  test('counters end in _total, and no other metric does', () => {
    for (const name of Object.keys(COUNTERS)) assert.match(name, /_total$/)
    for (const name of Object.keys(HISTOGRAMS)) assert.match(name, /_(?:seconds|size)$/)
    for (const [name, { type }] of Object.entries(READINGS)) assert.equal(name.endsWith('_total'), type === 'counter')
  })

  test('bounds of buckets rise', () => {
    for (const [name, { buckets }] of Object.entries(HISTOGRAMS)) {
      assert.deepEqual(
        buckets.toSorted((a, b) => a - b),
        [...new Set(buckets)],
        name,
      )
    }
  })
})

describe('a rare reading', () => {
  const setUp = () => {
    const clock = new ManualClock()
    const asked: PromiseWithResolvers<number>[] = []
    const ask = cacheReading({
      clock,
      maxAgeMs: 5_000,
      timeoutMs: 2_000,
      read: () => {
        const one = Promise.withResolvers<number>()
        asked.push(one)
        return one.promise
      },
    })
    return { clock, asked, ask }
  }

  test('a rare reading is shared by concurrent and soon following callers, and repeated when it is old', async () => {
    const { clock, asked, ask } = setUp()
    const both = Promise.all([ask(), ask()])
    asked[0]?.resolve(1)
    assert.deepEqual(await both, [1, 1])
    await clock.advance(4_999)
    assert.equal(await ask(), 1)
    await clock.advance(1)
    const later = ask()
    asked[1]?.resolve(2)
    assert.equal(await later, 2)
    assert.equal(asked.length, 2)
  })

  test('a rare reading times out, and is not started again while it still runs', async () => {
    const { clock, asked, ask } = setUp()
    const first = assert.rejects(ask(), /no answer within 2000 ms/)
    await clock.advance(2_000)
    await first
    await clock.advance(60_000)
    await assert.rejects(ask(), /no answer within 2000 ms/)
    assert.equal(asked.length, 1)
    asked[0]?.resolve(1)
    await new Promise(setImmediate)
    const second = ask()
    asked[1]?.resolve(2)
    assert.equal(await second, 2)
  })

  test('a rare reading that failed is not repeated at once', async () => {
    const { clock, asked, ask } = setUp()
    const first = assert.rejects(ask(), /down/)
    asked[0]?.reject(new Error('down'))
    await first
    await assert.rejects(ask(), /down/)
    assert.equal(asked.length, 1)
    await clock.advance(5_000)
    const second = ask()
    asked[1]?.resolve(2)
    assert.equal(await second, 2)
  })
})

describe('a metered database', () => {
  test('a metered database times statements and transactions, failed ones included', async () => {
    const metrics = new Metrics()
    const db = meteredDatabase(await openSqlite({ path: ':memory:' }), metrics)
    assert.deepEqual(await db.query<{ one: number }>(sql`select 1 as one`), [{ one: 1 }])
    assert.equal(await db.transaction(async () => 'done'), 'done')
    await assert.rejects(db.query(sql`select nonsense`))
    await assert.rejects(db.transaction(async () => assert.fail('no')))
    const timed = await read(metrics)
    assert.equal(timed.sum('database_duration_seconds_count', { engine: 'sqlite', kind: 'query' }), 2)
    assert.equal(timed.sum('database_duration_seconds_count', { engine: 'sqlite', kind: 'transaction' }), 2)
    assert.equal(timed.sum('database_unavailable_total'), 0)

    await db.close()
    await assert.rejects(db.query(sql`select 1 as one`), UnavailableError)
    await assert.rejects(
      db.transaction(async () => 'done'),
      UnavailableError,
    )
    const closed = await read(metrics)
    assert.equal(closed.sum('database_unavailable_total', { kind: 'query' }), 1)
    assert.equal(closed.sum('database_unavailable_total', { kind: 'transaction' }), 1)
  })
})

describe('the watch on the event loop', () => {
  test('the watch on the event loop gives numbers from the first moment to after its end', () => {
    const watch = watchEventLoop()
    for (const seconds of Object.values(watch.lagSeconds())) assert.ok(seconds >= 0)
    const busy = watch.busySeconds()
    assert.ok(busy >= 0 && watch.busySeconds() >= busy)
    watch.stop()
    for (const seconds of Object.values(watch.lagSeconds())) assert.ok(seconds >= 0)
  })
})
