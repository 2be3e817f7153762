import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { parse, parseAllDocuments } from 'yaml'
import { parseConfig } from '../../src/config.ts'

const CHART = new URL('../../deploy/helm/', import.meta.url)
const read = (path: string) => readFileSync(new URL(path, CHART), 'utf8')
const VALUES = parse(read('values.yaml')) as Record<string, unknown>
const NAMES = readdirSync(new URL('templates/', CHART))

/** Fills in values. The templates use nothing else of Helm, so this is all that Helm does with them. */
function render(template: string, values: Record<string, unknown>): string {
  return template.replaceAll(/\{\{ \.Values\.(\w+)( \| quote)? \}\}/g, (_, name: string, quote?: string) => {
    const value = values[name]
    assert.notEqual(value, undefined, `values.yaml has no ${name}`)
    return quote ? JSON.stringify(String(value)) : String(value)
  })
}

type Document = Record<string, unknown> & { kind: string; metadata: { name: string }; spec: Record<string, never> }

function documents(name: string): Document[] {
  const text = render(read(`templates/${name}`), VALUES)
  assert.doesNotMatch(text, /\{\{/, `${name} uses more of Helm than plain values`)
  return parseAllDocuments(text).map((document) => {
    assert.deepEqual(document.errors, [], name)
    return document.toJS() as Document
  })
}

const find = (kind: string): Document => {
  const found = NAMES.flatMap(documents).find((document) => document.kind === kind)
  assert.ok(found, kind)
  return found
}

type Container = {
  image: string
  env: { name: string }[]
  securityContext: Record<string, unknown>
  livenessProbe: { httpGet: { path: string } }
  readinessProbe: { httpGet: { path: string } }
}
type PodSpec = {
  containers: Container[]
  securityContext: Record<string, unknown>
  terminationGracePeriodSeconds: number
  automountServiceAccountToken: boolean
}
const podOf = (kind: string) => (find(kind).spec as unknown as { template: { spec: PodSpec } }).template.spec

describe('the Helm chart', () => {
  test('every template renders to one document with a kind and a name', () => {
    for (const name of NAMES) {
      const [document, ...more] = documents(name)
      assert.equal(more.length, 0, name)
      assert.ok(document?.kind && document.metadata.name.startsWith('project-api'), name)
    }
    assert.deepEqual(
      NAMES.flatMap(documents)
        .map(({ kind }) => kind)
        .sort(),
      ['ConfigMap', 'Deployment', 'Job', 'NetworkPolicy', 'PodDisruptionBudget', 'Service', 'ServiceMonitor'],
    )
  })

  test('every value is used', () => {
    const templates = NAMES.map((name) => read(`templates/${name}`)).join('')
    for (const name of Object.keys(VALUES)) assert.ok(templates.includes(`.Values.${name} `), name)
  })

  test('the service accepts the settings of its config map and its secrets', () => {
    const { data } = find('ConfigMap') as unknown as { data: Record<string, string> }
    const env = {
      ...data,
      DATABASE_URL_FILE: '/secrets/database-url',
      WEBHOOK_SECRET_FILE: '/secrets/webhook-secret',
    }
    const secrets: Record<string, string> = {
      '/secrets/database-url': 'postgres://api:secret@db/api',
      '/secrets/webhook-secret': 'a'.repeat(32),
    }
    const config = parseConfig(env, (path) => secrets[path] ?? '')
    assert.equal(config.production, true)
    assert.equal(config.shutdownTimeoutMs, 10_000)
    // The addresses of the ingress differ in each cluster. A network by default would let other pods forge addresses.
    assert.deepEqual(config.trustProxy, [])
  })

  test('a pod has longer to stop than the service takes to drain', () => {
    const graceMs = podOf('Deployment').terminationGracePeriodSeconds * 1_000
    assert.ok(graceMs > Number(VALUES.shutdownTimeoutMs))
  })

  test('pods run without root, without writing and without rights', () => {
    for (const kind of ['Deployment', 'Job']) {
      const pod = podOf(kind)
      assert.equal(pod.securityContext.runAsNonRoot, true)
      assert.equal(pod.automountServiceAccountToken, false)
      for (const { securityContext } of pod.containers) {
        assert.deepEqual(securityContext, {
          allowPrivilegeEscalation: false,
          readOnlyRootFilesystem: true,
          capabilities: { drop: ['ALL'] },
        })
      }
    }
  })

  test('secrets come by reference, and only readiness depends on the database', () => {
    const [container] = podOf('Deployment').containers
    assert.ok(container)
    assert.equal(container.livenessProbe.httpGet.path, '/healthz')
    assert.equal(container.readinessProbe.httpGet.path, '/readyz')
    const plain = container.env.filter((entry) => 'value' in entry).map(({ name }) => name)
    assert.ok(plain.every((name) => name.endsWith('_FILE')))
    // A URL with a password replaces the plain one of the config map.
    assert.ok(container.env.some((entry) => 'valueFrom' in entry && entry.name === 'REDIS_URL'))
  })

  test('service, budget, policy and monitor select the pods of the deployment', () => {
    const { labels } = (find('Deployment').spec as unknown as { template: { metadata: { labels: object } } }).template
      .metadata
    const selectors = [
      (find('Service').spec as unknown as { selector: object }).selector,
      (find('PodDisruptionBudget').spec as unknown as { selector: { matchLabels: object } }).selector.matchLabels,
      (find('NetworkPolicy').spec as unknown as { podSelector: { matchLabels: object } }).podSelector.matchLabels,
    ]
    for (const selector of selectors) assert.deepEqual(selector, labels)
  })
})
