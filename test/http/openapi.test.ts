import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import type { App } from '../../src/http/app-instance.ts'
import { closedSchema, type OpenapiDocument, operationsOf, validatorsOf, walk } from '../support/openapi-document.ts'
import { forEachVariant, type TestService } from '../support/service.ts'

const PUBLIC = ['/healthz', '/readyz', '/openapi.json']
const HIDDEN = ['/docs', '/docs/start.js', '/docs/reference.js']
const NO_SCOPE = ['/v1/users/me', '/v1/usage', '/v1/job-types', '/v1/events', '/v1/devices', '/v1/devices/{id}']
const ERROR_REF = { $ref: '#/components/schemas/Error' }

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

    test('is OpenAPI 3.1 with a title and a version', () => {
      assert.equal(document.openapi, '3.1.0')
      assert.ok(document.info.title && document.info.version)
    })

    test('has every route, and no other', () => {
      const described = operations().map(({ path, method }) => `${method} ${path}`)
      const served = routes.map((route) => route.replace(/:(\w+)/g, '{$1}'))
      const hidden = HIDDEN.map((path) => `GET ${path}`)
      assert.deepEqual(described.sort(), served.filter((route) => !hidden.includes(route)).sort())
      for (const { operation, path } of operations()) assert.ok(operation.summary && operation.tags?.length, path)
    })

    test('says of every operation which credential it takes', () => {
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

    test('says of every operation how it succeeds and every way it fails', () => {
      for (const { path, method, operation } of operations()) {
        const name = `${method} ${path}`
        const statuses = Object.keys(operation.responses)
        assert.ok(
          statuses.some((status) => status.startsWith('2')),
          name,
        )
        const expected = ['500', '503']
        const charged = !['/healthz', '/readyz'].includes(path)
        if (charged) expected.push('429')
        if (!PUBLIC.includes(path)) expected.push('401')
        if (path.startsWith('/v1/') && !NO_SCOPE.includes(path)) expected.push('403')
        if (path.includes('{')) expected.push('404')
        if (operation.parameters || operation.requestBody) expected.push('400')
        if (operation.requestBody) expected.push('413', '415')
        const headers = operation.parameters?.filter((parameter) => parameter.in === 'header').map(({ name }) => name)
        if (headers?.includes('if-match')) expected.push('412')
        if (headers?.includes('idempotency-key')) expected.push('409', '422')
        for (const status of expected) {
          const response = operation.responses[status]
          assert.ok(response?.description, `${name} ${status}`)
          assert.deepEqual(response.content?.['application/json']?.schema, ERROR_REF, `${name} ${status}`)
        }
        const creates = statuses.includes('201') || name === 'POST /jobs'
        if (creates) assert.ok(headers?.includes('idempotency-key'), name)
        if (method === 'PATCH') assert.ok(headers?.includes('if-match'), name)
        for (const [, parameter] of path.matchAll(/\{(\w+)\}/g)) {
          const described = operation.parameters?.find((one) => one.in === 'path' && one.name === parameter)
          assert.equal(described?.required, true, name)
        }
      }
    })

    test('has no reference that leads nowhere', () => {
      let references = 0
      walk(document, (node) => {
        if (typeof node.$ref !== 'string') return
        references += 1
        assert.match(node.$ref, /^#\//)
        const target = node.$ref
          .slice(2)
          .split('/')
          .reduce<unknown>((at, part) => (at as Record<string, unknown> | undefined)?.[part], document)
        assert.ok(target, node.$ref)
      })
      assert.ok(references > 20)
    })

    test('has examples that fit their schemas', () => {
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
      }
    })

    test('asks for every body but the one that may be left out', () => {
      const optional = operations().filter(({ operation }) => operation.requestBody?.required === false)
      assert.deepEqual(
        optional.map(({ path, method }) => `${method} ${path}`),
        ['POST /v1/service-accounts/{id}/rotate'],
      )
    })

    test('describes the answers the service really gives', async () => {
      const { compile } = validatorsOf(document)
      const token = service.tokenFor({ sub: 'ada', scopes: ['admin:*'] })
      const check = async (method: string, path: string, route: string, body?: unknown) => {
        const answer = await service.request<Record<string, unknown>>(method, path, { token, body })
        const described = document.paths[route]?.[method.toLowerCase()]?.responses[answer.status]
        assert.ok(described, `${method} ${route} ${answer.status}`)
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
      await check('GET', '/healthz', '/healthz')
      await check('GET', '/readyz', '/readyz')
    })

    test('describes this variant’s envelope and not the other’s', async () => {
      const { compile } = validatorsOf(document)
      const validate = compile(ERROR_REF)
      const refused = await service.request('GET', '/v1/projects')
      assert.ok(validate(refused.body), JSON.stringify(validate.errors))
      const inside = { code: 'unauthorized', message: 'x' }
      assert.equal(validate({ detail: inside }), under.variant === 'A')
      assert.equal(validate({ error: { ...inside, requestId: 'x' } }), under.variant === 'B')
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
