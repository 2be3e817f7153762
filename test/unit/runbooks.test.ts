import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { parse } from 'yaml'
import { DEAD_SERVICE_RUNBOOK, RUNBOOK_OF, runbookFor } from '../../console/src/pages/runbooks/runbook-names.ts'
import { DEPENDENCY_CHECKS } from '../../src/ops/dependency-checks.ts'
import { isSetting, SETTINGS, type SettingTable } from '../../src/settings.ts'
import { findProgram } from '../support/binaries.ts'
import { proseOf, ROOT, readPages } from '../support/doc-pages.ts'
import { METRICS, metricsIn } from '../support/metric-names.ts'
import { readSources } from '../support/source-files.ts'

interface Rule {
  alert: string
  expr: string
  for?: string
  labels: { severity: string }
  annotations: { summary: string; runbook_url: string }
}

const RULES = `${ROOT}deploy/prometheus/rules.yaml`
const { groups } = parse(readFileSync(RULES, 'utf8')) as { groups: { rules: Rule[] }[] }
const rules = groups.flatMap((group) => group.rules)
const pages = readPages()
const runbooks = pages.filter(({ path }) => path.startsWith('docs/runbooks/'))
const manual = pages.find(({ path }) => path === 'docs/monitoring.md')?.text ?? ''
const PARTS = ['What you see', 'What it means for users', 'Look first', 'Do', 'It is over when']

describe('the rules for Prometheus', () => {
  test('the rules are the alerts of the operations manual, in the same words', () => {
    const row = /^\| [^|]+ \| `((?:[^`|]|\\\|)+)` \| (\S+) \| .+ \| \[[\w-]+\]\((runbooks\/[\w-]+\.md)\) \|$/gm
    const documented = Array.from(manual.matchAll(row), ([, expr = '', duration = '', runbook]) => ({
      expr: expr.replaceAll('\\|', '|'),
      for: duration === '–' ? undefined : duration,
      runbook: `docs/${runbook}`,
    }))
    assert.ok(documented.length > 25, 'the table is really read')
    assert.deepEqual(
      rules.map((rule) => ({ expr: rule.expr, for: rule.for, runbook: rule.annotations.runbook_url })),
      documented,
    )
  })

  test('every rule has a name of its own, a severity, a sentence and a runbook that exists', () => {
    assert.equal(new Set(rules.map(({ alert }) => alert)).size, rules.length)
    for (const { alert, labels, annotations } of rules) {
      assert.match(alert, /^ProjectApi[A-Z]\w+$/)
      assert.match(labels.severity, /^(?:critical|warning)$/, alert)
      assert.match(annotations.summary, /^[A-Z].+\.$/, alert)
      const runbook = runbooks.find(({ path }) => path === annotations.runbook_url)
      assert.ok(runbook, `${alert}: ${annotations.runbook_url}`)
    }
  })

  test('every rule asks for metrics that exist, and promtool accepts it, if it is installed', () => {
    for (const { alert, expr } of rules) {
      const named = metricsIn(expr)
      assert.ok(named.size > 0 || expr.startsWith('up{'), alert)
      for (const name of named) assert.ok(METRICS.has(name), `${alert}: ${name}`)
      for (const [open = '', close = ''] of ['()', '{}', '[]']) {
        assert.equal(expr.split(open).length, expr.split(close).length, alert)
      }
    }
    const promtool = findProgram('promtool')
    if (promtool !== undefined) execFileSync(promtool, ['check', 'rules', RULES])
  })
})

describe('the runbooks', () => {
  test('every runbook has the same five parts, and is short', () => {
    for (const { path, text } of runbooks.filter((page) => !page.path.endsWith('overview.md'))) {
      assert.deepEqual(
        Array.from(text.matchAll(/^## (.+)$/gm), ([, heading]) => heading),
        PARTS,
        path,
      )
      assert.ok(text.split('\n').length <= 60, `${path} is too long`)
    }
  })

  test('every alert that a runbook names exists and names this runbook', () => {
    for (const { path, text } of runbooks) {
      const named = Array.from(text.matchAll(/\bProjectApi[A-Z]\w+/g), ([name]) => name)
      for (const name of named)
        assert.ok(
          rules.some(({ alert }) => alert === name),
          `${path}: ${name}`,
        )
    }
    const unnamed = rules.filter(({ alert, annotations }) => {
      const text = runbooks.find(({ path }) => path === annotations.runbook_url)?.text ?? ''
      return !text.includes(alert)
    })
    assert.deepEqual(
      unnamed.map(({ alert }) => alert),
      [],
    )
  })

  test('the banner of the console has an existing runbook for every dependency', () => {
    const names = [...DEPENDENCY_CHECKS.map(({ name }) => name), 'process']
    assert.deepEqual(Object.keys(RUNBOOK_OF).sort(), names.sort())
    for (const name of [...Object.values(RUNBOOK_OF), DEAD_SERVICE_RUNBOOK]) {
      assert.ok(
        runbooks.some(({ path }) => path === `docs/runbooks/${name}.md`),
        name,
      )
    }
  })

  test('a fault of the database leads to the runbook of its disk on SQLite, where the service knows the disk', () => {
    const onSqlite = { disk: { detail: '5 GB of 10 GB are free' } }
    assert.equal(runbookFor('database', onSqlite), 'disk')
    assert.equal(runbookFor('database', { disk: { detail: null } }), 'postgresql-failover')
    assert.equal(runbookFor('push', onSqlite), 'push-credentials')
  })

  test('every metric, log event, setting, route and page of the console that a runbook names exists', () => {
    const known = {
      metrics: new Set(METRICS.keys()),
      // operations-docs.test.ts compares this table with the source.
      events: new Set(Array.from(manual.matchAll(/^\| `([a-z_]+\.[a-z_]+)` \|/gm), ([, event]) => event)),
      settings: new Set(settingNames(SETTINGS)),
    }
    const sources = Object.values(readSources()).join('\n')
    const documented = readFileSync(`${ROOT}client/src/openapi.ts`, 'utf8')
    const isRoute = (route: string) =>
      sources.includes(`'${route}'`) || documented.includes(`"${route.replace(/:(\w+)/g, '{$1}')}": {`)
    const console = readFileSync(`${ROOT}console/src/pages/pages.tsx`, 'utf8')
    const faults: string[] = []
    for (const { path, text } of runbooks) {
      const check = (isKnown: boolean, name: string) => void (isKnown || faults.push(`${path}: ${name}`))
      const codes = Array.from(proseOf({ path, text }).matchAll(/`([^`]+)`/g), ([, code = '']) => code)
      const logged = Array.from(text.matchAll(/\.msg == "([^"]+)"/g), ([, event = '']) => event)
      for (const name of metricsIn(text)) check(known.metrics.has(name), name)
      for (const event of [...codes.filter(isEvent), ...logged]) check(known.events.has(event), event)
      for (const code of codes.filter((one) => /^[A-Z]+(?:_[A-Z]+)+$/.test(one))) check(known.settings.has(code), code)
      for (const route of routesIn(text)) check(isRoute(route), route)
      for (const [, page = ''] of text.matchAll(/[Cc]onsole page \*\*(.+?)\*\*/g))
        check(console.includes(`'${page}'`), page)
    }
    assert.deepEqual(faults, [])
  })
})

/** Fields of a job look the same; they are listed here. */
function isEvent(code: string): boolean {
  return (
    /^[a-z_]+\.[a-z_]+$/.test(code) && !['reconcile.last_error', 'error.code', 'cloudmessaging.messages'].includes(code)
  )
}

/** The paths of requests, in the form of the routes: `/jobs/:id/check`. */
function routesIn(text: string): string[] {
  const requests = text.matchAll(/(?:\$URL|(?:GET|POST|PUT|PATCH|DELETE) )(\/[\w/.{}-]+)/g)
  return Array.from(requests, ([, path = '']) =>
    path.replace(/\/SUB\b/, '/:sub').replace(/\/(?:[a-z]+_\.\.\.|\{id\})/, '/:id'),
  )
}

function settingNames(table: SettingTable): string[] {
  return Object.values(table).flatMap((row) => (isSetting(row) ? [row.name] : settingNames(row)))
}
