import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { globSync, readFileSync, writeFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { parse, parseAllDocuments } from 'yaml'
import { parseConfig } from '../../src/config.ts'
import { SETTINGS } from '../../src/settings.ts'
import { findProgram } from '../support/binaries.ts'
import { PATIENCE_MS } from '../support/patience.ts'

/**
 * What Helm makes of the chart is in `helm-chart/*.rendered.yaml`, with a checksum of the chart, so that these tests need no
 * Helm. Where Helm is installed, its output is compared. `UPDATE_CHART=1` writes the files anew, and needs Helm.
 */
const CHART = fileURLToPath(new URL('../../deploy/helm/', import.meta.url))
const CASES = fileURLToPath(new URL('helm-chart/', import.meta.url))
/** Each has values (`NAME.values.yaml`) and what Helm makes of them (`NAME.rendered.yaml`). */
const RENDERED = ['plain', 'everything', 'pooler']
const HELM = findProgram('helm')
const VALUES = parse(readFileSync(`${CHART}values.yaml`, 'utf8')) as Record<string, unknown>

/** `Chart.yaml` is left out, because a release changes the version in it and nothing else. */
function checksumOf(name: string): string {
  const hash = createHash('sha256')
  for (const file of globSync(['templates/*', 'values.yaml', 'values.schema.json'], { cwd: CHART }).sort())
    hash.update(file).update(readFileSync(CHART + file))
  return hash.update(readFileSync(`${CASES}${name}.values.yaml`)).digest('hex')
}

function helm(options: string[]): string {
  assert.ok(HELM, 'Helm is not installed')
  const args = ['template', 'shop', CHART, '--namespace', 'acme', ...options]
  return execFileSync(HELM, args, { encoding: 'utf8', timeout: PATIENCE_MS, stdio: ['ignore', 'pipe', 'pipe'] })
}

const withValuesOf = (name: string) => ['--values', `${CASES}${name}.values.yaml`]

if (process.env.UPDATE_CHART)
  for (const name of RENDERED) {
    const text = `# checksum ${checksumOf(name)}\n${helm(withValuesOf(name))}`
    writeFileSync(`${CASES}${name}.rendered.yaml`, text)
  }

interface Metadata {
  name: string
  labels: Record<string, string>
  annotations?: Record<string, string>
}
interface Container {
  image: string
  env: { name: string; value?: string; valueFrom?: { secretKeyRef: { name: string; key: string } } }[]
  envFrom?: unknown[]
  resources: unknown
  volumeMounts: { name: string }[]
  securityContext: Record<string, unknown>
  livenessProbe: { httpGet: { path: string } }
  readinessProbe: { httpGet: { path: string } }
}
interface PodSpec {
  containers: [Container]
  volumes: { name: string }[]
  securityContext: Record<string, unknown>
  terminationGracePeriodSeconds: number
  automountServiceAccountToken: boolean
  topologySpreadConstraints: { topologyKey: string; whenUnsatisfiable: string }[]
  serviceAccountName?: string
}
interface Document {
  kind: string
  metadata: Metadata
  data: Record<string, string>
  spec: {
    replicas?: number
    template: { metadata: Metadata; spec: PodSpec }
    selector: Record<string, unknown>
    podSelector: Record<string, unknown>
    ingress: { from: unknown[] }[]
    rules: { http: { paths: { path: string; pathType: string }[] } }[]
  }
}

function documentsOf(text: string): Map<string, Document> {
  const documents = parseAllDocuments(text).map((document) => {
    assert.deepEqual(document.errors, [])
    return document.toJS() as Document
  })
  return new Map(documents.map((document) => [`${document.kind} ${document.metadata.name}`, document]))
}

const rendered = (name: string) => readFileSync(`${CASES}${name}.rendered.yaml`, 'utf8')
const plain = documentsOf(rendered('plain'))
const everything = documentsOf(rendered('everything'))
const pooler = documentsOf(rendered('pooler'))

function find(documents: Map<string, Document>, kind: string): Document {
  const found = [...documents.values()].find((document) => document.kind === kind)
  assert.ok(found, kind)
  return found
}

const podOf = (documents: Map<string, Document>, kind: string) => find(documents, kind).spec.template.spec

function configOf(documents: Map<string, Document>) {
  const secrets: Record<string, string> = {
    '/secrets/database-url': 'postgres://api:secret@db/api',
    '/secrets/webhook-secret': 'a'.repeat(32),
  }
  const env: Record<string, string> = { ...find(documents, 'ConfigMap').data }
  for (const { name, value } of podOf(documents, 'Deployment').containers[0].env) if (value) env[name] = value
  return parseConfig(env, (path) => secrets[path] ?? '')
}

describe('the Helm chart', () => {
  for (const name of RENDERED)
    test(`Helm renders the chart with ${name}.values.yaml as recorded`, () => {
      const [, checksum] = /^# checksum (\w+)/.exec(rendered(name)) ?? []
      assert.equal(
        checksum,
        checksumOf(name),
        'the chart was changed: install Helm and run UPDATE_CHART=1 npm test -- test/unit/helm-chart.test.ts',
      )
      if (HELM === undefined) return
      assert.deepEqual(documentsOf(helm(withValuesOf(name))), documentsOf(rendered(name)))
    })

  test('Helm refuses values that would not work, and says why, if it is installed', () => {
    if (HELM === undefined) return
    const refusals: [option: string, message: RegExp][] = [
      ['ingress.enabled=true', /trustProxy is missing/],
      ['serviceMonitor.enabled=true', /needs metricsPublic/],
      ['settings.PORT=1', /settings\.PORT is set by the chart itself, always to the same value/],
      ['settings.TRUST_PROXY=x', /settings\.TRUST_PROXY is set by the chart itself: values\.yaml has a value/],
      ['settings.WEBHOOK_SECRET=x', /settings\.WEBHOOK_SECRET is a secret/],
      ['settings.ISSUER_URL=', /settings\.ISSUER_URL is missing/],
      ['jobTypes=x', /jobTypes is not a file of job types/],
      ['ingress.paths={/metrics}', /ingress\.paths/],
      ['replica=3', /replica/],
    ]
    for (const [option, message] of refusals)
      assert.throws(() => helm([...withValuesOf('plain'), '--set', option]), { stderr: message }, option)
  })

  test('by default there is neither an ingress nor an autoscaler nor a monitor, and objects are named by release', () => {
    assert.deepEqual([...plain.keys()].sort(), [
      'ConfigMap shop-project-api',
      'Deployment shop-project-api',
      'Job shop-project-api-migrate',
      'NetworkPolicy shop-project-api',
      'PodDisruptionBudget shop-project-api',
      'Service shop-project-api',
      'ServiceAccount shop-project-api',
    ])
    assert.deepEqual([...everything.keys()].sort(), [
      'ConfigMap shop',
      'ConfigMap shop-job-types',
      'Deployment shop',
      'HorizontalPodAutoscaler shop',
      'Ingress shop',
      'Job shop-migrate',
      'PodDisruptionBudget shop',
      'Service shop',
      'ServiceMonitor shop',
    ])
  })

  test('every value is used, and the schema knows it', () => {
    const templates = globSync('templates/*', { cwd: CHART }).map((file) => readFileSync(CHART + file, 'utf8'))
    const schema = JSON.parse(readFileSync(`${CHART}values.schema.json`, 'utf8')) as { properties: object }
    for (const name of Object.keys(VALUES)) {
      assert.match(templates.join(''), new RegExp(`\\.Values\\.${name}\\b`))
      assert.ok(Object.hasOwn(schema.properties, name), name)
    }
  })

  test('the chart knows every secret setting, so that none reaches the config map', () => {
    const helpers = readFileSync(`${CHART}templates/_helpers.tpl`, 'utf8')
    // REDIS_URL may stand in the config map if it has no password.
    const secrets = rowsOf(SETTINGS).filter(({ name, secret }) => secret !== undefined && name !== 'REDIS_URL')
    assert.ok(secrets.length > 5)
    for (const { name } of secrets) assert.ok(helpers.includes(`"${name}"`), name)
  })

  test('the service accepts the settings of its config map and its secrets', () => {
    const config = configOf(plain)
    assert.equal(config.production, true)
    assert.equal(config.shutdownTimeoutMs, 10_000)
    assert.equal(config.metricsPublic, false)
    // The addresses of the ingress differ in each cluster. A network by default would let other pods forge addresses.
    assert.deepEqual(config.trustProxy, [])

    const full = configOf(everything)
    assert.equal(full.metricsPublic, true)
    assert.equal('poolSize' in full.database && full.database.poolSize, 20)
    assert.equal(full.limits.service, 1_000_000)
    assert.equal(full.logLevel, 'warn')
    assert.equal(full.jobTypesFile, '/etc/project-api/job-types.json')
    const types = JSON.parse(everything.get('ConfigMap shop-job-types')?.data['job-types.json'] ?? '') as object
    assert.deepEqual(types, { types: { report: { assistant_id: 'report', output_key: 'report' } } })
  })

  test('a number keeps its value: a share its fraction, and a large number all its digits', () => {
    const { data } = find(everything, 'ConfigMap')
    assert.equal(data.OTEL_TRACES_SAMPLER_ARG, '0.1')
    assert.equal(data.RATE_LIMIT_SERVICE, '1000000')
  })

  test('the ingress does not serve /metrics', () => {
    const [rule] = find(everything, 'Ingress').spec.rules
    const paths = rule?.http.paths ?? []
    assert.ok(paths.some(({ path }) => path === '/jobs'))
    for (const { path, pathType } of paths) assert.ok(!'/metrics'.startsWith(path) || pathType === 'Exact', path)
  })

  test('a change of the settings replaces the pods', () => {
    const checksums = [plain, everything].map(
      (documents) => find(documents, 'Deployment').spec.template.metadata.annotations?.['checksum/config'],
    )
    assert.equal(new Set(checksums).size, 2)
    assert.ok(!checksums.includes(undefined))
  })

  test('a pod has longer to stop than the service takes to drain', () => {
    for (const documents of [plain, everything]) {
      const graceMs = podOf(documents, 'Deployment').terminationGracePeriodSeconds * 1_000
      assert.ok(graceMs > configOf(documents).shutdownTimeoutMs)
    }
  })

  test('pods are spread over nodes and zones', () => {
    const keys = podOf(everything, 'Deployment').topologySpreadConstraints.map(({ topologyKey }) => topologyKey)
    assert.deepEqual(keys, ['kubernetes.io/hostname', 'topology.kubernetes.io/zone'])
  })

  test('pods run without root, without writing and without rights', () => {
    for (const documents of [plain, everything])
      for (const kind of ['Deployment', 'Job']) {
        const pod = podOf(documents, kind)
        assert.equal(pod.securityContext.runAsNonRoot, true)
        assert.equal(pod.automountServiceAccountToken, false)
        const [{ securityContext, resources }] = pod.containers
        assert.ok(resources)
        assert.deepEqual(securityContext, {
          allowPrivilegeEscalation: false,
          readOnlyRootFilesystem: true,
          capabilities: { drop: ['ALL'] },
        })
      }
  })

  test('the migration job and the service trust the same private certificate authority', () => {
    const given = podOf(everything, 'Job').containers[0].env.find(({ name }) => name === 'NODE_EXTRA_CA_CERTS')
    assert.equal(given?.value, '/authority/ca.pem')
    assert.equal(find(everything, 'ConfigMap').data.NODE_EXTRA_CA_CERTS, given?.value)
  })

  test('the migration job names nothing that is made after it', () => {
    const job = podOf(everything, 'Job')
    assert.deepEqual(job.containers[0].envFrom, [{ secretRef: { name: 'more' } }])
    assert.deepEqual(
      job.volumes.map(({ name }) => name),
      ['secrets', 'authority'],
    )
    assert.equal(podOf(plain, 'Job').serviceAccountName, undefined)
    assert.equal(podOf(plain, 'Deployment').serviceAccountName, 'shop-project-api')
  })

  test('the migration job bypasses a pooler with a secret of its own, and reads the database settings of the service', () => {
    const given = (kind: string, name: string) =>
      podOf(pooler, kind).containers[0].env.filter((entry) => entry.name.startsWith(name))
    const urlFrom = (name: string, key: string) => [
      { name: 'DATABASE_URL', valueFrom: { secretKeyRef: { name, key } } },
    ]
    assert.deepEqual(given('Job', 'DATABASE_URL'), urlFrom('direct', 'database-url'))
    assert.deepEqual(given('Deployment', 'DATABASE_URL'), urlFrom('pooler', 'url'))
    assert.deepEqual(given('Job', 'DATABASE_PREPARED'), [{ name: 'DATABASE_PREPARED', value: 'off' }])
    const env = Object.fromEntries(podOf(pooler, 'Job').containers[0].env.map(({ name, value }) => [name, value]))
    const secrets = { DATABASE_URL: 'postgres://api:secret@db/api', WEBHOOK_SECRET: 'a'.repeat(32) }
    assert.equal(parseConfig({ ...env, ...secrets }, () => '').production, false)
  })

  test('the network policy lets in the peers that the operator adds', () => {
    assert.deepEqual(find(pooler, 'NetworkPolicy').spec.ingress[0]?.from.at(-1), {
      podSelector: { matchLabels: { app: 'runtime' } },
    })
  })

  test('every secret setting reaches the service from the secret of the chart', () => {
    const { env } = podOf(plain, 'Deployment').containers[0]
    for (const { name } of rowsOf(SETTINGS).filter(({ secret }) => secret !== undefined))
      assert.ok(
        env.some((entry) => entry.name === name || entry.name === `${name}_FILE`),
        name,
      )
  })

  test('secrets come by reference, and only readiness depends on the database', () => {
    const [container] = podOf(plain, 'Deployment').containers
    assert.equal(container.livenessProbe.httpGet.path, '/healthz')
    assert.equal(container.readinessProbe.httpGet.path, '/readyz')
    const given = container.env.filter((entry) => 'value' in entry).map(({ name }) => name)
    assert.ok(given.every((name) => name.endsWith('_FILE')))
    // A URL with a password replaces the plain one of the config map.
    assert.ok(container.env.some((entry) => 'valueFrom' in entry && entry.name === 'REDIS_URL'))
  })

  test('service, budget and policy select the pods of the deployment, and not those of the migration', () => {
    const { labels } = find(plain, 'Deployment').spec.template.metadata
    const selectors = [
      find(plain, 'Service').spec.selector,
      find(plain, 'PodDisruptionBudget').spec.selector.matchLabels,
      find(plain, 'NetworkPolicy').spec.podSelector.matchLabels,
    ]
    for (const selector of selectors) assert.deepEqual(selector, labels)
    assert.notDeepEqual(find(plain, 'Job').spec.template.metadata.labels, labels)
  })
})

interface Row {
  name: string
  secret?: string
}

/** Rows of the table of settings, also of its groups. */
function rowsOf(table: object): Row[] {
  return Object.values(table).flatMap((entry: object) => ('name' in entry ? [entry as Row] : rowsOf(entry)))
}
