import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { type DescribedMetric, METRIC, METRICS, metricsIn } from '../support/metric-names.ts'

const ROOT = new URL('../../', import.meta.url)
const OPERATIONS = ['operations', 'monitoring']
  .map((name) => readFileSync(new URL(`docs/${name}.md`, ROOT), 'utf8'))
  .join('\n')
const DASHBOARD = readFileSync(new URL('docs/grafana-dashboard.json', ROOT), 'utf8')

/** The selectors of a query: `name{label="…"}`, and what it groups by is not looked at. */
function labelsAskedFor(text: string): { name: string; label: string }[] {
  const selectors = text.matchAll(new RegExp(`(${METRIC})\\{([^}]*)\\}`, 'g'))
  return Array.from(selectors).flatMap(([, name = '', inside = '']) =>
    Array.from(inside.matchAll(/([a-z_]+)\s*[=!]/g), ([, label = '']) => ({ name, label })),
  )
}

describe('the operations manual', () => {
  test('the operations manual describes every metric there is, with its type and labels, and no other', () => {
    const rows = OPERATIONS.matchAll(/^\| `([a-z]+_[a-z_]+)` +\| (\w+) +\| ([^|]+)\| [^|]+\|$/gm)
    const described = Array.from(rows, ([, name = '', type = '', labels = '']): [string, DescribedMetric] => [
      name,
      { type, labels: Array.from(labels.matchAll(/`(\w+)`/g), ([, label = '']) => label) },
    ])
    assert.deepEqual(new Map(described), METRICS)
    assert.equal(described.length, METRICS.size, 'each once')
  })

  test('the operations manual names no metric that does not exist', () => {
    assert.deepEqual(
      [...metricsIn(OPERATIONS)].filter((name) => !METRICS.has(name)),
      [],
    )
  })

  test('the operations manual explains every event the source logs, with its level, and no other', () => {
    const rows = OPERATIONS.matchAll(/^\| `([a-z_]+\.[a-z_]+)` +\| (debug|info|warn|error) +\|/gm)
    const explained = Array.from(rows, ([, event, level]) => `${event} ${level}`)
    assert.deepEqual(explained.sort(), loggedEvents())
  })

  test('the operations manual has no broken link', () => {
    const files = readdirSync(new URL('docs/', ROOT), { recursive: true, encoding: 'utf8' })
    for (const [, target = ''] of OPERATIONS.matchAll(/\]\(([^)#]+)/g)) assert.ok(files.includes(target), target)
  })
})

describe('the dashboard', () => {
  const dashboard = JSON.parse(DASHBOARD) as {
    title: string
    templating: { list: { name: string }[] }
    panels: {
      id: number
      type: string
      title: string
      gridPos: { x: number; y: number; w: number; h: number }
      targets?: { expr: string; legendFormat: string }[]
    }[]
  }
  const queries = dashboard.panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr))

  test('the dashboard draws every metric there is, and no other', () => {
    assert.deepEqual([...metricsIn(queries.join('\n'))].sort(), [...METRICS.keys()].sort())
  })

  test('the dashboard asks only for labels that the metric has', () => {
    for (const { name, label } of labelsAskedFor(`${queries.join('\n')}\n${OPERATIONS}`)) {
      const [metric = ''] = metricsIn(name)
      const known = [...(METRICS.get(metric)?.labels ?? []), 'instance', 'job', 'le']
      assert.ok(known.includes(label), `${name} has no label ${label}`)
    }
  })

  test('the dashboard has a name for each line, and panels that do not lie on each other', () => {
    const panels = dashboard.panels
    assert.equal(new Set(panels.map(({ id }) => id)).size, panels.length)
    for (const [at, { title, type, targets, gridPos: a }] of panels.entries()) {
      assert.ok(title !== '', 'a title')
      assert.equal(type === 'row', targets === undefined, title)
      if (type === 'timeseries') for (const { legendFormat } of targets ?? []) assert.notEqual(legendFormat, '', title)
      for (const { gridPos: b, title: other } of panels.slice(at + 1)) {
        const apart = a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y
        assert.ok(apart && a.x + a.w <= 24, `${title} and ${other}`)
      }
    }
  })

  test('the dashboard opens no bracket that it does not close, and uses only its own variables', () => {
    const own = dashboard.templating.list.map(({ name }) => name)
    for (const query of queries) {
      for (const [open = '', close = ''] of ['()', '{}', '[]']) {
        assert.equal(query.split(open).length, query.split(close).length, query)
      }
      for (const [, name = ''] of query.matchAll(/\$(\w+)/g))
        assert.ok([...own, '__rate_interval'].includes(name), query)
    }
  })
})

function loggedEvents(): string[] {
  const files = readdirSync(new URL('src/', ROOT), { recursive: true, encoding: 'utf8' })
  const sources = files.filter((file) => file.endsWith('.ts') && !file.startsWith('sandbox'))
  const found = sources.flatMap((file) => {
    const text = readFileSync(new URL(`src/${file.replaceAll('\\', '/')}`, ROOT), 'utf8')
    const calls = text.matchAll(/\blog\.(debug|info|warn|error)\(([^;]*?)'([a-z_]+\.[a-z_]+)',?\s*\)/g)
    return Array.from(calls, ([, level, , event]) => `${event} ${level}`)
  })
  assert.ok(found.length > 20, 'the source is really read')
  return [...new Set(found)].sort()
}
