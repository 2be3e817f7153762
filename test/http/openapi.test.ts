import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { validate as validateOpenapi } from '@scalar/openapi-validator'
import type { App } from '../../src/http/app-instance.ts'
import { parseCallback } from '../../src/runtime/callback-payload.ts'
import { checkDeclaredHeaders } from '../support/declared-headers.ts'
import { openStream } from '../support/event-stream.ts'
import {
  closedSchema,
  type OpenapiDocument,
  operationsOf,
  resolve,
  validatorsOf,
  walk,
} from '../support/openapi-document.ts'
import { forEachVariant, type TestService } from '../support/service.ts'

const PUBLIC = ['/healthz', '/readyz', '/openapi.json']
const HIDDEN = [
  '/',
  '/docs',
  '/docs/start.js',
  '/docs/reference.js',
  '/console',
  '/console/*',
  '/console/settings.json',
  '/console/assets/{name}',
]
const ERROR_REF = { $ref: '#/components/schemas/ErrorResponse' }

/** These create too, and answer 202: the work goes on. */
const ACCEPTING = [
  'POST /jobs',
  'POST /jobs/{id}/retry',
  'POST /v1/operations',
  'POST /v1/webhook-endpoints/{id}/recover',
]

/** What each is called, and every status it can answer with. */
const OPERATIONS = {
  'GET /healthz': 'getHealth: 200 400 500',
  'GET /readyz': 'getReadiness: 200 400 500 503',
  'GET /metrics': 'getMetrics: 200 400 401 403 429 500 503',
  'GET /openapi.json': 'getOpenapi: 200 400 429 500 503',
  'GET /v1/projects': 'listProjects: 200 400 401 403 429 500 503',
  'POST /v1/projects': 'createProject: 201 400 401 403 409 413 415 422 429 500 503',
  'GET /v1/projects/{id}': 'getProject: 200 304 400 401 403 404 429 500 503',
  'PATCH /v1/projects/{id}': 'changeProject: 200 400 401 403 404 412 413 415 429 500 503',
  'DELETE /v1/projects/{id}': 'deleteProject: 204 400 401 403 404 412 413 415 429 500 503',
  'POST /jobs': 'startJob: 202 400 401 403 404 409 413 415 422 429 500 503',
  'GET /jobs': 'listJobs: 200 400 401 403 429 500 503',
  'GET /v1/jobs/counts': 'countJobs: 200 400 401 403 429 500 503',
  'GET /v1/failures': 'listFailures: 200 400 401 403 429 500 503',
  'GET /v1/callers': 'listTopCallers: 200 400 401 403 429 500 503',
  'GET /jobs/{id}': 'getJob: 200 400 401 403 404 429 500 503',
  'PATCH /jobs/{id}': 'replaceJobInput: 200 400 401 403 404 409 413 415 429 500 503',
  'GET /v1/conversations': 'listConversations: 200 400 401 403 429 500 503',
  'GET /v1/conversations/{thread_id}': 'getConversation: 200 400 401 403 404 429 500 503',
  'DELETE /v1/conversations/{thread_id}': 'deleteConversation: 204 400 401 403 404 409 413 415 429 500 503',
  'DELETE /jobs/{id}': 'deleteJob: 204 400 401 403 404 409 413 415 429 500 503',
  'GET /jobs/{id}/timeline': 'listJobTimeline: 200 400 401 403 404 429 500 503',
  'GET /jobs/{id}/events': 'streamJobEvents: 200 400 401 403 404 429 500 503',
  'GET /jobs/{id}/live': 'streamJobLive: 200 400 401 403 404 429 500 503',
  'POST /jobs/{id}/cancel': 'cancelJob: 200 202 400 401 403 404 409 413 415 429 500 503',
  'POST /jobs/{id}/resume': 'resumeJob: 202 400 401 403 404 409 413 415 429 500 503',
  'POST /jobs/{id}/retry': 'retryJob: 202 400 401 403 404 409 413 415 422 429 500 503',
  'POST /jobs/{id}/check': 'checkJob: 200 400 401 403 404 413 415 429 500 503',
  'GET /v1/job-types': 'listJobTypes: 200 400 401 403 429 500 503',
  'POST /webhooks/agent': 'receiveAgentCallback: 200 400 401 404 409 413 429 500 503',
  'POST /webhooks/jobs/{type}': 'receiveJobCallback: 200 400 401 404 409 413 429 500 503',
  'GET /v1/callbacks': 'listCallbacks: 200 400 401 403 429 500 503',
  'GET /v1/refused-callbacks': 'listRefusedCallbacks: 200 400 401 403 429 500 503',
  'GET /v1/push': 'getPushDelivery: 200 400 401 403 429 500 503',
  'GET /v1/callbacks/{id}': 'getCallback: 200 400 401 403 404 429 500 503',
  'POST /v1/operations': 'startOperation: 200 202 400 401 403 409 413 415 422 429 500 503',
  'GET /v1/operations': 'listOperations: 200 400 401 403 429 500 503',
  'GET /v1/operations/{id}': 'getOperation: 200 400 401 403 404 429 500 503',
  'GET /v1/operations/{id}/failures': 'listOperationFailures: 200 400 401 403 404 429 500 503',
  'POST /v1/operations/{id}/cancel': 'cancelOperation: 200 400 401 403 404 409 413 415 429 500 503',
  'POST /v1/callbacks/{id}/replay': 'replayCallback: 200 400 401 403 404 409 413 415 429 500 503',
  'GET /v1/events': 'streamEvents: 200 400 401 403 429 500 503',
  'POST /v1/devices': 'registerDevice: 201 400 401 403 409 413 415 422 429 500 503',
  'GET /v1/devices': 'listDevices: 200 400 401 403 429 500 503',
  'GET /v1/devices/{id}': 'getDevice: 200 400 401 403 404 429 500 503',
  'DELETE /v1/devices/{id}': 'removeDevice: 204 400 401 403 404 413 415 429 500 503',
  'POST /v1/notifications': 'sendNotification: 201 400 401 403 409 413 415 422 429 500 503',
  'GET /v1/notifications': 'listNotifications: 200 400 401 403 429 500 503',
  'GET /v1/deliveries': 'listDeliveries: 200 400 401 403 429 500 503',
  'POST /v1/deliveries/{id}/resend': 'resendDelivery: 200 400 401 403 404 409 413 415 429 500 503',
  'GET /v1/stats': 'getStats: 200 400 401 403 429 500 503',
  'GET /v1/notifications/{id}': 'getNotification: 200 400 401 403 404 429 500 503',
  'GET /v1/usage': 'getUsage: 200 400 401 403 429 500 503',
  'GET /v1/users/{sub}/usage': 'getUserUsage: 200 400 401 403 404 429 500 503',
  'GET /v1/users': 'listUsers: 200 400 401 403 429 500 503',
  'GET /v1/users/me': 'getMe: 200 400 401 403 404 429 500 503',
  'PATCH /v1/users/me': 'changeMe: 200 400 401 403 404 412 413 415 429 500 503',
  'GET /v1/users/{sub}': 'getUser: 200 400 401 403 404 429 500 503',
  'PATCH /v1/users/{sub}': 'changeUser: 200 400 401 403 404 412 413 415 429 500 503',
  'GET /v1/settings': 'getSettings: 200 400 401 403 429 500 503',
  'GET /v1/users/{sub}/devices': 'listUserDevices: 200 400 401 403 404 429 500 503',
  'GET /v1/users/{sub}/export': 'exportUser: 200 400 401 403 404 429 500 503',
  'GET /v1/audit': 'listAudit: 200 400 401 403 429 500 503',
  'DELETE /v1/users/{sub}': 'eraseUser: 202 400 401 403 404 409 413 415 429 500 503',
  'POST /v1/users/{sub}/block': 'blockUser: 200 400 401 403 404 409 413 415 429 500 503',
  'POST /v1/users/{sub}/unblock': 'unblockUser: 200 400 401 403 404 413 415 429 500 503',
  'PUT /v1/users/{sub}/limits': 'setUserLimits: 200 400 401 403 404 413 415 429 500 503',
  'GET /v1/service-accounts': 'listServiceAccounts: 200 400 401 403 429 500 503',
  'POST /v1/service-accounts': 'createServiceAccount: 201 400 401 403 409 413 415 422 429 500 503',
  'GET /v1/service-accounts/{id}': 'getServiceAccount: 200 400 401 403 404 429 500 503',
  'DELETE /v1/service-accounts/{id}': 'revokeServiceAccount: 204 400 401 403 404 413 415 429 500 503',
  'GET /v1/webhook-endpoints': 'listWebhookEndpoints: 200 400 401 403 429 500 503',
  'POST /v1/webhook-endpoints': 'createWebhookEndpoint: 201 400 401 403 409 413 415 422 429 500 503',
  'GET /v1/webhook-endpoints/{id}': 'getWebhookEndpoint: 200 400 401 403 404 429 500 503',
  'PATCH /v1/webhook-endpoints/{id}': 'changeWebhookEndpoint: 200 400 401 403 404 412 413 415 429 500 503',
  'DELETE /v1/webhook-endpoints/{id}': 'deleteWebhookEndpoint: 204 400 401 403 404 413 415 429 500 503',
  'POST /v1/webhook-endpoints/{id}/rotate': 'rotateWebhookSecret: 201 400 401 403 404 409 413 415 422 429 500 503',
  'POST /v1/webhook-endpoints/{id}/test': 'testWebhookEndpoint: 202 400 401 403 404 409 413 415 429 500 503',
  'POST /v1/webhook-endpoints/{id}/recover': 'recoverWebhookEndpoint: 202 400 401 403 404 409 413 415 422 429 500 503',
  'GET /v1/webhook-endpoints/{id}/deliveries': 'listWebhookDeliveries: 200 400 401 403 404 429 500 503',
  'POST /v1/webhook-deliveries/{id}/resend': 'resendWebhookDelivery: 200 400 401 403 404 409 413 415 429 500 503',
  'POST /v1/service-accounts/{id}/rotate': 'rotateServiceAccount: 201 400 401 403 404 409 413 415 422 429 500 503',
}

const RECORDS = ['Project', 'User', 'Job', 'JobType', 'TimelineEntry', 'Callback', 'Device', 'Notification']
const EVENTS = ['StreamEvent', 'JobStreamEvent', 'JobEvent', 'ProjectEvent', 'UsageEvent', 'ResetEvent']
const ENUMS = ['ErrorCode', 'JobStatus', 'JobErrorCode', 'TimelineKind', 'DeliveryState', 'NotificationPriority']
const LISTED = ['Project', 'User', 'Job', 'TimelineEntry', 'Callback', 'Device', 'ServiceAccount', 'AuditEntry']
const NAMED = [
  ...RECORDS,
  ...EVENTS,
  ...ENUMS,
  'ErrorResponse',
  'Interrupt',
  'Delivery',
  'ServiceAccount',
  'Usage',
  'UsageLimits',
  'CallbackPayload',
  ...LISTED.map((name) => `${name}Page`),
]

describe('the description of the API', () => {
  forEachVariant((under) => {
    const routes: string[] = []
    let service: TestService
    let document: OpenapiDocument
    before(async () => {
      const watch = (app: App) => {
        app.addHook('onRoute', ({ method, url }) => {
          for (const one of [method].flat()) if (one !== 'HEAD') routes.push(`${one} ${url}`)
        })
      }
      service = await under.start({ extend: watch })
      document = (await service.request<OpenapiDocument>('GET', '/openapi.json')).body
    })

    const operations = () => operationsOf(document)

    test('the document is valid OpenAPI 3.1 with a title and a version', async () => {
      assert.equal(document.openapi, '3.1.0')
      assert.ok(document.info.title && document.info.version)
      const { errors } = await validateOpenapi(structuredClone(document))
      assert.deepEqual(errors, [])
    })

    test('the document has every route, and no other', () => {
      const described = operations().map(({ path, method }) => `${method} ${path}`)
      const served = routes.map((route) => route.replace(/:(\w+)/g, '{$1}'))
      const hidden = HIDDEN.map((path) => `GET ${path}`)
      assert.deepEqual(described.sort(), served.filter((route) => !hidden.includes(route)).sort())
      for (const { operation, path } of operations()) assert.ok(operation.summary && operation.tags?.length, path)
    })

    test('every operation names the credential that it takes', () => {
      for (const { path, method, operation } of operations()) {
        const closed = path.startsWith('/webhooks/')
          ? [{ callbackToken: [] }, { webhookSecret: [] }]
          : [{ bearer: [] }, { apiKey: [] }]
        assert.deepEqual(operation.security, PUBLIC.includes(path) ? [] : closed, `${method} ${path}`)
        for (const scheme of operation.security ?? []) {
          for (const name of Object.keys(scheme)) assert.ok(document.components.securitySchemes[name], name)
        }
      }
    })

    test('every operation names how it succeeds, every way it fails, and no other', () => {
      const described = operations().map(({ path, method, operation }) => {
        const statuses = Object.keys(operation.responses).join(' ')
        return [`${method} ${path}`, `${operation.operationId}: ${statuses}`]
      })
      assert.deepEqual(Object.fromEntries(described), OPERATIONS)
    })

    test('every error status names its codes, with an example in this variant’s envelope', () => {
      const { compile } = validatorsOf(document)
      const validate = compile(ERROR_REF)
      for (const { path, method, operation } of operations()) {
        for (const [status, { description, content }] of Object.entries(operation.responses)) {
          if (status < '400') continue
          const name = `${method} ${path} ${status}`
          // The one error without an envelope: its body is that of the success.
          if (name === 'GET /readyz 503') continue
          const { schema, examples = {} } = content?.['application/json'] ?? {}
          assert.deepEqual(schema, ERROR_REF, name)
          const values = Object.values(examples).map(({ value }) => value as object)
          assert.ok(values.length > 0, name)
          for (const value of values) {
            assert.ok(validate(value), `${name} ${JSON.stringify(value)}`)
            assert.equal('detail' in value, under.variant === 'A', name)
          }
          for (const key of Object.keys(examples)) assert.ok(description.includes(key.replace(/_\d+$/, '')), name)
        }
      }
      const codesOf = (method: string, path: string, status: string) => {
        const found = operations().find((one) => one.method === method && one.path === path)
        return Object.keys(found?.operation.responses[status]?.content?.['application/json']?.examples ?? {})
      }
      assert.deepEqual(codesOf('POST', '/jobs', '429'), ['rate_limit_exceeded', 'usage_limit_exceeded'])
      const conflict = document.paths['/jobs']?.post?.responses[409]?.description ?? ''
      assert.match(conflict, /Idempotency-Key is still in flight. `conflict`: \w/, 'every cause')
      for (const name of Object.keys(document.components.responses)) assert.match(name, /^[A-Za-z]+$/)
    })

    test('every field and every parameter has a description', () => {
      const undescribed: string[] = []
      const visit = (node: unknown, place: string): void => {
        if (node === null || typeof node !== 'object') return
        const { properties } = node as { properties?: Record<string, object> }
        for (const [name, field] of Object.entries(properties ?? {})) {
          if (!('description' in resolve(document, field))) undescribed.push(`${place}.${name}`)
        }
        for (const [key, inner] of Object.entries(node)) {
          if (!['example', 'examples'].includes(key)) visit(inner, `${place}/${key}`)
        }
      }
      visit(document, '')
      for (const { path, method, operation } of operations()) {
        for (const one of operation.parameters ?? []) {
          if (!('description' in one)) undescribed.push(`${method} ${path} ${one.name}`)
        }
      }
      assert.deepEqual(undescribed, [])
    })

    test('no schema has the name of a built-in type, and every time has the format date-time', () => {
      for (const name of ['Error', 'Event', 'Object', 'Date']) assert.ok(!document.components.schemas[name], name)
      walk(document.components.schemas, ({ properties }) => {
        for (const [name, field] of Object.entries((properties ?? {}) as Record<string, { format?: string }>)) {
          if (name === 'at' || name.endsWith('_at')) assert.equal(field.format, 'date-time', name)
        }
      })
    })

    test('every operation names the headers that control it', () => {
      for (const { path, method, operation } of operations()) {
        const name = `${method} ${path}`
        const headers = operation.parameters?.filter((parameter) => parameter.in === 'header').map(({ name }) => name)
        const creates = '201' in operation.responses || ACCEPTING.includes(name)
        assert.equal(headers?.includes('Idempotency-Key') ?? false, creates, name)
        const streams = operation.responses[200]?.content?.['text/event-stream'] !== undefined
        assert.equal(headers?.includes('Last-Event-ID') ?? false, streams, name)
        // Only its owner replaces the input of a waiting turn, and only as a whole: there is no version to match.
        if (method === 'PATCH' && path !== '/jobs/{id}') assert.ok(headers?.includes('If-Match'), name)
        for (const [, parameter] of path.matchAll(/\{(\w+)\}/g)) {
          const described = operation.parameters?.find((one) => one.in === 'path' && one.name === parameter)
          assert.equal(described?.required, true, name)
        }
      }
    })

    test('every record has a name of its own', () => {
      for (const name of NAMED) assert.ok(document.components.schemas[name], name)
      walk(document.paths, ({ title, properties }) => {
        if (properties) assert.equal(title, undefined, `${title} is not referred to`)
      })
    })

    test('every reference leads to a part of the document', () => {
      let references = 0
      walk(document, (node) => {
        if (typeof node.$ref !== 'string') return
        references += 1
        resolve(document, node)
      })
      assert.ok(references > 20)
    })

    test('every example fits its schema', () => {
      const { compile } = validatorsOf(document)
      let examples = 0
      const check = (schema: object, example: unknown) => {
        const validate = compile(closedSchema(schema))
        assert.ok(validate(example), `${JSON.stringify(example)}: ${JSON.stringify(validate.errors)}`)
        examples += 1
      }
      walk(document, (node) => {
        if (Array.isArray(node.examples)) for (const example of node.examples) check(node, example)
        if ('example' in node && 'schema' in node) check(node.schema as object, node.example)
      })
      assert.ok(examples >= 30, `${examples} examples`)
      for (const { path, method, operation } of operations()) {
        const body = operation.requestBody?.content['application/json']
        if (body) assert.ok('example' in body, `${method} ${path} shows no example of its body`)
        for (const status of ['200', '201', '202']) {
          const good = operation.responses[status]?.content?.['application/json']
          if (!good || path === '/openapi.json' || good.schema.$ref?.endsWith('Page')) continue
          assert.ok('example' in good, `${method} ${path} shows no example of its ${status}`)
        }
      }
    })

    test('every request body is required, except those that may be omitted', () => {
      const optional = operations().filter(({ operation }) => operation.requestBody?.required === false)
      assert.deepEqual(
        optional.map(({ path, method }) => `${method} ${path}`),
        ['POST /jobs/{id}/retry', 'POST /v1/service-accounts/{id}/rotate'],
      )
    })

    test('the document describes the answers that the service really gives', async () => {
      const { compile } = validatorsOf(document)
      const token = service.tokenFor({ sub: 'ada', scopes: ['admin:*'] })
      const check = async (method: string, path: string, route: string, body?: unknown) => {
        const answer = await service.request<Record<string, unknown>>(method, path, { token, body })
        const named = operations().find((one) => one.method === method && one.path === route)
        const described = named?.operation.responses[answer.status]
        assert.ok(named && described, `${method} ${route} ${answer.status}`)
        checkDeclaredHeaders(named, answer)
        const schema = described.content?.['application/json']?.schema
        if (answer.text === '') return answer
        const validate = compile(closedSchema(schema ?? {}))
        assert.ok(validate(answer.body), `${method} ${route}: ${JSON.stringify(validate.errors)}`)
        return answer
      }
      const project = '/v1/projects/{id}'
      const created = await check('POST', '/v1/projects', '/v1/projects', { name: 'x', metadata: { a: 1 } })
      const path = String(created.headers.location)
      await check('GET', '/v1/projects', '/v1/projects')
      await check('GET', path, project)
      await check('PATCH', path, project, { description: null })
      await check('PATCH', path, project, {})
      await check('DELETE', path, project)
      await check('GET', path, project)
      await check('GET', '/v1/users', '/v1/users')
      await check('GET', '/v1/users/me', '/v1/users/me')
      await check('GET', '/v1/users/ada', '/v1/users/{sub}')
      const account = await check('POST', '/v1/service-accounts', '/v1/service-accounts', { name: 'x', scopes: [] })
      await check('POST', `${account.headers.location}/rotate`, '/v1/service-accounts/{id}/rotate')
      await check('GET', '/v1/service-accounts', '/v1/service-accounts')
      await check('DELETE', String(account.headers.location), '/v1/service-accounts/{id}')
      const hooks = '/v1/webhook-endpoints'
      const hook = { url: 'https://8.8.8.8/', events: ['job.failed'], types: ['agent'] }
      const endpoint = String((await check('POST', hooks, hooks, hook)).headers.location)
      await check('GET', hooks, hooks)
      await check('PATCH', endpoint, `${hooks}/{id}`, { enabled: false })
      await check('PATCH', endpoint, `${hooks}/{id}`, { types: null, enabled: true })
      await check('POST', `${endpoint}/rotate`, `${hooks}/{id}/rotate`)
      await check('POST', `${endpoint}/recover`, `${hooks}/{id}/recover`, { since: '2026-01-01T00:00:00Z' })
      await check('GET', `${endpoint}/deliveries`, `${hooks}/{id}/deliveries`)
      await check('DELETE', endpoint, `${hooks}/{id}`)
      await check('GET', '/healthz', '/healthz')
      await check('GET', '/readyz', '/readyz')
    })

    test('the document describes the events that streams carry', async () => {
      const { compile } = validatorsOf(document)
      const validate = compile({ $ref: '#/components/schemas/StreamEvent' })
      const token = service.tokenFor({ sub: 'ada', scopes: ['write:projects'] })
      await service.request('POST', '/v1/projects', { token, body: { name: 'streamed' } })
      const stream = await openStream(service.url, '/v1/events?after=0', { token })
      const { data } = await stream.next()
      stream.close()
      assert.ok(validate(data), JSON.stringify(validate.errors))
      const job = {
        job_id: 'x',
        type: 'x',
        status: 'failed',
        project_id: null,
        thread_id: 'x',
        error: null,
        settled_by: null,
        link: null,
      }
      assert.equal(validate({ ...data, data: job }), false, 'the data of another kind')
      assert.equal(validate({ ...data, type: 'job.failed', data: job }), true)
      assert.equal(validate({ ...data, type: 'reset', data: {} }), true)
      const { responses } = operations().find(({ path }) => path === '/v1/events')?.operation ?? { responses: {} }
      const media = responses[200]?.content?.['text/event-stream']
      assert.deepEqual(media?.schema, { $ref: '#/components/schemas/StreamEvent' })
    })

    test('the document describes the callbacks that are accepted, and none that are refused', async () => {
      const { compile } = validatorsOf(document)
      const validate = compile({ $ref: '#/components/schemas/CallbackPayload' })
      const media = document.paths['/webhooks/agent']?.post?.requestBody?.content['application/json']
      const example = media?.example as Record<string, unknown>
      const isTaken = (payload: object) =>
        parseCallback(JSON.stringify(payload)).then(
          () => true,
          () => false,
        )
      const changes = [
        ...['thread_id', 'run_id', 'status'].flatMap((name) =>
          [undefined, null, '', 7, 'x'.repeat(255), 'x'.repeat(256)].map((value) => ({ [name]: value })),
        ),
        ...[null, undefined, {}, { a: [1] }].flatMap((value) => [
          { values: value },
          { error: value },
          { metadata: value },
        ]),
        { error: 'it broke' },
        { more: true },
      ]
      for (const change of changes) {
        const payload = JSON.parse(JSON.stringify({ ...example, ...change })) as object
        assert.equal(validate(payload), await isTaken(payload), JSON.stringify(change))
      }
    })

    test('the document describes the settings that the service runs with', async () => {
      const other = await under.start({ env: { RATE_LIMIT_HEADERS: 'draft-8', METRICS_PUBLIC: 'true' } })
      const { body } = await other.request<OpenapiDocument>('GET', '/openapi.json')
      const named = operationsOf(body).find(({ path }) => path === '/openapi.json')
      assert.ok(named)
      checkDeclaredHeaders(named, await other.request('GET', '/openapi.json'))
      const metrics = operationsOf(body).find(({ path }) => path === '/metrics')
      assert.deepEqual(Object.keys(metrics?.operation.responses ?? {}), ['200', '400', '500', '503'])
      assert.deepEqual(metrics?.operation.security, [])
    })

    test('the document describes how a method is refused that a path does not know', async () => {
      const { compile } = validatorsOf(document)
      const token = service.tokenFor({ sub: 'ada' })
      const answer = await service.request<object>('PUT', '/v1/projects', { token })
      assert.equal(answer.status, 405)
      assert.ok(compile(ERROR_REF)(answer.body))
      assert.match(document.info.description ?? '', /an unknown method with 405 and\s+`Allow`/)
    })

    test('a job that was just accepted is shown as such', () => {
      const example = document.paths['/jobs']?.post?.responses[202]?.content?.['application/json']?.example
      assert.deepEqual({ ...(example as object), status: 'processing', output: null, finished_at: null }, example)
    })

    test('the document describes this variant’s envelope and not the other’s', async () => {
      const { compile } = validatorsOf(document)
      const validate = compile(ERROR_REF)
      const refused = await service.request('GET', '/v1/projects')
      assert.ok(validate(refused.body), JSON.stringify(validate.errors))
      const inside = { code: 'unauthorized', message: 'x' }
      assert.equal(validate({ detail: inside }), under.variant === 'A')
      assert.equal(validate({ error: { ...inside, requestId: 'x' } }), under.variant === 'B')
      assert.equal(validate({ error: inside }), false, 'every error has the id of its request')
      assert.equal(validate({ detail: inside, error: inside }), false)
      assert.equal(
        validate(under.variant === 'A' ? { detail: { ...inside, x: 1 } } : { error: { ...inside, x: 1 } }),
        false,
      )
    })

    test('the reference page is all of this service, with nothing from elsewhere', async () => {
      const page = await service.request<string>('GET', '/docs')
      assert.match(String(page.headers['content-type']), /^text\/html/)
      assert.match(String(page.headers['content-security-policy']), /default-src 'none'/)
      const sources = [...page.text.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, source]) => String(source))
      assert.ok(sources.length >= 3)
      for (const source of sources) {
        if (source.startsWith('data:')) continue
        assert.match(source, /^\//)
        assert.equal((await service.request('GET', source)).status, 200, source)
      }
    })
  })
})
