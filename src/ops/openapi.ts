import type { SwaggerTransform } from '@fastify/swagger'
import fastify, { type RouteOptions } from 'fastify'
import { SCOPES } from '../auth/scopes.ts'
import { type ErrorCode, STATUS_BY_CODE } from '../core/errors.ts'
import { Type } from '../core/schema.ts'
import { type Access, open } from '../http/access.ts'
import type { App } from '../http/app-instance.ts'
import type { Envelope } from '../http/envelope.ts'

/**
 * OpenAPI 3.1 drawn from the very schemas and access rules that are enforced, so that it cannot say anything else. It is
 * made when it is first asked for: a service nobody reads about should not load what it takes.
 */
export class ApiDescription {
  readonly #routes: RouteOptions[] = []
  readonly #envelope: Envelope
  readonly #version: string
  #document: Promise<object> | undefined

  constructor(options: { envelope: Envelope; version: string }) {
    this.#envelope = options.envelope
    this.#version = options.version
  }

  add(route: RouteOptions): void {
    this.#routes.push(route)
  }

  document(): Promise<object> {
    this.#document ??= this.#describe()
    return this.#document
  }

  /** The routes once more, without what they do, on an app that only describes them. */
  async #describe(): Promise<object> {
    const { default: swagger } = await import('@fastify/swagger')
    const shelf = fastify({ exposeHeadRoutes: false })
    // Nothing is ever validated or answered here.
    shelf.setValidatorCompiler(() => () => true)
    shelf.setSerializerCompiler(() => () => '')
    shelf.addSchema(this.#envelope.schema)
    await shelf.register(swagger, {
      openapi: {
        openapi: '3.1.0',
        info: {
          title: 'Project API',
          version: this.#version,
          description: INTRODUCTION,
          license: { name: 'MIT', identifier: 'MIT' },
        },
        servers: [{ url: '/' }],
        tags: TAGS,
        components: {
          securitySchemes: {
            bearer: {
              type: 'http',
              scheme: 'bearer',
              bearerFormat: 'JWT',
              description: `An access token of the user pool. Scopes come from the claim \`custom:scopes\`:\n\n${scopeTable()}`,
            },
            callbackToken: {
              type: 'apiKey',
              in: 'query',
              name: 'token',
              description: 'The per-job token that the service put into the callback URL, with `job_id` beside it.',
            },
            webhookSecret: {
              type: 'apiKey',
              in: 'header',
              name: 'X-Webhook-Secret',
              description:
                '`WEBHOOK_SECRET`, here or as a bearer token, or a Standard Webhooks signature made with it.',
            },
            apiKey: {
              type: 'apiKey',
              in: 'header',
              name: 'X-API-Key',
              description:
                'A service account’s key. Alone it is the caller; beside a bearer token it only sets the rate-limit tier.',
            },
          },
        },
      },
      refResolver: { buildLocalReference: (json, _base, _fragment, index) => String(json.$id ?? `def-${index}`) },
      transform: describeAccess,
    })
    for (const { method, url, schema, config } of this.#routes) {
      if (method !== 'HEAD')
        shelf.route({ method, url, handler: () => null, ...(schema && { schema }), ...(config && { config }) })
    }
    await shelf.ready()
    const document = shelf.swagger()
    await shelf.close()
    markOptionalBodies(document)
    return document
  }
}

interface Described {
  paths?: Record<string, Record<string, { requestBody?: { required?: boolean; content: Content } }>>
}
type Content = Record<string, { schema?: { type?: unknown } }>

/** Every body is described as required; one that may be null may as well be left out. */
function markOptionalBodies(document: object): void {
  const { paths = {} } = document as Described
  for (const { requestBody } of Object.values(paths).flatMap((methods) => Object.values(methods))) {
    const types = Object.values(requestBody?.content ?? {}).map(({ schema }) => [schema?.type].flat())
    if (requestBody && types.some((each) => each.includes('null'))) requestBody.required = false
  }
}

export function openapiRoute(app: App, description: ApiDescription): void {
  const schema = {
    tags: ['Operations'],
    summary: 'This document',
    response: { 200: Type.Object({}, { additionalProperties: true, description: 'OpenAPI 3.1' }) },
  }
  const config = { access: open('the API’s own description') }
  app.get('/openapi.json', { config, schema }, () => description.document())
}

/** Adds to each operation what its access and its inputs imply: security, and every error it may answer with. */
const describeAccess: SwaggerTransform = ({ schema, url, route }) => {
  const { access, refusals } = (route.config ?? {}) as { access?: Access; refusals?: readonly ErrorCode[] }
  if (!schema || !access) return { schema: { ...schema, hide: true }, url }
  const errors = errorResponses({ access, refusals: refusals ?? [], schema, readsBody: readsBody(route.method) })
  return {
    url,
    schema: {
      ...schema,
      security: securityOf(access),
      description: [schema.description, accessNote(access)].filter(Boolean).join('\n\n'),
      response: { ...describedSuccess(schema.response), ...errors },
    },
  }
}

const SUCCESS: Record<string, string> = { 200: 'OK', 201: 'Created', 202: 'Accepted', 204: 'Done' }

function describedSuccess(response: unknown): Record<string, object> {
  const schemas = Object.entries((response ?? {}) as Record<string, object>)
  return Object.fromEntries(schemas.map(([status, schema]) => [status, { description: SUCCESS[status], ...schema }]))
}

function securityOf(access: Access) {
  if (access.kind === 'public') return []
  return access.kind === 'callback' ? [{ callbackToken: [] }, { webhookSecret: [] }] : [{ bearer: [] }, { apiKey: [] }]
}

function accessNote(access: Access): string {
  if (access.kind === 'public') return `Public: ${access.reason}.`
  if (access.kind === 'callback') return 'For the agent runtime: a token of the callback URL, a secret, or a signature.'
  if (access.kind === 'bearer') return 'Needs a valid credential, no scope.'
  return `Needs ${access.anyOf.map((scope) => `\`${scope}\``).join(' or ')}${access.anyOf.includes('admin:*') ? '' : ' (or `admin:*`)'}.`
}

/** A body is read, and may be too large or of the wrong type, also where nobody asked for one. */
function readsBody(method: string | readonly string[]): boolean {
  return [method].flat().some((one) => one !== 'GET' && one !== 'HEAD')
}

interface Refusable {
  access: Access
  refusals: readonly ErrorCode[]
  readsBody: boolean
  schema: { body?: unknown; querystring?: unknown; params?: unknown; headers?: unknown }
}

function errorResponses({ access, refusals, readsBody, schema }: Refusable) {
  const isCallback = access.kind === 'callback'
  const isIdempotent = hasHeader(schema, 'idempotency-key')
  const implied: Partial<Record<ErrorCode, unknown>> = {
    invalid_request: schema.body || schema.querystring || schema.params || schema.headers,
    unauthorized: access.kind !== 'public',
    forbidden: access.kind === 'scopes',
    not_found: schema.params,
    conflict: isIdempotent || schema.params || isCallback,
    precondition_failed: hasHeader(schema, 'if-match'),
    payload_too_large: readsBody,
    // Callbacks are JSON whatever they say they are.
    unsupported_media_type: readsBody && !isCallback,
    idempotency_key_reused: isIdempotent,
    rate_limit_exceeded: access.kind !== 'public' || access.charged,
    internal_error: true,
    service_unavailable: true,
  }
  const codes = Object.keys(STATUS_BY_CODE) as ErrorCode[]
  return Object.fromEntries(
    codes
      .filter((code) => implied[code] || refusals.includes(code))
      .map((code) => [STATUS_BY_CODE[code], { description: code, $ref: 'Error#' }]),
  )
}

function hasHeader(schema: { headers?: unknown }, name: string): boolean {
  const headers = schema.headers as { properties?: Record<string, unknown> } | undefined
  return headers?.properties?.[name] !== undefined
}

function scopeTable(): string {
  const rows = Object.entries(SCOPES).map(([scope, access]) => `| \`${scope}\` | ${access} |`)
  return ['| Scope | Access |', '|---|---|', ...rows].join('\n')
}

const TAGS = [
  { name: 'Projects', description: 'What the work belongs to.' },
  { name: 'Jobs', description: 'Agent runs whose results always land.' },
  { name: 'Callbacks', description: 'What the agent runtime posts when a run ends.' },
  { name: 'Realtime', description: 'What happens, as it happens.' },
  { name: 'Push', description: 'Devices and what is sent to them.' },
  { name: 'Usage', description: 'What was used, per calendar month.' },
  { name: 'Users', description: 'Profiles, made on a user’s first request.' },
  { name: 'Service accounts', description: 'Keys for backends: their own identity, their own rate-limit tier.' },
  { name: 'Operations', description: 'Probes and this description.' },
]

const INTRODUCTION = `Every operation but the public ones wants \`Authorization: Bearer <access token>\` or \`X-API-Key\`.

**Errors** all have one shape, with a stable \`code\`. **Lists** are newest first: follow \`next_cursor\` while \`has_more\`.
**Creating** takes an \`Idempotency-Key\`: a repeat within 24 h returns the first answer. **Changing** takes \`If-Match\` with an
\`ETag\` seen before. **Rate limits** are told in \`RateLimit-*\` headers; a 429 says when to come back in \`Retry-After\`.
Every answer carries \`X-Request-Id\`: quote it when you ask for help.`
